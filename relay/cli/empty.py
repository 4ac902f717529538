"""What a list says when it finds nothing: what was looked for, and what else there is that it does not show."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, get_args

from relay.adapters.postgres.paging import Page, Row, counted
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.sql import statement
from relay.cli.operating import asked, connecting
from relay.domain.errors import RelayError
from relay.domain.reasons import frequent
from relay.settings import ContextSettings

if TYPE_CHECKING:
    from relay.cli.found import Things

#: What takes longer to count is not counted, in milliseconds.
_LIMIT_MS: Final = "2000"
_MAX_NAMES: Final = 8
#: Among so many rows codes are looked for.
_NEWEST: Final = 1_000


@dataclass(frozen=True, slots=True)
class Absence:
    """What a context has instead, counted; None where counting took too long.

    ``others``: what the same filter finds in each of the other states. ``unfiltered``: what the same states hold
    without the filter; None without a filter. ``codes``: how often each code is among the newest of these, if the
    filter asks for one.
    """

    others: Mapping[str, int | None]
    unfiltered: int | None = None
    codes: Sequence[tuple[str, int]] = ()


async def instead(
    things: Things, context: ContextSettings, options: Mapping[str, Any], states: Sequence[Enum]
) -> Absence:
    """Count what a list does not show. Never fails."""
    others = {}
    for state in things.states:
        if state not in states:
            others[state.value] = await _count(things, context, things.wanted({**options}, (state,)))
    if not _said(things, options):
        return Absence(others)
    all_of_it = {**options, **{name: default for name, (_, default) in things.filters.items()}}
    option, field = things.text
    page = await _page(things, context, things.wanted(all_of_it, states), _NEWEST if options[option] else 1)
    if page is None or not options[option]:
        return Absence(others, None if page is None else page.total)
    return Absence(others, page.total, frequent(row[field] for row in page.items))


async def _count(things: Things, context: ContextSettings, wanted: object) -> int | None:
    page = await _page(things, context, wanted, 1)
    return None if page is None else page.total


async def _page(things: Things, context: ContextSettings, wanted: object, limit: int) -> Page[Row] | None:
    try:
        return await asked(context, things.find(context=context.name, wanted=wanted, limit=limit), _hurried)
    except RelayError:
        return None


@asynccontextmanager
async def _hurried(context: ContextSettings) -> AsyncIterator[Source]:
    async with connecting(context) as source:
        async with source() as conn:
            await conn.execute(statement("session/limit"), {"limit": _LIMIT_MS, "local": False})
        yield source


def told(
    things: Things, options: Mapping[str, Any], states: Sequence[Enum], absences: Mapping[str, Absence]
) -> str:
    """Say that there is nothing, of what, and what there is instead."""
    which = "" if len(states) == len(things.states) else f"{_either([state.value for state in states])} "
    said = _said(things, options)
    places = [*absences][:_MAX_NAMES]
    more = f" and {len(absences) - len(places)} more" if len(absences) > len(places) else ""
    found = [f"No {which}{things.called}{f' with {said}' if said else ''} in {', '.join(places)}{more}."]
    if unfiltered := sum(it.unfiltered or 0 for it in absences.values()):
        found.append(f"Without the filter: {counted(unfiltered)} {which}{things.called}.")
    codes: Counter[str] = Counter()
    for it in absences.values():
        codes.update(dict(it.codes))
    if codes:
        named = ", ".join(f"{code} {count}" for code, count in codes.most_common(_MAX_NAMES))
        found.append(f"Their codes: {named}.")
    hidden = [
        _hidden(state.value, [it.others.get(state.value, 0) for it in absences.values()])
        for state in things.states
    ]
    if any(hidden):
        found.append(f"Not shown: {', '.join(filter(None, hidden))}.")
    return "\n".join(found)


def _hidden(state: str, counts: Sequence[int | None]) -> str:
    if not any(counts) and None not in counts:
        return ""
    count = "some" if None in counts else counted(sum(filter(None, counts)))
    return f"{count} {state} (--status {state})"


def _either(states: Sequence[str]) -> str:
    return " or ".join([", ".join(states[:-1]), states[-1]] if len(states) > 1 else states)


def _said(things: Things, options: Mapping[str, Any]) -> str:
    """Return the filters as they were typed."""
    found = []
    for name, (kind, default) in things.filters.items():
        values = options[name] if isinstance(options[name], list | tuple) else [options[name]]
        if options[name] != default and options[name]:
            flag = get_args(kind)[1].default  # typer reads the first name there
            found += [f"{flag} {it.value if isinstance(it, Enum) else it}" for it in values]
    return " ".join(found)
