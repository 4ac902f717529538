"""Streams and durable consumers on the broker: create what is missing, update what differs, delete nothing.

The server refuses to change some fields of an existing stream or consumer (storage, the acknowledgement policy …).
Such a field is reported and left to an operator: to change it, messages or the progress of a consumer must be
deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import nats.errors
from nats.errors import ConnectionClosedError, NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.connection import insists, servers
from relay.adapters.jetstream.refusals import telling, unreachable
from relay.adapters.jetstream.topology_fields import (
    Difference,
    Kind,
    compare_consumer,
    compare_stream,
    consumer_update,
    full_name,
    stream_update,
    wanted_consumer,
    wanted_stream,
)
from relay.domain.errors import BrokerRefused, BrokerUnreachable, ConfigurationError
from relay.domain.topology import ConsumerSpec, StreamSpec

_CONNECT_TIMEOUT_S: Final = 2
#: Including the first attempt. The refusal of credentials does not always arrive at the first attempt: see
#: `telling`.
_MAX_ATTEMPTS: Final = 4
_ANSWER_TIMEOUT_S: Final = 3
_NAME_IN_USE: Final = 10058
_HINTS: Final = {
    10047: "max_bytes is reserved at once: free disk space, raise the server's max_file_store or lower max_bytes",
    10059: "the context that owns the stream must create it first",
    10065: "a subject belongs to one stream; look which of the server's streams has it",
    10074: "more than one replica needs a cluster of as many servers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What `ensure` did to one stream or consumer, or could not do.

    ``name`` of a consumer is ``stream/durable``. ``fields`` were updated. With the action ``refused`` the server
    will not change them. To change them, delete the stream or consumer and make it again.
    """

    kind: Kind
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


@asynccontextmanager
async def connect_once(url: str, **options: Any) -> AsyncIterator[JetStreamContext]:
    """Connect for one command. ``options`` go to ``nats.connect``.

    Raises BrokerUnreachable after a few seconds instead of trying without end, BrokerRefused when a permission is
    missing.
    """
    causes: list[Exception] = []
    addresses = servers(url)
    client = RelayClient(tls=insists(addresses))

    async def note(error: Exception) -> None:
        causes.append(telling(causes[-1], error) if causes else error)

    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S * 2):
            await client.connect(
                servers=addresses,
                name="relay-cli",
                allow_reconnect=False,
                max_reconnect_attempts=_MAX_ATTEMPTS,
                reconnect_time_wait=0.1,  # type: ignore[arg-type]
                connect_timeout=_CONNECT_TIMEOUT_S,
                error_cb=note,
                **options,
            )
    except (OSError, nats.errors.Error, TimeoutError) as error:
        raise unreachable(causes[-1] if causes else error) from error
    try:
        yield client.jetstream(timeout=_ANSWER_TIMEOUT_S)
    except (BrokerUnreachable, nats.errors.Error, TimeoutError) as error:
        if (refusal := client.refusals.latest()) is not None:
            raise BrokerRefused(str(refusal)) from error
        raise
    finally:
        await client.close()


async def ensure(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[Change]:
    """Create what is missing and update what differs; an empty answer means that there was nothing to do.

    May run any number of times, and in several processes at once. Settings that no spec knows do not change.
    Raises ConfigurationError when the server refuses, BrokerUnreachable when it does not answer.
    """
    changes = []
    for stream in streams:
        with _doing(f"stream {stream.name}"):
            changes += await _ensure_stream(js, stream)
    for consumer in consumers:
        with _doing(f"consumer {full_name(consumer)}"):
            changes += await _ensure_consumer(js, consumer)
    return changes


async def diff(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[Difference]:
    """Compare and change nothing; an empty answer means that all is as it must be.

    Raises BrokerUnreachable.
    """
    found = []
    with _doing("comparison"):
        for stream in streams:
            found += compare_stream(stream, await _stream_config(js, stream.name))
        for consumer in consumers:
            found += compare_consumer(consumer, await _consumer_config(js, consumer))
    return found


async def show(
    js: JetStreamContext, streams: Sequence[StreamSpec], consumers: Sequence[ConsumerSpec]
) -> list[StreamView]:
    """Return the state of every stream that is declared or consumed. Raises BrokerUnreachable."""
    durables: dict[str, list[str]] = {spec.name: [] for spec in streams}
    for consumer in consumers:
        durables.setdefault(consumer.stream, []).append(consumer.durable)
    with _doing("state"):
        return [await _view(js, name, wanted) for name, wanted in durables.items()]


@contextmanager
def _doing(what: str) -> Iterator[None]:
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


async def _ensure_stream(js: JetStreamContext, spec: StreamSpec) -> list[Change]:
    current = await _stream_config(js, spec.name)
    if current is None:
        try:
            await js.add_stream(wanted_stream(spec))
        except APIError as error:
            if error.err_code != _NAME_IN_USE:
                raise
            current = await _stream_config(js, spec.name)  # another process was faster, with other values
        else:
            return [Change(kind="stream", name=spec.name, action="created")]
    differences = compare_stream(spec, current)
    if current is not None and any(found.changeable for found in differences):
        await js.update_stream(stream_update(spec, current))
    return _changes(differences)


async def _ensure_consumer(js: JetStreamContext, spec: ConsumerSpec) -> list[Change]:
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
        return [Change(kind="consumer", name=full_name(spec), action="created")]
    if any(found.changeable for found in differences):
        await js.add_consumer(spec.stream, consumer_update(spec, current))  # creates or updates
    return _changes(differences)


def _check_start(spec: ConsumerSpec) -> None:
    """Refuse a start that the server would read as "now"."""
    if isinstance(spec.start_at, datetime) and spec.start_at > datetime.now(UTC):
        raise ConfigurationError(
            f"consumer {full_name(spec)}: start_at lies in the future, and JetStream would start at once",
            hint='make it then, or set start_at = "now"',
        )


def _changes(differences: Sequence[Difference]) -> list[Change]:
    changes = []
    actions: tuple[tuple[Literal["updated", "refused"], bool], ...] = (("updated", True), ("refused", False))
    for action, changeable in actions:
        fields = [found for found in differences if found.changeable is changeable]
        if fields:
            names = tuple(found.field for found in fields)
            changes.append(Change(kind=fields[0].kind, name=fields[0].name, action=action, fields=names))
    return changes


async def _stream_config(js: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(name)).config
    except NotFoundError:
        return None


async def _consumer_config(js: JetStreamContext, spec: ConsumerSpec) -> ConsumerConfig | None:
    info = await _consumer_info(js, spec.stream, spec.durable)
    return info.config if info else None


async def _consumer_info(js: JetStreamContext, stream: str, durable: str) -> ConsumerInfo | None:
    try:
        info: ConsumerInfo = await js.consumer_info(stream, durable)
    except NotFoundError:
        return None
    return info


async def _view(js: JetStreamContext, name: str, durables: Sequence[str]) -> StreamView:
    try:
        info = await js.stream_info(name)
    except NotFoundError:
        return StreamView(name=name, exists=False)
    consumers = [await _consumer_info(js, name, durable) for durable in durables]
    return StreamView(
        name=name,
        exists=True,
        subjects=tuple(info.config.subjects or ()),
        messages=info.state.messages,
        size_bytes=info.state.bytes,
        first_seq=info.state.first_seq,
        last_seq=info.state.last_seq,
        consumers=tuple(_consumer_view(found) for found in consumers if found),
    )


def _consumer_view(info: ConsumerInfo) -> ConsumerView:
    return ConsumerView(
        durable=info.name,
        waiting=info.num_pending or 0,
        unacknowledged=info.num_ack_pending or 0,
        redelivered=info.num_redelivered or 0,
    )
