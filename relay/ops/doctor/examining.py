"""Asks all servers at the same time and gives their answers to the checks. Changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Final, TypeAlias

import nats.errors

from relay import jobs
from relay.adapters import redis_inspection as addresses
from relay.adapters.jetstream import inspection as broker_inspection
from relay.adapters.jetstream.inspection import DurableState
from relay.adapters.postgres import inspection as database_inspection
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.movements import PostgresMovements
from relay.adapters.postgres.pool import connected
from relay.bootstrap import cold_store, duties
from relay.credentials import jetstream, redis_options
from relay.domain.backlogs import FleetSessions
from relay.domain.controls import Controls
from relay.domain.errors import DatabaseUnreachable, RelayError
from relay.domain.findings import Diagnosis, Examined, Finding, ProcessKind, error
from relay.domain.members import Seen
from relay.domain.queues import QueueView
from relay.domain.standstill import AwaitedVersion, BacklogKind, Movement, rests
from relay.ops.doctor import backlogs, databases, handlers, personal, producers, queues, streams
from relay.settings import ContextSettings, Settings

_log = logging.getLogger("relay")

#: A description of something that is well, and the findings about it.
Answer: TypeAlias = tuple[str, list[Finding]]
_Question: TypeAlias = Callable[[], Awaitable[Answer]]

#: How long all answers of a server may take, in seconds, and how long one statement.
_PATIENCE_S: Final = 10.0
_STATEMENT: Final = timedelta(seconds=3)
#: What a server that does not answer is called.
_AWAY: Final = {
    "postgresql": "DATABASE_UNREACHABLE",
    "nats": "BROKER_UNREACHABLE",
    "redis": "QUEUE_UNREACHABLE",
    "archive": "STORE_UNREACHABLE",
}

#: Which servers a process works with; "postgresql" and "archive" stand for one in each context.
NEEDS: Final = {
    ProcessKind.SCHEDULER: {"postgresql", "redis"},
    ProcessKind.WORKER: {"postgresql", "archive", "nats", "redis"},
    ProcessKind.TASKS: {"postgresql"},
    ProcessKind.APPLICATION: {"postgresql"},
}


@dataclass
class _Beside:
    """What the database of a context says of its backlogs: what stands still there, and what was found beside."""

    standing: Sequence[Movement] = ()
    around: backlogs.Surroundings = field(default_factory=backlogs.Surroundings)
    full: Sequence[str] = ()
    worked: Mapping[str, float | None] = field(default_factory=dict)
    awaited: Sequence[AwaitedVersion] = ()


class Examination:
    """One examination of everything that a configuration names, or of what one kind of process needs.

    ``close``: with the checks of `relay doctor`, too. ``only``: the context whose part is examined, if not all.
    """

    def __init__(
        self, settings: Settings, *, close: bool, process: ProcessKind | None, only: str | None = None
    ) -> None:
        contexts = settings.contexts if only is None else {only: settings.contexts[only]}
        self._settings, self._close = settings.model_copy(update={"contexts": contexts}), close
        #: Events of other contexts in a stream are theirs, also if only one context is examined.
        self._names = [*settings.contexts]
        self._needs = None if process is None else NEEDS[process]
        #: What the connection budget is made of: sessions that a server allows, by context, and workers.
        self._room: dict[str, int] = {}
        self._workers = 0
        self._waiting: dict[str, _Beside] = {}
        self._broker: streams.Broker | None = None
        self._jobs: Mapping[str, QueueView] | None = None
        self._members: Sequence[Seen] = ()

    async def run(self) -> Diagnosis:
        """Ask. Never raises for a server that does not answer: that is a finding."""
        asked = [asyncio.create_task(_ask(name, question)) for name, question in self._questions()]
        examined = self._with_backlogs([await answer for answer in asked])
        if self._close:
            examined += await asyncio.gather(*(_ask(name, it) for name, it in self._configured()))
        return Diagnosis(examined=examined)

    def _questions(self) -> Iterator[tuple[str, _Question]]:
        for name, context in self._settings.contexts.items():
            if self._wants("postgresql"):
                yield f"postgresql {name}", partial(self._database, context)
            if self._wants("archive") and context.archive.place is not None:
                yield f"archive {name}", partial(self._archive, context)
        if self._wants("nats"):
            yield "nats", self._nats
        if self._wants("redis"):
            yield "redis", self._redis

    def _wants(self, server: str) -> bool:
        return self._needs is None or server in self._needs

    def _configured(self) -> Iterator[tuple[str, _Question]]:
        """What is asked when the servers have answered."""
        yield "configuration", self._configuration
        if self._needs is None and len(self._settings.contexts) > 1:
            yield "personal values", self._personal
        for subject, url in handlers.addresses(self._settings):
            yield subject, partial(self._handler, subject, url)

    # --- one of each ---

    async def _database(self, context: ContextSettings) -> Answer:
        place = f"postgresql {context.name}"
        details = await database_inspection.look_closely(context.database) if self._close else None
        state = details.state if details else await database_inspection.look(context.database)
        self._room[context.name] = state.room
        found = [it for check in databases.CHECKS for it in check(place, state)]
        if not state.tables.pending:
            found += await self._backlogs(place, context)
        # A probe has less patience than a person, and no restart mends these.
        if not state.tables.pending and self._needs is None:
            found += await self._producer(place, context)
        if context.pooler is not None:
            places = [await database_inspection.place(url) for url in (context.pooler, context.database)]
            found += databases.same_place(place, *places)
        if details is not None:
            found += [it for closer in databases.CLOSE_CHECKS for it in closer(place, details)]
        return f"tables at {state.tables.current}; {FleetSessions(held=state.ours, room=state.room)}", found

    async def _backlogs(self, place: str, context: ContextSettings) -> list[Finding]:
        """What waits: what is wrong with it by itself. What stands still is told when all servers were asked."""
        health, name = self._settings.health, context.name
        limits = backlogs.LetterLimits(count=health.dead_letters, age=health.dead_letters_age)
        bound, block = health.stalled_after, context.publish.dead_head == "block"
        async with connected(context.database, "health") as source:
            reader, moving = (
                PostgresBacklogReader(source),
                PostgresMovements(source, bound=bound, dead_head_blocks=block),
            )
            await moving.limit(_STATEMENT)
            inboxes = await reader.full_inboxes(context.inbox_limits)
            found = [*databases.full(place, await reader.brake(), inboxes)]
            if self._needs is not None:
                return found
            try:
                standing = await moving.standing()
            except DatabaseUnreachable:
                return [*found, *backlogs.locked(place, await moving.holders(), _STATEMENT)]
            archive, held = context.archive, dict[str, str]()
            if archive.place is not None and archive.after is not None:
                unarchived = await moving.unarchived(name, archive.after)
                held = await producers.held(self._settings, archive.after, unarchived)
                standing = [*standing, *unarchived]
            refused, failing, lease = await moving.refused(), await moving.failing(), await moving.lease()
            away, controls = await reader.away(), await reader.controls()
            self._waiting[name] = _Beside(
                standing=standing,
                around=backlogs.Surroundings(
                    holders=await moving.holders() if standing else (),
                    refused=refused,
                    failing=failing,
                    away=away,
                    controls=Controls.of(controls),
                    leads=lease is not None and lease[1] < 0,
                    subscriptions=[*context.subscriptions],
                    held=held,
                ),
                full=[it.subscription for it in inboxes],
                worked=moving.worked,
                awaited=await moving.awaited(),
            )
            return [
                *found,
                *backlogs.refused(place, refused, bound),
                *backlogs.dead_events(place, await moving.dead(), block=block),
                *backlogs.failing(name, failing, bound),
                *backlogs.away(name, away),
                *backlogs.controlled(name, controls),
                *backlogs.letters(name, await reader.incidents(), limits),
                *backlogs.led(place, lease, bound),
            ]

    def _with_backlogs(self, examined: Sequence[Examined]) -> list[Examined]:
        """Add what stands still to the server that holds it. By now the likely causes are known."""
        more: dict[str, list[Finding]] = {}
        for name, waiting in self._waiting.items():
            context = self._settings.contexts[name]
            around = replace(
                waiting.around,
                found=list(_concerning(context, examined)),
                consumers=self._consumers(context),
                workers=None if self._jobs is None else self._workers,
                queues=self._jobs or {},
            )
            for movement in (*waiting.standing, *self._received(waiting, around)):
                server = "nats" if movement.kind is BacklogKind.STREAM else f"postgresql {name}"
                more.setdefault(server, []).append(backlogs.stalled(name, movement, around))
            more.setdefault(f"postgresql {name}", []).extend(
                backlogs.awaited(name, waiting.awaited, self._members)
            )
        return [replace(it, findings=[*it.findings, *more.get(it.server, ())]) for it in examined]

    def _consumers(self, context: ContextSettings) -> Mapping[str, DurableState]:
        states = {} if self._broker is None else self._broker.state.consumers
        found = {name: states.get(f"{it.stream}/{it.durable}") for name, it in context.subscriptions.items()}
        return {name: it for name, it in found.items() if it is not None}

    def _received(self, waiting: _Beside, around: backlogs.Surroundings) -> Iterator[Movement]:
        """The streams of which nothing is received. If an inbox is full, nothing is to be received."""
        for name, consumer in around.consumers.items():
            movement = backlogs.received(name, consumer, waiting.worked.get(name))
            if name in waiting.full or rests(movement, around.controls):
                continue
            if movement.stands_still(self._settings.health.stalled_after):
                yield movement

    async def _producer(self, place: str, context: ContextSettings) -> Sequence[Finding]:
        """What the outbox knows, beside what its numbers and its stream say."""
        async with connected(context.database, "health") as source:
            return [
                *await producers.sequences(place, source),
                *await producers.restored(self._settings, context, self._names, source),
                *(await producers.left_behind(self._settings, context, source) if self._close else ()),
            ]

    async def _archive(self, context: ContextSettings) -> Answer:
        """Ask the place of the archive for a name that is never there."""
        store = cold_store(context.archive)
        assert store is not None
        await store.names("none/")
        place = f"archive {context.name}"
        found = [*handlers.unusual_time(place, context.archive)]
        found += handlers.forgotten_ids(place, self._settings.outlived(context.name))
        return f"{context.archive.place} answers", found

    async def _nats(self) -> Answer:
        settings = self._settings
        subscriptions = [sub for context in settings.contexts.values() for sub in context.subscriptions.values()]
        read = [f"{sub.stream}/{sub.durable}" for sub in subscriptions]
        monitor = settings.nats.monitor.get_secret_value() if settings.nats.monitor else None
        try:
            async with jetstream(settings) as js:
                state = await broker_inspection.look(
                    js,
                    settings.streams(),
                    settings.consumers(),
                    settings.queried(),
                    monitor,
                    read,
                    others=self._close,
                )
        except (nats.errors.Error, TimeoutError) as failure:
            found = error("BROKER_UNREACHABLE", "nats", f"JetStream does not answer: {failure}", "see its log")
            return "", [found]
        self._broker = broker = streams.Broker.of(state, settings)
        checks = (*streams.CHECKS, *(streams.CLOSE_CHECKS if self._close else ()))
        return f"JetStream with {state.count} streams", [it for check in checks for it in check(broker)]

    async def _redis(self) -> Answer:
        settings = self._settings
        url, options = settings.redis_url.get_secret_value(), redis_options(settings)
        keys = [duty.key for context in settings.contexts.values() for duty in duties(context)]
        state = await addresses.look(url, settings.redis_namespace, options, jobs.QUEUES, keys)
        self._workers, self._jobs, self._members = state.workers, state.queues, state.members
        checks = (*queues.CHECKS, *(queues.CLOSE_CHECKS if self._close else ()))
        return f"{state.version} answers".strip(), [it for check in checks for it in check(state)]

    async def _configuration(self) -> Answer:
        found = [*handlers.modules(self._settings)]
        found += handlers.connections(self._settings, self._room, self._workers)
        return "its modules are there", found

    async def _personal(self) -> Answer:
        return "who is forgotten, is so everywhere", await personal.remembered(self._settings.contexts)

    async def _handler(self, subject: str, url: str) -> Answer:
        why = await addresses.listens(*handlers.place_of(url))
        return "accepts connections", list(handlers.unreachable(subject, url, why))


async def _ask(server: str, question: _Question) -> Examined:
    begin = time.perf_counter()
    findings: Sequence[Finding]
    try:
        async with asyncio.timeout(_PATIENCE_S):
            detail, findings = await question()
    except TimeoutError:
        code = _AWAY.get(server.partition(" ")[0], "CHECK_FAILED")
        detail, findings = "", [error(code, server, f"no answer within {_PATIENCE_S:g} s", "see its log")]
    except RelayError as failure:
        detail, findings = "", [error(failure.code, server, failure.message, failure.hint or "")]
    except Exception as failure:
        # An unexpected answer of one server must not hide those of the others. Its text may hold values.
        _log.debug("cannot examine %s", server, exc_info=True)
        detail, findings = "", [error("CHECK_FAILED", server, f"the check failed: {type(failure).__name__}")]
    milliseconds = round((time.perf_counter() - begin) * 1000, 1)
    return Examined(server=server, milliseconds=milliseconds, detail=detail, findings=findings)


def _concerning(context: ContextSettings, examined: Sequence[Examined]) -> Iterator[Finding]:
    """The findings about what a context works with."""
    subscriptions = context.subscriptions.values()
    ours = {f"stream {it.name}" for it in (*context.event_streams, context.dlq)}
    ours |= {f"stream {it.stream}" for it in subscriptions}
    ours |= {f"consumer {it.stream}/{it.durable}" for it in subscriptions}
    for it in examined:
        if it.server in {f"postgresql {context.name}", f"archive {context.name}", "nats", "redis"}:
            yield from (
                found
                for found in it.findings
                if found.subject in ours or not found.subject.startswith(("stream ", "consumer "))
            )
