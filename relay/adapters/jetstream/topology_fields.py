"""Specs and the server's answers as fields that can be compared and read. No I/O.

nats-py holds durations as seconds (float), the server as nanoseconds. Fields hold text such as ``7d`` or ``120s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Literal

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    PersistMode,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from relay.domain.topology import ConsumerSpec, StreamSpec

Kind = Literal["stream", "consumer"]

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

    kind: Kind
    name: str
    field: str
    expected: str
    actual: str
    changeable: bool

    @property
    def missing(self) -> bool:
        """Whether the whole stream or consumer is missing."""
        return not self.field


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


def _missing(kind: Kind, name: str) -> Difference:
    return Difference(kind=kind, name=name, field="", expected="exists", actual="missing", changeable=True)


def _differences(
    kind: Kind, name: str, sides: tuple[Mapping[str, str], Mapping[str, str]], fixed: frozenset[str]
) -> list[Difference]:
    expected, actual = sides
    return [
        Difference(
            kind=kind, name=name, field=key, expected=value, actual=actual[key], changeable=key not in fixed
        )
        for key, value in expected.items()
        if actual[key] != value
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
