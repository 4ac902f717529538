"""Asks all servers at the same time and gives their answers to the checks. Changes nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

import nats.errors

from relay.adapters import redis_inspection as addresses
from relay.adapters.jetstream import inspection as broker_inspection
from relay.adapters.postgres import inspection as database_inspection
from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import connected
from relay.bootstrap import cold_store
from relay.credentials import jetstream, redis_options
from relay.domain.errors import RelayError
from relay.domain.findings import Diagnosis, Examined, Finding, ProcessKind, error
from relay.ops.doctor import databases, handlers, queues, streams
from relay.settings import ContextSettings, Settings

_log = logging.getLogger("relay")

#: A description of something that is well, and the findings about it.
Answer: TypeAlias = tuple[str, list[Finding]]
_Question: TypeAlias = Callable[[], Awaitable[Answer]]

#: Which servers a process works with; "postgresql" and "archive" stand for one in each context.
NEEDS: Final = {
    ProcessKind.SCHEDULER: {"postgresql", "redis"},
    ProcessKind.WORKER: {"postgresql", "archive", "nats", "redis"},
    ProcessKind.TASKS: {"postgresql"},
    ProcessKind.APPLICATION: {"postgresql"},
}


class Examination:
    """One examination of everything that a configuration names, or of what one kind of process needs.

    ``close``: with the checks of `relay doctor`, too.
    """

    def __init__(self, settings: Settings, *, close: bool, process: ProcessKind | None) -> None:
        self._settings, self._close = settings, close
        self._needs = None if process is None else NEEDS[process]
        #: What the connection budget is made of: sessions that a server allows, by context, and workers.
        self._room: dict[str, int] = {}
        self._workers = 0

    async def run(self) -> Diagnosis:
        """Ask. Never raises for a server that does not answer: that is a finding."""
        asked = [asyncio.create_task(_ask(name, question)) for name, question in self._questions()]
        examined = [await answer for answer in asked]
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
            found += await _full(place, context)
        if context.pooler is not None:
            places = [await database_inspection.place(url) for url in (context.pooler, context.database)]
            found += databases.same_place(place, *places)
        if details is not None:
            found += [it for closer in databases.CLOSE_CHECKS for it in closer(place, details)]
        return f"tables at {state.tables.current}", found

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
        monitor = settings.nats.monitor.get_secret_value() if settings.nats.monitor else None
        try:
            async with jetstream(settings) as js:
                state = await broker_inspection.look(
                    js, settings.streams(), settings.consumers(), settings.queried(), monitor
                )
        except (nats.errors.Error, TimeoutError) as failure:
            found = error("BROKER_UNREACHABLE", "nats", f"JetStream does not answer: {failure}", "see its log")
            return "", [found]
        broker = streams.Broker.of(state, settings)
        checks = (*streams.CHECKS, *(streams.CLOSE_CHECKS if self._close else ()))
        return f"JetStream with {state.count} streams", [it for check in checks for it in check(broker)]

    async def _redis(self) -> Answer:
        settings = self._settings
        url, options = settings.redis_url.get_secret_value(), redis_options(settings)
        state = await addresses.look(url, settings.redis_namespace, options)
        self._workers = state.workers
        checks = (*queues.CHECKS, *(queues.CLOSE_CHECKS if self._close else ()))
        return f"{state.version} answers".strip(), [it for check in checks for it in check(state)]

    async def _configuration(self) -> Answer:
        found = [*handlers.modules(self._settings)]
        found += handlers.connections(self._settings, self._room, self._workers)
        return "its modules are there", found

    async def _handler(self, subject: str, url: str) -> Answer:
        why = await addresses.listens(*handlers.place_of(url))
        return "accepts connections", list(handlers.unreachable(subject, url, why))


async def _full(place: str, context: ContextSettings) -> list[Finding]:
    async with connected(context.database, "health") as source:
        reader = PostgresBacklogReader(source)
        brake, inboxes = await reader.brake(), await reader.full_inboxes(context.inbox_limits)
    return list(databases.full(place, brake, inboxes))


async def _ask(server: str, question: _Question) -> Examined:
    begin = time.perf_counter()
    findings: Sequence[Finding]
    try:
        detail, findings = await question()
    except RelayError as failure:
        detail, findings = "", [error(failure.code, server, failure.message, failure.hint or "")]
    except Exception as failure:
        # An unexpected answer of one server must not hide those of the others. Its text may hold values.
        _log.debug("cannot examine %s", server, exc_info=True)
        detail, findings = "", [error("CHECK_FAILED", server, f"the check failed: {type(failure).__name__}")]
    milliseconds = round((time.perf_counter() - begin) * 1000, 1)
    return Examined(server=server, milliseconds=milliseconds, detail=detail, findings=findings)
