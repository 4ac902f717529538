"""`relay parked`: keys that an ordered subscription has set aside behind a dead letter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.paging import Row
from relay.cli.options import (
    ACTING,
    ColumnsOption,
    ContextOption,
    JsonOption,
    Options,
    WideOption,
    check_selection,
    confirm,
    one_context,
    operator,
    query_context,
    report,
    run_command,
    visiting_contexts,
    with_options,
)
from relay.cli.rows import view_of
from relay.cli.tables import print_rows
from relay.domain.disclosure import stack_of
from relay.domain.errors import TooMany
from relay.ops.kinds import PARKED
from relay.ops.requests import TYPED, ListParked, ReleaseKeys
from relay.settings import ContextSettings

app = typer.Typer(help="Keys set aside behind a dead letter: list, release.", no_args_is_help=True)

_ACTION: Final = PARKED.action("release")
_VIEW: Final = view_of(PARKED, lead=4)
_RELEASE: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="Keys, by the names of `list`.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every parked key of the context.")], False),
    "subscription": (Annotated[str | None, typer.Option("--subscription", help="Only this subscription.")], None),
    **ACTING,
}


@app.command("list", help=f"{PARKED.listing} Status 1 if a database does not answer.")
def _list(
    context: ContextOption = None,
    as_json: JsonOption = False,
    columns: ColumnsOption = None,
    wide: WideOption = False,
) -> None:
    view = _VIEW.choose(columns)
    with visiting_contexts(context, _listed) as found:
        rows = [
            {"context": name, **key, "reason": stack_of(key["reason"])[0]}
            for name, keys in found.first(found).items()
            for key in keys
        ]
        if as_json:
            found.print_json(rows)
            return
        if rows:
            print_rows(view, rows, wide=wide)
        elif found:
            print(f"No parked keys in {', '.join(found)}.")
        if found.failed:
            print(found.unread())


def _listed(found: ContextSettings) -> Sequence[Row]:
    return _first(found, TYPED)


def _first(found: ContextSettings, most: int, subscription: str | None = None) -> Sequence[Row]:
    query = ListParked(context=found.name, subscription=subscription, limit=most + 1)
    return asyncio.run(query_context(found, query))


@app.command(_ACTION.name, help=_ACTION.about)
@with_options(_RELEASE)
def _release(*, options: dict[str, Any]) -> None:
    check_selection(options, ["everything"])
    found = one_context(options["context"], lambda found: bool(found.subscriptions))
    by = operator(options["actor"], options["note"])
    keys, subscription, limit = options["ids"] or None, options["subscription"], options["limit"]
    counted = None if keys else [f"{it['subscription']}/{it['key']}" for it in _first(found, limit, subscription)]
    count = len(keys or counted or ())
    if count > limit:
        raise TooMany(f"{count} or more keys and the limit is {limit}", hint="name keys or raise --limit")
    of = f"{found.name}{f', subscription {subscription},' if subscription else ''}"
    confirm(f"{count} keys of {of} will be {_ACTION.past}. Go on?", count, yes=options["yes"])
    command = ReleaseKeys(context=found.name, keys=keys, subscription=subscription, counted=counted, by=by)
    outcome = asyncio.run(run_command(found, command))
    report(found.name, _ACTION.past, outcome, as_json=options["as_json"])
