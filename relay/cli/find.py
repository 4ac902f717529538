"""`relay find`: rows of all kinds in all contexts, by one line."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated, Final

import typer

from relay.bus import QueryBus
from relay.cli.options import asking, print_json
from relay.cli.tables import View, columns, print_rows
from relay.ops.find import Find, Finder, FoundRows
from relay.ops.handlers import RowHandlers
from relay.settings import load_settings

_VIEW: Final = View(
    columns=columns("context", "kind", "id", "status", "at", "type", "about", "key", "reason"), lead=4
)


def find(
    *,
    text: Annotated[str, typer.Argument(help="Such as 'customer:47 reason:timeout since:6h type:order_*'.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find events, messages, dead letters and tasks in all contexts, by one line as in the console.

    Words: an id or its beginning, a key, a correlation; type, reason, status, since, until, key, aggregate,
    subscription, queue, subject, kind, context; fields of payloads that `search` in relay.toml lists. Status 1
    if a context does not answer.
    """
    found = asyncio.run(_found(text))
    if as_json:
        print_json(asdict(found))
    else:
        if found.rows:
            print_rows(_VIEW, [asdict(it) for it in found.rows])
        else:
            print("found nothing; of payloads, fields are found that `search` in relay.toml lists")
        if found.cut:
            print("there may be more: narrow it")
    for name, error in found.unread.items():
        print(f"could not read {name}: {error}", file=sys.stderr)
    if found.unread:
        raise typer.Exit(1)


async def _found(text: str) -> FoundRows:
    contexts = load_settings().contexts
    bus = RowHandlers(contexts, asking).answer(QueryBus())
    return (await Finder(contexts, asking, bus).answer().ask_async(Find(text=text))).unwrap()
