"""What `relay dlq`, `relay outbox` and `relay tasks` have in common: list things, show one, act on many."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import typer

from relay.adapters.postgres.source import Source
from relay.cli.contexts import visit
from relay.cli.operating import ask, chosen, confirm, operator, print_fields, print_json, print_table, report
from relay.commands.operate import Outcome
from relay.domain.operators import Operator
from relay.queries import Page

Id = TypeVar("Id")
#: The field of each column, by its heading.
Columns = Mapping[str, str]
Find = Callable[[Source], Awaitable[Page[Any]]]

_HISTORY: Final = "history"


def columns(*names: str) -> Columns:
    """Return columns under the names of their fields."""
    return {name.replace("_", " "): name for name in names}


def list_found(context: str | None, find: Find, shown: Columns, nothing: str, *, as_json: bool) -> None:
    """Print what each context's database finds, or ``nothing``. Status 1 if a database does not answer."""
    pages, complete = visit(context, lambda url: ask(url, find))
    rows = [{"context": name, **asdict(found)} for name, page in pages.items() for found in page.items]
    if as_json:
        print_json(rows)
    else:
        _print_rows(rows, sum(page.total for page in pages.values()), shown, nothing)
    if not complete:
        raise typer.Exit(1)


def _print_rows(rows: list[dict[str, Any]], total: int, shown: Columns, nothing: str) -> None:
    if rows:
        print_table([*shown], [[row[name] for name in shown.values()] for row in rows])
    if not rows:
        print(nothing)
    elif total > len(rows):
        print(f"{len(rows)} of {total}; --limit shows more")


def print_one(fields: dict[str, Any], *, as_json: bool) -> None:
    """Print one thing with who did what to it, its ``history``."""
    if as_json:
        print_json(fields)
        return
    acts = [f"{entry['at']:%F %T} {entry['actor']} {entry['action']}" for entry in fields[_HISTORY]]
    print_fields({**fields, _HISTORY: "; ".join(acts)})


def find_chosen(
    options: dict[str, Any], filters: Mapping[str, object], select: Callable[[], Sequence[Id]]
) -> Sequence[Id]:
    """Return the ids given, or those that ``select`` finds by the filters given. Raises InvalidRequest."""
    chosen(options, filters)
    return options["ids"] or select()


def act_on(
    where: tuple[str, str],
    found: Sequence[Id],
    things: str,
    done: str,
    act: Callable[[Source, Sequence[Id], Operator], Awaitable[Outcome]],
    options: dict[str, Any],
    *,
    reported: str = "",
) -> None:
    """Ask whether the things found may be ``done`` (such as "discarded"), act in one transaction, answer by id.

    ``things``: what they are called. ``where``: the context and its database. ``reported``: the word for ``done``
    in the answer, if it is another.
    """
    name, url = where
    by = operator(options["actor"], options["note"])
    confirm(f"{len(found)} {things} of {name} will be {done}. Go on?", len(found), yes=options["yes"])
    outcome = ask(url, lambda source: act(source, found, by))
    report(name, reported or done, outcome, as_json=options["as_json"])
