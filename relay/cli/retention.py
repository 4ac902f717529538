"""`relay retention`: what is kept how long, how much of it there is, and what goes next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from relay.bus import QueryBus
from relay.cli.options import ColumnsOption, ContextOption, JsonOption, WideOption, asking, visiting_contexts
from relay.cli.rows import view_of
from relay.cli.tables import print_rows
from relay.domain.durations import duration, size
from relay.domain.retention import KeptPart
from relay.ops.kinds import RETENTION
from relay.ops.retention import ReadRetention, Retention
from relay.settings import ContextSettings, load_settings

_VIEW: Final = view_of(RETENTION, lead=5)


def retention(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    """List what is kept, how long and by which setting, how much there is, and when the next of it goes.

    Rows of tables are estimates of PostgreSQL. `never`: it is kept without an end. A setting is one of
    [contexts.…]. What all contexts share has no context. Status 1 if a database does not answer.
    """
    view, settings = _VIEW.choose(columns), load_settings()

    def ask(found: ContextSettings) -> Sequence[KeptPart]:
        bus = Retention(settings, asking).answer(QueryBus())
        return asyncio.run(bus.ask_async(ReadRetention(context=found.name))).unwrap()

    with visiting_contexts(context, ask) as found:
        rows = list(_rows(found))
        if as_json:
            found.print_json(rows)
            return
        if rows:
            print_rows(view, [_in_words(it) for it in rows], wide=wide)
        if found.failed:
            print(found.unread())


def _rows(found: Mapping[str, Sequence[KeptPart]]) -> Iterator[dict[str, Any]]:
    shared: dict[str, KeptPart] = {}
    for name, kept in found.items():
        yield from ({"context": name, **it.row()} for it in kept if not it.shared)
        shared |= {f"{it.rule.place}/{it.name}": it for it in kept if it.shared}
    yield from ({"context": None, **it.row()} for it in shared.values())


def _in_words(row: Mapping[str, Any]) -> dict[str, Any]:
    keeps, held = row["keeps"], row["size"]
    return {
        **row,
        "keeps": None if keeps is None else duration(keeps),
        "size": None if held is None else size(held),
    }
