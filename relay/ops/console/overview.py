"""Figures of the overview: what waits where in each context, and how fast it moves.

This process measures rates only while somebody looks at the overview.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from relay.adapters.jetstream.topology import ConsumerView, StreamView
from relay.adapters.postgres.budget import server_of
from relay.adapters.postgres.paging import Page, Row
from relay.domain.backlogs import Brake, FullInbox, InboxBacklog, OutboxBacklog
from relay.domain.errors import RelayError
from relay.domain.history import LastHour
from relay.ops.api.common import Ops
from relay.ops.kinds import DEAD_LETTERS, EVENTS, TASKS, Kind
from relay.ops.requests import FindRows, ReadBacklog, ReadLastHour
from relay.ops.servers import ShowStreams
from relay.settings import ContextSettings

Answer = TypeVar("Answer")
#: All streams by name; None if NATS does not answer.
Streams: TypeAlias = Mapping[str, StreamView] | None
#: Figures are asked for again after so many seconds, however many users look.
_FRESH_S: Final = 1.0
#: So many contexts of a server are asked at once.
_AT_ONCE: Final = 3
#: How long a page waits for a server, in seconds; an answer that comes later is shown by the next page.
PATIENCE_S: Final = 0.3
#: From this age on, in seconds, a page says loudly that figures are old.
OLD_S: Final = 5.0
#: A rate covers so many seconds, and a line has so many points.
_RATE_S: Final = 30.0
_POINTS: Final = 60
#: From so many published events we compute how long publishing takes.
_SAMPLE: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSample:
    """What was seen at a moment of the monotonic clock. Numbers of messages are None if NATS was away."""

    at: float
    waiting: int
    published: int | None
    handled: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFigures:
    """A context in figures. ``error``: why there are none; ``late``: there is no answer yet.

    ``at``: when they were asked for. ``silent``: for how many seconds there has been no newer answer, if that is
    too long. Rates are per second, None while unknown. ``consumes``: whether it has subscriptions;
    ``only``: the name of the only one. ``hour``: its last hour. ``overdue``: whether the database owes an answer
    for too long.
    """

    name: str
    late: bool = False
    at: datetime | None = None
    silent: float | None = None
    error: RelayError | None = None
    outbox: OutboxBacklog | None = None
    inbox: InboxBacklog | None = None
    brake: Brake = field(default_factory=Brake)
    full: Sequence[FullInbox] = ()
    letters: int = 0
    failed_tasks: int = 0
    waiting_tasks: int = 0
    latency: float | None = None
    streams: Sequence[StreamView] | None = None
    consumers: Sequence[ConsumerView] | None = None
    publish_rate: float | None = None
    handle_rate: float | None = None
    line: Sequence[int] = ()
    consumes: bool = True
    only: str | None = None
    hour: LastHour | None = None
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class Aged(Generic[Answer]):
    """An answer, and when it was asked for: by the clock that all see, and by the monotonic ``clock``."""

    answer: Answer
    at: datetime
    begun: float
    clock: Callable[[], float]

    @property
    def seconds(self) -> float:
        """How old it is."""
        return self.clock() - self.begun


class Patient(Generic[Answer]):
    """A question whose answer a page awaits only for a moment. It then runs in the background, once at a time.

    An answer that came when nobody waited for it is never given as a new one: it has the age of its question.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s, self._clock = patience_s, clock
        self._known: Aged[Answer] | None = None
        self._asking: tuple[asyncio.Task[Answer], datetime, float] | None = None

    async def ask(self, question: Callable[[], Coroutine[Any, Any, Answer]]) -> Aged[Answer] | None:
        """Return the answer, or the last one if it takes long; None if there was none yet."""
        if self._asking is not None and self._asking[0].done():
            self._take()
        if self._known is not None and self._known.seconds <= _FRESH_S:
            return self._known
        if self._asking is None:
            self._asking = asyncio.create_task(question()), datetime.now(UTC), self._clock()
        done, _ = await asyncio.wait([self._asking[0]], timeout=self._patience_s)
        if done and self._asking is not None:
            self._take()
        return self._known

    def _take(self) -> None:
        """Keep the answer that is there."""
        assert self._asking is not None
        (task, at, begun), self._asking = self._asking, None
        self._known = Aged(task.result(), at, begun, self._clock)


class Flow:
    """The figures of all contexts, kept for a moment. Each application has one such object.

    ``old_s``: from which age on figures are old.
    """

    def __init__(self, patience_s: float = PATIENCE_S, old_s: float = OLD_S) -> None:
        self._patience_s, self._old_s = patience_s, old_s
        self._lock = asyncio.Lock()
        self._known: tuple[float, Sequence[ContextFigures]] = (float("-inf"), ())
        self._streams: Patient[Streams] = Patient(patience_s)
        self._contexts: dict[str, Patient[ContextFigures]] = {}
        self._seen: dict[str, deque[FlowSample]] = {}
        self._begun: dict[str, float] = {}
        self._turns: defaultdict[tuple[str, ...], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )

    async def look(self, ops: Ops) -> Sequence[ContextFigures]:
        """Return the figures, at most a second old."""
        async with self._lock:
            if time.monotonic() - self._known[0] > _FRESH_S:
                contexts, streams = await asyncio.gather(
                    self._figures(ops), self._streams.ask(partial(_streams, ops))
                )
                # NATS has no age of its own on the cards: what is not of now is not known.
                now = streams.answer if streams is not None and streams.seconds <= self._old_s else None
                shown = [self._with_streams(ops.settings.contexts[it.name], it, now) for it in contexts]
                self._known = (time.monotonic(), shown)
            return self._known[1]

    async def _figures(self, ops: Ops) -> Sequence[ContextFigures]:
        for name in ops.settings.contexts:
            self._contexts.setdefault(name, Patient(self._patience_s))
        asked = self._contexts.items()
        found = await asyncio.gather(*(it.ask(partial(self._in_turn, ops, name)) for name, it in asked))
        return [
            replace(self._aged(name, it), overdue=self._owed(name) > self._old_s)
            for (name, _), it in zip(asked, found, strict=True)
        ]

    async def _in_turn(self, ops: Ops, name: str) -> ContextFigures:
        """Ask a few contexts of a server at a time: they share the connections to it."""
        async with self._turns[server_of(ops.settings.contexts[name].database)]:
            self._begun[name] = time.monotonic()
            try:
                return await _figures(ops, name)
            finally:
                del self._begun[name]

    def _owed(self, name: str) -> float:
        """For how many seconds a database has owed an answer, since its turn came."""
        return time.monotonic() - self._begun[name] if name in self._begun else 0.0

    def _aged(self, name: str, found: Aged[ContextFigures] | None) -> ContextFigures:
        """The figures of a context with their age."""
        if found is None:
            return ContextFigures(name=name, late=True)
        silent = found.seconds if found.seconds > self._old_s else None
        return replace(found.answer, at=found.at, silent=silent)

    def _with_streams(self, settings: ContextSettings, found: ContextFigures, streams: Streams) -> ContextFigures:
        if found.outbox is None:
            return found
        mine = consumers = published = handled = None
        if streams is not None:
            mine = [streams[it.name] for it in settings.event_streams if it.name in streams]
            consumers = _consumers(settings, streams)
            published = sum(it.last_seq for it in mine)
            handled = _handled(settings, streams)
        now = FlowSample(at=time.monotonic(), waiting=found.outbox.waiting, published=published, handled=handled)
        seen = self._seen.setdefault(found.name, deque(maxlen=_POINTS))
        seen.append(now)
        return replace(
            found,
            streams=mine,
            consumers=consumers,
            publish_rate=rate(seen, "published"),
            handle_rate=rate(seen, "handled"),
            line=[it.waiting for it in seen],
            consumes=bool(settings.subscriptions),
            only=next(iter(settings.subscriptions)) if len(settings.subscriptions) == 1 else None,
        )


def rate(seen: Sequence[FlowSample], name: str) -> float | None:
    """How much a number grew lately, per second; None if it is not known, or has become smaller."""
    now = seen[-1]
    known = [it for it in seen if getattr(it, name) is not None and now.at - it.at <= _RATE_S]
    if len(known) < 2 or known[-1] is not now or now.at - known[0].at < _FRESH_S:
        return None
    grown = getattr(now, name) - getattr(known[0], name)
    return grown / (now.at - known[0].at) if grown >= 0 else None


async def _streams(ops: Ops) -> Streams:
    try:
        found = (await ops.queries.ask_async(ShowStreams())).unwrap()
    except RelayError:
        return None
    return {it.name: it for it in found}


def _consumers(settings: ContextSettings, streams: Mapping[str, StreamView]) -> list[ConsumerView]:
    wanted = {(it.stream, it.durable) for it in settings.subscriptions.values()}
    return [it for name, found in streams.items() for it in found.consumers if (name, it.durable) in wanted]


def _handled(settings: ContextSettings, streams: Mapping[str, StreamView]) -> int | None:
    """How far the consumers of a context have come: how many messages of their streams wait for no consumer."""
    total = 0
    for it in settings.subscriptions.values():
        stream = streams.get(it.stream)
        mine = next((view for view in stream.consumers if view.durable == it.durable), None) if stream else None
        if stream is None or mine is None:
            return None
        total += stream.last_seq - mine.waiting - mine.unacknowledged
    return total if settings.subscriptions else None


async def _figures(ops: Ops, name: str) -> ContextFigures:
    try:
        # One after the other, so that a context needs one connection: many share a few.
        outbox, inbox, brake, full = await _backlog(ops, name)
        letters = await _total(ops, name, DEAD_LETTERS, "open")
        failed = await _total(ops, name, TASKS, "failed")
        waiting = await _total(ops, name, TASKS, "pending", "delivered")
        latency = await _latency(ops, name)
        hour = (await ops.queries.ask_async(ReadLastHour(context=name))).unwrap()
    except RelayError as error:
        return ContextFigures(name=name, error=error)
    return ContextFigures(
        name=name,
        outbox=outbox,
        inbox=inbox,
        brake=brake,
        full=full,
        letters=letters,
        failed_tasks=failed,
        waiting_tasks=waiting,
        latency=latency,
        hour=hour,
    )


async def _backlog(ops: Ops, name: str) -> Any:
    return (await ops.queries.ask_async(ReadBacklog(context=name))).unwrap()


async def _total(ops: Ops, name: str, kind: Kind, *states: str) -> int:
    return (await _newest(ops, name, kind, states, 1)).total


async def _newest(ops: Ops, name: str, kind: Kind, states: Sequence[str], limit: int) -> Page[Row]:
    query = FindRows(kind=kind.path, context=name, wanted=kind.wanted({}, states), limit=limit)
    return (await ops.queries.ask_async(query)).unwrap()


async def _latency(ops: Ops, name: str) -> float | None:
    """The median time, in seconds, that the latest events took from their transaction to the stream."""
    found = await _newest(ops, name, EVENTS, ["published"], _SAMPLE)
    first = [it for it in found.items if it["generation"] == 0 and it["published_at"] and it["occurred_at"]]
    took = sorted((it["published_at"] - it["occurred_at"]).total_seconds() for it in first)
    return max(0.0, took[len(took) // 2]) if took else None
