"""What nats-server says about itself, its streams and consumers, as values. Reads only, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, PersistMode, StorageType, StreamInfo
from nats.js.errors import NotFoundError

from relay.adapters.jetstream.topology import (
    Difference,
    compare_consumer,
    compare_stream,
    find_consumer,
    find_stream,
    full_name,
)
from relay.domain.topology import ConsumerSpec, StreamSpec

_TIMEOUT_S: Final = 3.0
#: A consumer that has delivered something within this time moves, in seconds.
_QUIET_S: Final = 5.0
#: The server's default, if its configuration does not say it.
_USUAL_SYNC_NS: Final = 120_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """A stream as it is. Sizes are in bytes and -1 for no limit; times in seconds, ``max_age`` 0 for ever.

    ``memory``: it is not on disk. ``early``: it confirms before it has written. ``drops``: when it is full, it
    drops its oldest messages. ``alone``: it has one replica in a cluster. ``full``: how much of a limit is used
    up, from 0 to 1. ``refuses``: it has no room for another message of its usual size. ``sealed``: it never takes
    a message again. ``denies``: what it forbids that an operator may need. ``differences``: from what relay.toml
    says, if it declares the stream.
    """

    name: str
    memory: bool = False
    early: bool = False
    drops: bool = False
    alone: bool = False
    subjects: Sequence[str] = ()
    duplicate_window: float = 120.0
    max_age: float = 0.0
    full: float = 0.0
    refuses: bool = False
    sealed: bool = False
    denies: Sequence[str] = ()
    max_msg_size: int = -1
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DurableState:
    """A durable consumer as it is. Times in seconds.

    ``pending`` messages were never delivered; the first of them, at ``next_seq``, was stored ``pending_seconds``
    ago, if that was asked. ``unacknowledged`` messages were delivered and not acknowledged, of ``window`` at most
    (-1 for any number). ``idle_seconds``: since the last delivery; None if there was none.
    """

    name: str
    ack_wait: float = 30.0
    paused: bool = False
    pending: int = 0
    next_seq: int = 0
    pending_seconds: float = 0.0
    unacknowledged: int = 0
    window: int = -1
    idle_seconds: float | None = None
    differences: Sequence[Difference] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherConsumer:
    """A durable consumer of a stream that no subscription names, and that nobody reads now.

    It has ``waiting`` messages. ``idle_seconds``: since it last delivered one, or was made.
    """

    stream: str
    durable: str
    waiting: int
    idle_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerState:
    """The server, and by name the streams and consumers that were asked for; None for one that is missing.

    ``used``: the part of the account's storage that is used up. ``sync_interval``: after how many seconds the
    server writes to the disk, 0 for at once; None if ``unseen`` says why it is not known. ``answering``: pairs of
    a query's subject and a stream that would confirm the query.
    """

    version: tuple[int, int, int]
    max_payload: int
    count: int
    used: float = 0.0
    sync_interval: float | None = None
    unseen: str = ""
    streams: Mapping[str, StreamState | None] = field(default_factory=dict)
    consumers: Mapping[str, DurableState | None] = field(default_factory=dict)
    answering: Sequence[tuple[str, str]] = ()
    others: Sequence[OtherConsumer] = ()
    unlisted: bool = False


async def look(
    js: JetStreamContext,
    streams: Sequence[StreamSpec],
    consumers: Sequence[ConsumerSpec],
    queried: Sequence[str],
    monitor: str | None,
    read: Collection[str] = (),
    *,
    others: bool = False,
) -> BrokerState:
    """Ask for the declared streams and consumers, and for the streams that are read. Raises nats-py's errors.

    ``others``: whether to list the consumers of the streams, which takes a right more. ``read``: the consumers, as
    ``stream/durable``, of whose messages we may read the first that was not delivered.

    ``monitor``: the address of the server's monitoring. Only monitoring tells when the server writes to the disk.
    """
    account = await js.account_info()
    declared: dict[str, StreamSpec | None] = {spec.name: spec for spec in streams}
    states = {name: await _stream(js, name, spec) for name, spec in _with_read(declared, consumers).items()}
    client = js._nc  # noqa: SLF001 - the context hides its client
    listed = await _others(js, states, {full_name(spec) for spec in consumers}) if others else []
    version, (interval, unseen) = client.connected_server_version, await _sync(monitor)
    return BrokerState(
        version=(version.major, version.minor, version.patch),
        max_payload=client.max_payload,
        count=account.streams,
        used=account.storage / account.limits.max_storage if (account.limits.max_storage or -1) > 0 else 0.0,
        sync_interval=interval,
        unseen=unseen,
        streams=states,
        consumers={full_name(spec): await _consumer(js, spec, read) for spec in consumers},
        answering=await _answering(js, queried),
        others=listed or (),
        unlisted=listed is None,
    )


def _with_read(
    declared: dict[str, StreamSpec | None], consumers: Sequence[ConsumerSpec]
) -> dict[str, StreamSpec | None]:
    """The declared streams and, without a spec, those of other services that consumers read."""
    return {**dict.fromkeys([spec.stream for spec in consumers]), **declared}


async def _stream(js: JetStreamContext, name: str, spec: StreamSpec | None) -> StreamState | None:
    """A stream as it is, compared with ``spec``, if relay.toml declares the stream."""
    info = await find_stream(js, name)
    if info is None:
        return None
    config = info.config
    return StreamState(
        name=config.name or "",
        memory=config.storage == StorageType.MEMORY,
        early=config.persist_mode == PersistMode.ASYNC,
        drops=config.discard != DiscardPolicy.NEW,
        alone=bool(info.cluster and info.cluster.name) and (config.num_replicas or 1) == 1,
        subjects=tuple(config.subjects or ()),
        duplicate_window=config.duplicate_window or 0.0,
        max_age=config.max_age or 0.0,
        full=_filled(info),
        refuses=config.discard == DiscardPolicy.NEW and _no_room(info),
        sealed=bool(config.sealed),
        denies=[name for name in ("deny_delete", "deny_purge") if getattr(config, name)],
        max_msg_size=-1 if config.max_msg_size is None else config.max_msg_size,
        differences=compare_stream(spec, config) if spec else (),
    )


def _filled(info: StreamInfo) -> float:
    """How much of a limit of the stream is used up."""
    limits = ((info.state.bytes, info.config.max_bytes), (info.state.messages, info.config.max_msgs))
    return max((used / most for used, most in limits if most is not None and most > 0), default=0.0)


def _no_room(info: StreamInfo) -> bool:
    """Whether a message of the usual size finds no room."""
    state, config = info.state, info.config
    usual = state.bytes / max(1, state.messages)
    bytes_full = (config.max_bytes or -1) > 0 and state.bytes + usual > (config.max_bytes or 0)
    return bytes_full or ((config.max_msgs or -1) > 0 and state.messages >= (config.max_msgs or 0))


async def _consumer(js: JetStreamContext, spec: ConsumerSpec, read: Collection[str]) -> DurableState | None:
    info = await find_consumer(js, spec.stream, spec.durable)
    if info is None:
        return None
    now, last = datetime.now(UTC), None if info.delivered is None else info.delivered.last_active
    idle = None if last is None else (now - last).total_seconds()
    pending, after = info.num_pending or 0, 0 if info.delivered is None else info.delivered.stream_seq
    age = 0.0
    if pending and (idle is None or idle > _QUIET_S) and full_name(spec) in read:
        age = await _age(js, spec, after + 1, now)
    return DurableState(
        name=full_name(spec),
        pending=pending,
        next_seq=after + 1,
        pending_seconds=age,
        unacknowledged=info.num_ack_pending or 0,
        window=info.config.max_ack_pending or -1,
        idle_seconds=idle,
        ack_wait=info.config.ack_wait or 30.0,
        paused=bool(info.paused),
        differences=compare_consumer(spec, info.config),
    )


async def _others(
    js: JetStreamContext, streams: Mapping[str, StreamState | None], known: Collection[str]
) -> Sequence[OtherConsumer] | None:
    """The consumers that nobody of ours names and nobody reads, 256 of a stream; None if we may not ask."""
    found, now = list[OtherConsumer](), datetime.now(UTC)
    for name in [name for name, state in streams.items() if state is not None]:
        try:
            listed = await js.consumers_info(name)
        except (nats.errors.Error, TimeoutError):
            return None
        for info in listed:
            durable = info.config.durable_name
            waiting = (info.num_pending or 0) + (info.num_ack_pending or 0)
            if durable is None or f"{name}/{durable}" in known or info.num_waiting or info.push_bound:
                continue
            last = (info.delivered.last_active if info.delivered else None) or info.created
            found.append(
                OtherConsumer(
                    stream=name, durable=durable, waiting=waiting, idle_seconds=(now - last).total_seconds()
                )
            )
    return found


async def _age(js: JetStreamContext, spec: ConsumerSpec, seq: int, now: datetime) -> float:
    """For how many seconds the first message from ``seq`` on has been in the stream; 0 if there is none."""
    try:
        found = await js.get_msg(spec.stream, seq=seq, subject=spec.filter_subject, next=True)
    except NotFoundError:
        return 0.0
    return 0.0 if found.time is None else (now - found.time).total_seconds()


async def _sync(monitor: str | None) -> tuple[float | None, str]:
    """After how many seconds the server writes to the disk; or None, and why that is not known."""
    if monitor is None:
        return None, "nats.monitor is not set"
    try:
        varz = await asyncio.to_thread(_read, f"{monitor.rstrip('/')}/varz")
    except (OSError, ValueError) as error:
        return None, f"nats.monitor does not answer ({type(error).__name__})"
    config = varz.get("jetstream", {}).get("config", {})
    return 0.0 if config.get("sync_always") else config.get("sync_interval", _USUAL_SYNC_NS) / 1e9, ""


def _read(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the settings admit http only
        return json.load(answer)


async def _answering(js: JetStreamContext, subjects: Sequence[str]) -> list[tuple[str, str]]:
    """The streams that would answer queries of ``subjects`` by their PubAck."""
    found = []
    for subject in subjects:
        for name in await _takers(js, subject):
            info = await find_stream(js, name)
            if info is not None and not info.config.no_ack:
                found.append((subject, name))
    return found


async def _takers(js: JetStreamContext, subject: str) -> Sequence[str]:
    """The names of the streams that take some of the subjects. The first page of the server's answer is enough."""
    reply = await js._nc.request(  # noqa: SLF001 - the context hides its client
        "$JS.API.STREAM.NAMES", json.dumps({"subject": subject}).encode(), timeout=_TIMEOUT_S
    )
    return json.loads(reply.data).get("streams") or ()
