"""Finds rows of all kinds in all contexts by one line: `relay.domain.search` says what it may be.

Each term is a filter of the kinds that have a word for it: see ``words`` of a filter. A kind without one has no
such rows. A word alone may be an id, the beginning of one, a key, an aggregate or a correlation. A name that no
filter has is a field of payloads that ``search`` of an event type lists, or the first half of a key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from relay.adapters.postgres.paging import Page, Row
from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.search_indexes import found_by
from relay.adapters.postgres.sql import statement
from relay.bus import Nothing, Query, QueryBus
from relay.domain import search
from relay.domain.errors import InvalidRequest, RelayError, of_context
from relay.domain.moments import EARLIEST, absolute
from relay.domain.search import Term
from relay.ops.everywhere import PATIENCE_S, everywhere
from relay.ops.handlers import Sources
from relay.ops.kinds import KINDS, Filter, Kind
from relay.ops.requests import FindRows, GetRow
from relay.settings import ContextSettings

#: So many rows of a kind in a context, and so many in all.
ROWS: Final = 20
SHOWN: Final = 200
#: Words of a line that narrow, and name no row. `status` is a state; `context` and `kind` choose where to look.
_STATUS, _CONTEXT, _KIND = "status", "context", "kind"


class Find(Query["FoundRows"]):
    """Rows of all kinds in all contexts, the newest first. Raises InvalidRequest for a line that says nothing."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A row that was found.

    ``kind``: events, inbox, dead-letters or tasks. ``type``: of the event or task. ``at``: when it began.
    ``about``: its subscription or queue. ``reason``: why it failed.
    """

    context: str
    kind: str
    id: str
    status: str
    type: str | None
    about: str | None
    key: str | None
    at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRows:
    """What was found. ``asked``: the line. ``cut``: there is more. ``unread``: why a context did not answer."""

    asked: str
    rows: Sequence[FoundRow]
    cut: bool
    unread: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A line, sorted: ``one`` names rows, ``narrowing`` terms are filters."""

    one: Term | None
    narrowing: Mapping[str, str]
    contexts: str | None = None
    kind: str | None = None
    status: str | None = None


def words() -> list[str]:
    """All names that a line may have, for completion."""
    found = {word for kind in KINDS.values() for it in kind.filters for word in it.words} - {"id"}
    return sorted(found | {_STATUS, _CONTEXT, _KIND, "id"})


def _sorted(terms: Sequence[Term]) -> _Wanted:
    known, narrowing, ones = {*words()} - {"id"}, dict[str, str](), list[Term]()
    for term in terms:
        name = "status" if term.name == "is" else term.name
        if name in known:
            if name in narrowing:
                raise InvalidRequest(f"has {name} twice", field="q", hint="search for one after the other")
            narrowing[name] = term.value
        else:
            ones.append(Term("", term.value) if name == "id" else term)
    if len(ones) > 1:
        hint = "narrow it by " + ", ".join(sorted(known))
        raise InvalidRequest(f"names two things: {ones[0]} and {ones[1]}", field="q", hint=hint)
    places = [narrowing.pop(it, None) for it in (_CONTEXT, _KIND, _STATUS)]
    if places[1] is not None and places[1] not in KINDS:
        raise InvalidRequest(f"no kind is called {places[1][:40]!r}", field="q", hint=f"known: {', '.join(KINDS)}")
    return _Wanted(ones[0] if ones else None, narrowing, *places)


class Finder:
    """Answers `Find`. A context that does not answer in time is named, and delays no other."""

    def __init__(
        self,
        contexts: Mapping[str, ContextSettings],
        sources: Sources,
        bus: QueryBus,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._contexts, self._sources, self._bus, self._patience_s = contexts, sources, bus, patience_s

    def answer(self) -> QueryBus:
        """Register with the bus; returns it."""
        self._bus.handles(Find)(self.find)
        return self._bus

    async def find(self, asked: Find) -> FoundRows:
        """Find rows everywhere."""
        wanted, unread = _sorted(search.parse(asked.text)), dict[str, str]()
        names: Iterable[str] = self._contexts
        if wanted.contexts is not None:
            names = [of_context(self._contexts, wanted.contexts).name]
        by_field: Sequence[UUID] = ()
        one = wanted.one
        if one and one.name:
            having = [name for name, it in self._contexts.items() if _fields(it, one.name)]
            ids = await everywhere(having, lambda name: self._by_field(name, one), self._patience_s)
            by_field = [id for found in ids.answers.values() for id in found]
            unread |= ids.unread
        found = await everywhere(names, lambda name: self._in_context(name, wanted, by_field), self._patience_s)
        rows = [row for part in found.answers.values() for row in part]
        rows.sort(key=lambda it: it.at or EARLIEST, reverse=True)
        cut = len(rows) > SHOWN or any(len(part) >= ROWS for part in found.answers.values())
        return FoundRows(asked=asked.text, rows=rows[:SHOWN], cut=cut, unread={**unread, **found.unread})

    # --- one context ---

    @asynccontextmanager
    async def _connected(self, name: str) -> AsyncIterator[Connection]:
        async with self._sources(self._contexts[name]) as source, source() as conn:
            yield conn

    async def _by_field(self, name: str, term: Term) -> Sequence[UUID]:
        """The ids of the newest events whose payload has a value. Each field has an index."""
        found: list[UUID] = []
        async with self._connected(name) as conn:
            for type_, path in _fields(self._contexts[name], term.name):
                rows = await conn.execute(
                    found_by(type_, path), {"value": term.value, "limit": ROWS}, prepare=False
                )
                found += [id for (id,) in await rows.fetchall()]
        return found

    async def _in_context(self, name: str, wanted: _Wanted, by_field: Sequence[UUID]) -> list[FoundRow]:
        ids = await self._ids(name, wanted.one, by_field)
        found: list[FoundRow] = []
        for kind in KINDS.values():
            if wanted.kind in (None, kind.path) and kind.fits(self._contexts[name]):
                rows = await self._of_kind(name, kind, wanted, ids.get(kind.path, ()))
                found += [_shown(name, kind, row) for row in rows]
        return found

    async def _ids(self, name: str, term: Term | None, by_field: Sequence[UUID]) -> dict[str, list[str]]:
        """The ids of rows that begin with a word, or that are about events which a field has found; by kind."""
        bounds = search.ids_from(term.value) if term and not term.name else None
        if bounds is None and not by_field:
            return {}
        low, high = bounds or (None, None)
        found: dict[str, list[str]] = {}
        async with self._connected(name) as conn:
            asked = {"low": low, "high": high, "ids": list(by_field), "limit": ROWS}
            rows = await conn.execute(statement("session/find_ids"), asked, prepare=False)
            pairs = await rows.fetchall()
        for kind, id in pairs:
            found.setdefault(kind, []).append(id)
        return found

    async def _of_kind(self, name: str, kind: Kind, wanted: _Wanted, ids: Sequence[str]) -> Sequence[Row]:
        filters = {word: it for it in kind.filters for word in it.words if word != "id"}
        late = {"since", "until"}
        if {*wanted.narrowing} - {*filters} - late:
            return []
        states = kind.states if wanted.status is None else [it for it in kind.states if it == wanted.status]
        if not states:
            return []
        values = dict[str, Any]()
        for word, value in wanted.narrowing.items():
            if word in filters:
                values |= _value(kind, filters[word], value)
        found: dict[str, Row] = {}
        for more in _ways(kind, wanted.one):
            for row in await self._listed(name, kind, values | more, states):
                found[str(row["id"])] = row
        for id in [it for it in ids if it not in found][:ROWS]:
            one = await self._bus.ask_async(GetRow(kind=kind.path, context=name, id=kind.key(id)))
            if not isinstance(one, Nothing) and _fits(kind, one.value, wanted, filters, states):
                found[id] = one.value
        return [row for row in found.values() if _in_time(kind, row, wanted)][:ROWS]

    async def _listed(
        self, name: str, kind: Kind, values: Mapping[str, Any], states: Sequence[str]
    ) -> Sequence[Row]:
        try:
            which = kind.wanted(values, states)
        except RelayError:
            return []  # what is no id of this kind names none of its rows
        asked = FindRows(kind=kind.path, context=name, wanted=which, limit=ROWS, thorough=False)
        page: Page[Row] = (await self._bus.ask_async(asked)).unwrap()
        return page.items


def _fields(context: ContextSettings, name: str) -> list[tuple[str, str]]:
    """The event types and fields that a name means."""
    return [
        (type_, path) for type_, paths in context.search.items() for path in paths if name in search.names_of(path)
    ]


def _ways(kind: Kind, term: Term | None) -> list[dict[str, Any]]:
    """The filters of which a word may be the value, each for itself."""
    if term is None:
        return [{}]
    found: list[dict[str, Any]] = []
    for it in kind.filters:
        if "id" in it.words:
            first, colon, rest = term.word.partition(":")
            if not it.rest_of:
                found.append({it.name: term.word})
            elif colon and rest:
                found.append({it.rest_of: first, it.name: rest})
            else:
                found.append({it.name: term.word})
    return found


def _value(kind: Kind, it: Filter, text: str) -> dict[str, Any]:
    if it.form == "time":
        return {it.name: _time(text)}
    rest = next((other for other in kind.filters if other.rest_of == it.name), None)
    if rest is None:
        return {it.name: text}
    first, colon, id = text.partition(":")
    return {it.name: first, **({rest.name: id} if colon else {})}


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(absolute(text))
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{text[:40]!r} is not a time", field="q", hint="write 6h, 90d or 2026-01-31"
        ) from None


def _in_time(kind: Kind, row: Row, wanted: _Wanted) -> bool:
    at: datetime | None = row.get(kind.began)
    since, until = (wanted.narrowing.get(it) for it in ("since", "until"))
    return (since is None or (at is not None and at >= _time(since))) and (
        until is None or (at is not None and at < _time(until))
    )


def _fits(kind: Kind, row: Row, wanted: _Wanted, filters: Mapping[str, Filter], states: Sequence[str]) -> bool:
    """Whether a row that an id has found is what the other terms find."""
    if row["status"] not in states:
        return False
    for word, value in wanted.narrowing.items():
        it = filters.get(word)
        if it is None or it.form == "time":
            continue
        if it.reasons:
            code = row.get("reason_code") or row.get("error_code")
            if value != code and value not in (row.get(kind.text[1]) or ""):
                return False
        elif not search.fits(value, str(row.get(it.column or it.name))) and not value.startswith(
            f"{row.get(it.name)}:"
        ):
            return False
    return True


def _shown(context: str, kind: Kind, row: Row) -> FoundRow:
    return FoundRow(
        context=context,
        kind=kind.path,
        id=str(row["id"]),
        status=row["status"],
        type=row.get("event_type") or row.get("type"),
        about=row.get("subscription") or row.get("queue"),
        key=row.get("partition_key") or row.get("concurrency_key"),
        at=row.get(kind.began),
        reason=row.get(kind.text[1]),
    )
