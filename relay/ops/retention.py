"""Answers what a context keeps, by which rule, how much of it there is, and what goes next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from relay.adapters.jetstream.holdings import Holding, holdings
from relay.adapters.postgres.retention import TableHolding, held
from relay.bus import Query, QueryBus
from relay.credentials import jetstream
from relay.domain.errors import RelayError, of_context
from relay.domain.retention import KeepingRule, KeptIn, KeptPart, rules_of
from relay.domain.topology import RELAY_ADVISORIES
from relay.ops.handlers import Sources
from relay.settings import ContextSettings, Settings

#: So long a page waits for NATS, in seconds.
_PATIENCE_S: Final = 2.0


class ReadRetention(Query[Sequence[KeptPart]]):
    """What a context keeps, in the order of the rules. What NATS holds is unknown while it does not answer."""

    context: str


class KeptStream(NamedTuple):
    """A stream that holds what is a context's. ``dated``: whether the fleet may read its messages."""

    name: str
    rule: KeepingRule
    keeps: timedelta | None
    dated: bool


def kept_streams(context: ContextSettings) -> Sequence[KeptStream]:
    """The streams of a context, and that of advisories, with their rules."""
    rules = rules_of(KeptIn.STREAM)
    routed = set(context.routing.streams)
    found = [KeptStream(it.name, rules["events"], it.max_age, it.name in routed) for it in context.event_streams]
    if context.dlq.name not in {it.name for it in found}:
        letters = context.dlq
        found.append(KeptStream(letters.name, rules["dead letters"], letters.max_age, bool(context.subscriptions)))
    return [*found, KeptStream(RELAY_ADVISORIES.name, rules["advisories"], rules["advisories"].keeps, False)]


class Retention:
    """Answers `ReadRetention`."""

    def __init__(self, settings: Settings, sources: Sources, patience: float = _PATIENCE_S) -> None:
        self._settings, self._sources, self._patience = settings, sources, patience

    def answer(self, bus: QueryBus) -> QueryBus:
        """Register with a bus; returns it."""
        bus.handles(ReadRetention)(self.read)
        return bus

    async def read(self, asked: ReadRetention) -> Sequence[KeptPart]:
        """Read it. Raises DatabaseUnreachable, SchemaMissing and UnknownContext."""
        context = of_context(self._settings.contexts, asked.context)
        streams = kept_streams(context)
        there = asyncio.create_task(self._streams(streams))
        try:
            async with self._sources(context) as source:
                tables, archived = await held(source, rules_of(KeptIn.TABLE))
            return [*_rows(context, tables, archived), *_streams(streams, await there), *_redis()]
        finally:
            there.cancel()

    async def _streams(self, streams: Sequence[KeptStream]) -> Mapping[str, Holding]:
        try:
            async with asyncio.timeout(self._patience), jetstream(self._settings) as js:
                return await holdings(js, [it.name for it in streams], [it.name for it in streams if it.dated])
        except (TimeoutError, RelayError):
            return {}


def _rows(
    context: ContextSettings, tables: Mapping[str, TableHolding], archived: Mapping[str, TableHolding]
) -> Iterator[KeptPart]:
    on = context.archive.place is not None
    values = {"archive.after": context.archive.after if on else None, "archive.keep": context.archive.keep}
    for place, there in ((KeptIn.TABLE, tables), (KeptIn.ARCHIVE, archived)):
        for name, rule in rules_of(place).items():
            if place is KeptIn.ARCHIVE and not on and name not in there:
                continue
            it, keeps = there.get(name, TableHolding()), values[rule.setting] if rule.setting else rule.keeps
            yield KeptPart(rule=rule, name=name, keeps=keeps, rows=it.rows, size=it.size, oldest_at=it.oldest_at)


def _streams(streams: Sequence[KeptStream], there: Mapping[str, Holding]) -> Iterator[KeptPart]:
    for it in streams:
        found, shared = there.get(it.name), it.name == RELAY_ADVISORIES.name
        if found is None:
            yield KeptPart(rule=it.rule, name=it.name, keeps=it.keeps, shared=shared)
        else:
            yield KeptPart(
                rule=it.rule,
                name=it.name,
                keeps=it.keeps,
                rows=found.messages,
                size=found.size,
                oldest_at=found.oldest_at,
                shared=shared,
            )


def _redis() -> Iterator[KeptPart]:
    for name, rule in rules_of(KeptIn.REDIS).items():
        yield KeptPart(rule=rule, name=name, keeps=rule.keeps, shared=True)
