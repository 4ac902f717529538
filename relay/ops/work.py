"""Answers what a subscription or a type of tasks does now: its rows, its history, and how far its consumer is."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

from relay.adapters.postgres.controls import PostgresControls
from relay.adapters.postgres.history import PostgresHistory
from relay.adapters.postgres.movements import awaited_versions
from relay.adapters.postgres.running import running
from relay.adapters.postgres.work import rows_now
from relay.bus import Query, QueryBus
from relay.domain.controls import Control, What
from relay.domain.errors import RelayError, of_context
from relay.domain.history import SPANS, Of
from relay.domain.members import Seen
from relay.domain.running import RunningRow
from relay.domain.standstill import AwaitedVersion
from relay.domain.work import Lag, RowsNow, WaitsForVersion, Work
from relay.ops.handlers import Sources, check_subject, subscription_settings
from relay.ops.servers import ListMembers, ShowStreams
from relay.settings import ContextSettings, SubscriptionSettings

#: So long a page waits for NATS, in seconds, and so many running rows are shown.
_PATIENCE_S: Final = 1.0
_RUNNING: Final = 20


class ReadWork(Query[Work]):
    """A subscription, or a type of tasks; nothing if the context knows no tasks of this type.

    ``span``: of its history. Raises UnknownControl for a subscription that relay.toml has not.
    """

    context: str
    of: Literal[Of.SUBSCRIPTION, Of.TASK]
    name: str
    span: Literal["1h", "6h", "48h", "90d"] = "1h"


class Works:
    """Answers `ReadWork`, on a bus that also answers `ShowStreams` and `ListMembers`."""

    def __init__(self, contexts: Mapping[str, ContextSettings], sources: Sources, bus: QueryBus) -> None:
        self._contexts, self._sources, self._bus = contexts, sources, bus

    def answer(self) -> QueryBus:
        """Register with the bus; returns it."""
        self._bus.handles(ReadWork)(self.read)
        return self._bus

    async def read(self, asked: ReadWork) -> Work | None:
        """Read it. Raises DatabaseUnreachable, UnknownControl, and InvalidRequest for what can be no name."""
        context = of_context(self._contexts, asked.context)
        of_tasks = asked.of is Of.TASK
        check_subject(context, What.TASK_TYPE if of_tasks else What.SUBSCRIPTION, asked.name)
        mine = None if of_tasks else context.subscriptions.get(asked.name)
        lag = asyncio.create_task(self._lag(asked.context, mine))
        try:
            async with self._sources(context) as source:
                rows = await rows_now(source, asked.of, asked.name)
                limits = {} if mine is None else {asked.name: mine.handler_timeout.total_seconds()}
                held = await running(source, asked.context, limits)
                controls = await PostgresControls(source).in_force()
                awaited = () if mine is None else await awaited_versions(source, asked.name)
                history = await PostgresHistory(source).read(
                    asked.context, SPANS[asked.span], asked.of, asked.name
                )
            found = Work(
                context=asked.context,
                of=asked.of,
                name=asked.name,
                rows=rows,
                history=history,
                settings={} if mine is None else subscription_settings(mine),
                running=sorted((it for it in held if _is_of(it, asked)), key=_begun)[:_RUNNING],
                controls=[it for it in controls if _controls(it, asked, rows)],
                lag=await lag,
                versions=() if mine is None else await self._versions(asked, awaited),
            )
        finally:
            lag.cancel()
        return found if found.known else None

    async def _versions(self, asked: ReadWork, awaited: Sequence[AwaitedVersion]) -> Sequence[WaitsForVersion]:
        """Which releases know these versions. The fleet is asked only if any is waited for."""
        if not awaited:
            return ()
        members: Sequence[Seen] | None = None
        with suppress(TimeoutError, RelayError):
            async with asyncio.timeout(_PATIENCE_S):
                members = (await self._bus.ask_async(ListMembers())).unwrap()
        return [
            WaitsForVersion(
                event_type=it.event_type,
                event_version=it.event_version,
                count=it.count,
                seconds=it.seconds,
                releases=None if members is None else it.known_by(asked.context, members),
            )
            for it in awaited
        ]

    async def _lag(self, context: str, mine: SubscriptionSettings | None) -> Lag | None:
        """How far the consumer is; None if nobody knows."""
        if mine is None:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                streams = (await self._bus.ask_async(ShowStreams(context=context))).unwrap()
        except (TimeoutError, RelayError):
            return None
        for stream in streams:
            for it in stream.consumers:
                if (stream.name, it.durable) == (mine.stream, mine.durable):
                    return Lag(it.waiting, it.unacknowledged, mine.max_ack_pending, it.redelivered)
        return None


def _is_of(row: RunningRow, asked: ReadWork) -> bool:
    if asked.of is Of.TASK:
        return row.kind == "task" and row.name == asked.name
    return row.kind == "message" and row.part == asked.name


def _begun(row: RunningRow) -> float:
    return 0.0 if row.since is None else row.since.timestamp()


def _controls(it: Control, asked: ReadWork, rows: RowsNow) -> bool:
    if asked.of is Of.SUBSCRIPTION:
        return (it.what, it.name) == (What.SUBSCRIPTION, asked.name)
    return (it.what, it.name) == (What.TASK_TYPE, asked.name) or (
        it.what is What.TASK_QUEUE and it.name in rows.queues
    )
