"""Streams and durable consumers on the broker: create what is missing, update what differs, delete nothing.

The server refuses to change some fields of an existing stream or consumer (storage, the acknowledgement policy …).
Such a field is reported and left to an operator: to change it, messages or the progress of a consumer must be
deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal

import nats.errors
from nats.errors import ConnectionClosedError, NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    ConsumerInfo,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from relay.domain.errors import BrokerUnreachable, ConfigurationError
from relay.domain.topology import ConsumerSpec, StreamSpec

_NAME_IN_USE: Final = 10058
#: What can be the name of a stream.
_NAME: Final = re.compile(r"[^\s.*>/\\]{1,255}")
_HINTS: Final = {
    10047: "max_bytes is reserved at once: free disk space, raise the server's max_file_store or lower max_bytes",
    10059: "the context that owns the stream must create it first",
    10065: "a subject belongs to one stream; find out which stream of the server has it",
    10074: "more than one replica needs a cluster of as many servers",
}
#: Fields that the server does not change on an existing consumer (error 10012).
_FIXED_CONSUMER: Final = frozenset({"kind", "ack_policy", "start_at"})
#: How the server says where a consumer starts.
_START: Final = ("deliver_policy", "opt_start_seq", "opt_start_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that is not as it must be.

    A stream or consumer that is missing has ``field`` "" and ``actual`` "missing". ``changeable`` False: to change
    the field, delete it and make it again. ``name`` of a consumer is ``stream/durable``.
    """

    kind: Literal["stream", "consumer"]
    name: str
    field: str
    expected: str
    actual: str
    changeable: bool

    @property
    def missing(self) -> bool:
        """Whether the whole stream or consumer is missing."""
        return not self.field


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyChange:
    """What `ensure` did to one stream or consumer, or could not do.

    ``name`` of a consumer is ``stream/durable``. ``fields`` were updated. With the action ``refused`` the server
    will not change them. To change them, delete the stream or consumer and make it again.
    """

    kind: Literal["stream", "consumer"]
    name: str
    action: Literal["created", "updated", "refused"]
    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerView:
    """How far a durable consumer has come, in numbers of messages."""

    durable: str
    waiting: int
    unacknowledged: int
    redelivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamView:
    """What a stream holds now; one that does not exist holds nothing."""

    name: str
    exists: bool
    subjects: tuple[str, ...] = ()
    messages: int = 0
    size_bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    consumers: tuple[ConsumerView, ...] = ()


async def ensure(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[TopologyChange]:
    """Create what is missing and update what differs; an empty answer means that there was nothing to do.

    May run any number of times, and in several processes at once. Settings that no spec knows do not change.
    Raises ConfigurationError when the server refuses, BrokerUnreachable when it does not answer.
    """
    changes = []
    for stream in streams:
        with talking(f"stream {stream.name}"):
            changes += await _ensure_stream(js, stream)
    for consumer in consumers:
        with talking(f"consumer {full_name(consumer)}"):
            changes += await _ensure_consumer(js, consumer)
    return changes


async def make_at(js: JetStreamContext, spec: ConsumerSpec, seq: int) -> None:
    """Make a consumer that starts at a sequence, as one does that started there by ``start_at = "now"``.

    Raises as `ensure`.
    """
    with talking(f"consumer {full_name(spec)}"):
        await js.add_consumer(spec.stream, wanted_consumer(spec, next_seq=seq))


async def diff(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[Difference]:
    """Compare and change nothing; an empty answer means that all is as it must be.

    Raises BrokerUnreachable.
    """
    differences = []
    with talking("comparison"):
        for stream in streams:
            differences += compare_stream(stream, await _stream_config(js, stream.name))
        for consumer in consumers:
            differences += compare_consumer(consumer, await _consumer_config(js, consumer))
    return differences


async def show(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[StreamView]:
    """Return the state of every stream that is declared or consumed. Raises BrokerUnreachable."""
    durables: dict[str, list[str]] = {spec.name: [] for spec in streams}
    for consumer in consumers:
        durables.setdefault(consumer.stream, []).append(consumer.durable)
    with talking("state"):
        return [await _view(js, name, wanted) for name, wanted in durables.items()]


@contextmanager
def talking(what: str) -> Iterator[None]:
    """Turn the errors of nats-py into ours."""
    try:
        yield
    except (TimeoutError, nats.errors.TimeoutError, NoRespondersError, ConnectionClosedError) as error:
        raise BrokerUnreachable(f"{what}: JetStream does not answer", hint="is JetStream switched on?") from error
    except ServiceUnavailableError as error:
        raise BrokerUnreachable(f"{what}: {error.description or 'JetStream is not available'}") from error
    except APIError as error:
        hint = _HINTS.get(error.err_code or 0)
        raise ConfigurationError(
            f"{what}: NATS refuses: {error.description} ({error.err_code})", hint=hint
        ) from error


async def _ensure_stream(js: JetStreamContext, spec: StreamSpec) -> list[TopologyChange]:
    current = await _stream_config(js, spec.name)
    if current is None:
        try:
            await js.add_stream(wanted_stream(spec))
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            current = await _stream_config(js, spec.name)  # another process was faster, with other values
        else:
            return [TopologyChange(kind="stream", name=spec.name, action="created")]
    differences = compare_stream(spec, current)
    if current is not None and any(it.changeable for it in differences):
        await js.update_stream(stream_update(spec, current))
    return _changes(differences)


async def _ensure_consumer(js: JetStreamContext, spec: ConsumerSpec) -> list[TopologyChange]:
    current = await _consumer_config(js, spec)
    differences = compare_consumer(spec, current)
    if current is None:
        _check_start(spec)
        next_seq = (await js.stream_info(spec.stream)).state.last_seq + 1 if spec.start_at == "now" else 1
        try:
            await js.add_consumer(spec.stream, wanted_consumer(spec, next_seq=next_seq))
        except APIError:
            current = await _consumer_config(js, spec)  # another process was faster, and "now" was earlier
            if current is None:
                raise
        return [TopologyChange(kind="consumer", name=full_name(spec), action="created")]
    if any(it.changeable for it in differences):
        await js.add_consumer(spec.stream, consumer_update(spec, current))  # creates or updates
    return _changes(differences)


def _check_start(spec: ConsumerSpec) -> None:
    """Refuse a start that the server would read as "now"."""
    if isinstance(spec.start_at, datetime) and spec.start_at > datetime.now(UTC):
        raise ConfigurationError(
            f"consumer {full_name(spec)}: start_at lies in the future, and JetStream would start at once",
            hint='make it at that time, or set start_at = "now"',
        )


def _changes(differences: Sequence[Difference]) -> list[TopologyChange]:
    changes = []
    actions: tuple[tuple[Literal["updated", "refused"], bool], ...] = (("updated", True), ("refused", False))
    for action, changeable in actions:
        fields = [it for it in differences if it.changeable is changeable]
        if fields:
            names = tuple(it.field for it in fields)
            changes.append(TopologyChange(kind=fields[0].kind, name=fields[0].name, action=action, fields=names))
    return changes


async def find_stream(js: JetStreamContext, name: str) -> StreamInfo | None:
    """What the server says about a stream; None if there is none of this name, or cannot be one.

    A name may come from a row. One that NATS takes for no name would break the request, or the connection.
    """
    if not (_NAME.fullmatch(name) and name.isprintable()):
        return None
    try:
        return await js.stream_info(name)
    except NotFoundError:
        return None


async def find_consumer(js: JetStreamContext, stream: str, durable: str) -> ConsumerInfo | None:
    """What the server says about a durable consumer; None if there is none of this name."""
    try:
        info: ConsumerInfo = await js.consumer_info(stream, durable)
    except NotFoundError:
        return None
    return info


async def _stream_config(js: JetStreamContext, name: str) -> StreamConfig | None:
    info = await find_stream(js, name)
    return info.config if info else None


async def _consumer_config(js: JetStreamContext, spec: ConsumerSpec) -> ConsumerConfig | None:
    info = await find_consumer(js, spec.stream, spec.durable)
    return info.config if info else None


async def _view(js: JetStreamContext, name: str, durables: Sequence[str]) -> StreamView:
    info = await find_stream(js, name)
    if info is None:
        return StreamView(name=name, exists=False)
    consumers = [await find_consumer(js, name, durable) for durable in durables]
    return StreamView(
        name=name,
        exists=True,
        subjects=tuple(info.config.subjects or ()),
        messages=info.state.messages,
        size_bytes=info.state.bytes,
        first_seq=info.state.first_seq,
        last_seq=info.state.last_seq,
        consumers=tuple(_consumer_view(it) for it in consumers if it),
    )


def _consumer_view(info: ConsumerInfo) -> ConsumerView:
    return ConsumerView(
        durable=info.name,
        waiting=info.num_pending or 0,
        unacknowledged=info.num_ack_pending or 0,
        redelivered=info.num_redelivered or 0,
    )


# --- specs and the answers of the server as fields; no I/O ---


def full_name(spec: ConsumerSpec) -> str:
    """Name a consumer, which is unique within its stream only."""
    return f"{spec.stream}/{spec.durable}"


def wanted_stream(spec: StreamSpec, base: StreamConfig | None = None) -> StreamConfig:
    """Apply a spec to ``base``, whose other settings (placement, compression …) stay."""
    return (base or StreamConfig()).evolve(
        name=spec.name,
        subjects=list(spec.subjects),
        max_age=spec.max_age.total_seconds() if spec.max_age else 0.0,
        max_bytes=spec.max_bytes,
        max_msgs_per_subject=spec.max_msgs_per_subject,
        num_replicas=spec.replicas,
        duplicate_window=spec.duplicate_window.total_seconds(),
        no_ack=spec.no_ack,
        # The server does not take it back.
        allow_msg_ttl=spec.message_ttl or bool(base and base.allow_msg_ttl) or None,
        storage=StorageType.FILE,
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        # Without this a full subject drops its oldest message, whatever `discard` says.
        discard_new_per_subject=spec.max_msgs_per_subject > 0,
        metadata=_own_metadata(base.metadata if base else None),
    )


def stream_update(spec: StreamSpec, actual: StreamConfig) -> StreamConfig:
    """Apply a spec to an existing stream, except the fields that the server refuses to change."""
    wanted = wanted_stream(spec, actual)
    return wanted.evolve(**{key: getattr(actual, key) for key in _fixed_stream(actual)})


def wanted_consumer(
    spec: ConsumerSpec, base: ConsumerConfig | None = None, *, next_seq: int = 1
) -> ConsumerConfig:
    """Apply a spec to ``base``, whose other settings stay. ``next_seq``: the stream's, for a start "now"."""
    return (base or ConsumerConfig()).evolve(
        name=spec.durable,
        durable_name=spec.durable,
        filter_subject=spec.filter_subject,
        filter_subjects=None,
        ack_policy=AckPolicy.EXPLICIT,
        **_start(spec, next_seq),
        ack_wait=spec.ack_wait.total_seconds(),
        max_deliver=spec.max_deliver,
        max_ack_pending=spec.max_ack_pending,
        backoff=None,  # it would replace ack_wait
        metadata=_own_metadata(base.metadata if base else None),
    )


def consumer_update(spec: ConsumerSpec, actual: ConsumerConfig) -> ConsumerConfig:
    """Apply a spec to an existing consumer, except the fields that the server refuses to change."""
    start = {key: getattr(actual, key) for key in _START}
    return wanted_consumer(spec, actual).evolve(ack_policy=actual.ack_policy, **start)


def _start(spec: ConsumerSpec, next_seq: int) -> dict[str, Any]:
    """Where a consumer starts, in the server's form, and such that the consumer can be asked for it later."""
    if isinstance(spec.start_at, datetime):
        return {"deliver_policy": DeliverPolicy.BY_START_TIME, "opt_start_time": spec.start_at}
    if spec.start_at == "now":
        # Not "new": then the server could not say later where the consumer has started.
        return {"deliver_policy": DeliverPolicy.BY_START_SEQUENCE, "opt_start_seq": next_seq}
    return {"deliver_policy": DeliverPolicy.ALL}


def starts_at(config: ConsumerConfig) -> tuple[int, datetime | None]:
    """Return the first sequence of an existing consumer, and the moment from which on its messages were stored."""
    if config.deliver_policy == DeliverPolicy.BY_START_TIME:
        return 1, config.opt_start_time
    return config.opt_start_seq or 1, None


def _starts_at(config: ConsumerConfig) -> str:
    match config.deliver_policy:
        case DeliverPolicy.ALL:
            return "beginning"
        case DeliverPolicy.BY_START_SEQUENCE | DeliverPolicy.NEW:
            return "now"  # when it was made
        case DeliverPolicy.BY_START_TIME if config.opt_start_time is not None:
            return config.opt_start_time.isoformat()
    return _text(config.deliver_policy)


def compare_stream(spec: StreamSpec, actual: StreamConfig | None) -> list[Difference]:
    """List the differences to the spec. ``actual`` None means that the stream does not exist."""
    if actual is None:
        return [_missing("stream", spec.name)]
    expected = _stream_fields(wanted_stream(spec))
    return _differences("stream", spec.name, (expected, _stream_fields(actual)), _fixed_stream(actual))


def compare_consumer(spec: ConsumerSpec, actual: ConsumerConfig | None) -> list[Difference]:
    """List the differences to the spec. ``actual`` None means that the consumer does not exist."""
    if actual is None:
        return [_missing("consumer", full_name(spec))]
    expected = _consumer_fields(wanted_consumer(spec))
    return _differences("consumer", full_name(spec), (expected, _consumer_fields(actual)), _FIXED_CONSUMER)


def _fixed_stream(actual: StreamConfig) -> frozenset[str]:
    """Fields that the server does not change (10052). Retention can change from interest, not from work queue."""
    fixed = {"storage", "persist_mode"}
    if actual.retention == RetentionPolicy.WORK_QUEUE:
        fixed.add("retention")
    return frozenset(fixed)


def _stream_fields(config: StreamConfig) -> dict[str, str]:
    return {
        "storage": _text(config.storage),
        "retention": _text(config.retention),
        "discard": _text(config.discard),
        "persist_mode": _text(config.persist_mode or PersistMode.DEFAULT),
        "subjects": ", ".join(sorted(config.subjects or [])),
        "max_age": _duration(config.max_age),
        "max_bytes": _limit(config.max_bytes),
        "max_msgs_per_subject": _limit(config.max_msgs_per_subject),
        "discard_new_per_subject": str(bool(config.discard_new_per_subject)).lower(),
        "replicas": str(config.num_replicas or 1),
        "duplicate_window": _duration(config.duplicate_window),
        "no_ack": str(bool(config.no_ack)).lower(),
        **({"message_ttl": "true"} if config.allow_msg_ttl else {}),
    }


def _consumer_fields(config: ConsumerConfig) -> dict[str, str]:
    return {
        "kind": "push" if config.deliver_subject else "pull",
        "ack_policy": _text(config.ack_policy),
        "start_at": _starts_at(config),
        "filter_subject": ", ".join(config.filter_subjects or [config.filter_subject or ">"]),
        "ack_wait": _duration(config.ack_wait),
        "max_deliver": _limit(config.max_deliver),
        "max_ack_pending": _limit(config.max_ack_pending),
        "backoff": ", ".join(_duration(step) for step in config.backoff or []) or "none",
    }


def _missing(kind: Literal["stream", "consumer"], name: str) -> Difference:
    return Difference(kind=kind, name=name, field="", expected="exists", actual="missing", changeable=True)


def _differences(
    kind: Literal["stream", "consumer"],
    name: str,
    sides: tuple[Mapping[str, str], Mapping[str, str]],
    fixed: frozenset[str],
) -> list[Difference]:
    expected, actual = sides
    return [
        Difference(
            kind=kind,
            name=name,
            field=key,
            expected=value,
            actual=actual.get(key, "false"),
            changeable=key not in fixed,
        )
        for key, value in expected.items()
        if actual.get(key, "false") != value
    ]


def _own_metadata(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    """The metadata without the keys that the server writes itself."""
    return {k: v for k, v in (metadata or {}).items() if not k.startswith("_nats.")} or None


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def _duration(seconds: float | None) -> str:
    # A timedelta rounds to microseconds: 0.1 s stays 0.1 s after conversion to nanoseconds and back.
    value = timedelta(seconds=seconds or 0)
    if not value:
        return "unlimited"
    days, rest = divmod(value, timedelta(days=1))
    return f"{days}d" if not rest else f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"


def _limit(value: int | None) -> str:
    return str(value) if value is not None and value > 0 else "unlimited"
