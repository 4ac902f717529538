"""A page of rows: how far matches are counted, and how far a short look at a large table goes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeAlias, TypeVar

from relay.adapters.postgres.pool import Connection, Source
from relay.domain.errors import TooMany

#: Matching rows are counted at least up to this number.
MAX_COUNTED: Final = 10_001
#: How many rows a short look reads at most in each order. A page of so many takes about a twentieth of a second.
WINDOW: Final = 10_000

#: Has the planner avoid sorts, in one transaction. Before PostgreSQL 18 a plan that must sort anyway then seems so
#: dear that it would be compiled, for 0.15 s.
IN_ORDER: Final = "SELECT set_config('enable_sort', 'off', true), set_config('jit', 'off', true)"

#: A row by the names of its columns, as its statement selects it.
Row: TypeAlias = dict[str, Any]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a short look at rows ended, in the order of their times; None where it saw all of them."""

    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """The newest matching items, and the number of all matches, counted up to `MAX_COUNTED` or more.

    ``reach``: where a short look ended, by the order of rows: beyond it there may be more matches. Empty if it saw
    all rows. ``unconfirmed``: how many dead letters that nobody confirms fit besides, and are left out.
    """

    items: Sequence[Item]
    total: int
    reach: Mapping[str, Reach] = field(default_factory=dict)
    unconfirmed: int = 0

    @property
    def exact(self) -> bool:
        """Whether ``total`` is the number of all matches, and not only of those that were counted or seen."""
        return self.total < MAX_COUNTED and not self.reach

    def all_of(self, limit: int) -> Sequence[Item]:
        """Return the items, oldest first, if they are all the matches. Raises TooMany if they are not.

        An action on only a part of the selection would silently leave out the rest.
        """
        if self.total > len(self.items):
            raise TooMany(
                f"{counted(self.total)} match and the limit is {limit}",
                hint="narrow the selection or raise --limit",
            )
        return self.items[::-1]


def counted(total: int) -> str:
    """Return a number of matches for people. It may have been counted only up to a limit."""
    return f"more than {total - 1}" if total >= MAX_COUNTED else str(total)


def bounds(limit: int, before: int | None) -> dict[str, int | None]:
    """Which rows a page has, and up to which number matches are counted, as parameters of a statement."""
    return {"limit": limit, "before": before, "counted": max(MAX_COUNTED, limit + 1)}


def in_order(source: Source, wanted: Any, *, short: bool) -> Source:
    """Lend a connection that reads each state of a list by the index of its order.

    If the statistics say that hardly any event is unpublished, the planner may read dead and failing ones from
    the index of all unpublished events, and sort them. While a session holds an old snapshot, this index keeps
    all that was published since. For a filter that may need all rows, the planner is free.
    """
    if not short and filters(wanted):
        return source

    @asynccontextmanager
    async def lend() -> AsyncIterator[Connection]:
        async with source() as conn, conn.transaction():
            await conn.execute(IN_ORDER)
            yield conn

    return lend


def passes_over(wanted: Any, *, mixed: bool) -> bool:
    """Whether a list may read many rows that do not fit. An index finds the rows of a correlation.

    ``mixed``: an order in which it reads has rows of other states, too.
    """
    fields = filters(wanted)
    return "correlation_id" not in fields and (mixed or bool(fields))


def filters(wanted: Any) -> set[str]:
    """The names of the fields by which a list is filtered, other than the states."""
    return {name for name, value in asdict(wanted).items() if value is not None} - {"statuses"}


def from_oldest(text: str) -> str:
    """Turn the statement of a list round: it reads each index from the other end, and pages follow so."""
    return re.sub(r"< (?=\(?%\(before)", "> ", text.replace(" DESC", ""))


def ends(orders: Iterable[str], reach: Mapping[str, Reach]) -> dict[str, datetime | None]:
    """Where a look ends in each order, as parameters of a statement."""
    found = {order: asdict(reach.get(order, Reach())) for order in orders}
    return {f"{order}_{name}": at for order, times in found.items() for name, at in times.items()}
