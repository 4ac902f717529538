"""Checks of what a context's outbox knows: of the events in its streams, and of the numbers it has given out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

import nats.errors

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.stream_reader import NatsStreamAuditor
from relay.adapters.postgres.orphans import PostgresOrphans
from relay.adapters.postgres.pool import Source, query
from relay.commands.archive import held_back
from relay.commands.orphans import FindOrphans
from relay.credentials import nats_options
from relay.domain.errors import Outage
from relay.domain.facts import Fact
from relay.domain.findings import Finding, error, warning
from relay.domain.standstill import Movement
from relay.settings import ContextSettings, Settings

#: How many of the newest incidents tell of streams of dead letters.
_LOOKED: Final = 10_000
#: How long the server may take to tell of streams that relay.toml does not name, in seconds.
_PATIENCE_S: Final = 3.0
_REPAIR: Final = "run: relay db repair"


def _nobody(_fact: Fact) -> None:
    """Tell nobody: a look changes nothing."""


@asynccontextmanager
async def _auditor(settings: Settings) -> AsyncIterator[NatsStreamAuditor]:
    """What reads streams in a block. The block ends if the server is away, which is a finding of its own."""
    nats_url = settings.nats_url.get_secret_value()
    connection = NatsConnection(nats_url, name="jetrelay-health", **nats_options(settings))
    try:
        with suppress(Outage, nats.errors.Error, TimeoutError):
            yield NatsStreamAuditor(connection)
    finally:
        await connection.close()


async def held(settings: Settings, after: timedelta, unarchived: Sequence[Movement]) -> dict[str, str]:
    """Why rows stay in their tables that should be archived, for each stream that holds them back."""
    found, streams = dict[str, str](), {it.part.partition("/")[2] for it in unarchived} - {""}
    if streams:
        async with _auditor(settings) as auditor:
            for stream in sorted(streams):
                if (why := held_back(await auditor.state(stream), after)) is not None:
                    found[stream] = f"stream {stream}: {why}"
    return found


async def restored(
    settings: Settings, context: ContextSettings, names: Sequence[str], source: Source
) -> Sequence[Finding]:
    """No stream holds events of ours that the outbox does not know: noted ones, and those at the likely places.

    ``names``: of all contexts. The events of the others are not ours.
    """
    ledger = PostgresOrphans(source)
    found = {it.stream: it.count for it in await ledger.open()}
    others = [name for name in names if name != context.name]
    streams = [stream.name for stream in context.event_streams]
    async with _auditor(settings) as auditor:
        for page in await FindOrphans(context.name, streams, others, ledger, auditor, _nobody).look():
            found[page.stream] = max(found.get(page.stream, 0), len(page.orphans))
    return list(unknown_events(context.name, found))


async def left_behind(settings: Settings, context: ContextSettings, source: Source) -> Sequence[Finding]:
    """No stream that events or dead letters of a context went to was left behind, with messages, by a rename."""
    async with source() as conn:
        known = {name for (name,) in await query(conn, "server/streams", looked=_LOOKED)}
    known |= {*await PostgresOrphans(source).streams()}
    named = {spec.name for spec in settings.streams()} | {spec.stream for spec in settings.consumers()}
    found = []
    async with _auditor(settings) as auditor, asyncio.timeout(_PATIENCE_S):
        for name in sorted(known - named):
            state = await auditor.state(name)
            if state is not None and 0 < state.first_seq <= state.last_seq:
                text = (
                    f"holds messages of {context.name}, up to sequence {state.last_seq}, and relay.toml does"
                    " not name it: who has not read them yet never gets them"
                )
                remedy = f"let a subscription read it to its end; then: nats stream rm {name}"
                found.append(warning("STREAM_LEFT", f"stream {name}", text, remedy))
    return found


def unknown_events(context: str, counts: dict[str, int]) -> Iterator[Finding]:
    """The findings about streams with so many events that the outbox does not know."""
    for stream, count in counts.items():
        if count:
            yield error(
                "PRODUCER_RESTORED",
                f"stream {stream}",
                f"holds at least {count} events that the outbox of {context} does not know:"
                " its database was set back",
                f"relay reconcile --producer --context {context}; docs/how-to/moving.md",
            )


async def sequences(place: str, source: Source) -> Sequence[Finding]:
    """No sequence stands below the numbers of its table."""
    async with source() as conn:
        rows = await query(conn, "server/sequences")
    return [
        error("SEQUENCE_BEHIND", place, f"{name} stands at {last}, below the {highest} of its table", _REPAIR)
        for name, last, highest in rows
    ]
