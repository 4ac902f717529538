"""`relay audit`: what operators did, from the command line, the API and the console; one act, and its undoing."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Final

import typer

from relay.cli.options import (
    ACTING,
    JsonOption,
    OneContextOption,
    Options,
    one_context,
    operator,
    print_json,
    query_context,
    report,
    run_command,
    visiting_contexts,
    with_options,
)
from relay.cli.rows import LISTING, filter_options, filter_values, view_of
from relay.cli.tables import print_fields, print_rows
from relay.ops.kinds import AUDIT
from relay.ops.requests import GetDeed, ReadAudit, UndoDeed
from relay.settings import ContextSettings

app = typer.Typer(help="What operators did: list, show, undo.", invoke_without_command=True)

_VIEW: Final = view_of(AUDIT, lead=5)
_UNDO: Final = AUDIT.action("undo")
DeedArgument = Annotated[int, typer.Argument(min=1, help="The act, by the number of `list`.")]
_OPTIONS: Final[Options] = {**filter_options(AUDIT), **LISTING}
_SHOWN_IDS: Final = 3


@app.callback()
def _bare(called: typer.Context) -> None:
    """List the newest, unless a command follows."""
    if called.invoked_subcommand is None:
        app(["list"])


@app.command("list", help=f"{AUDIT.listing} Status 1 if a database does not answer.")
@with_options(_OPTIONS)
def _list(*, options: dict[str, Any]) -> None:
    view, wanted = _VIEW.choose(options["columns"]), filter_values(AUDIT, options)
    with visiting_contexts(options["context"], partial(_find, wanted, options["limit"])) as found:
        rows = [{"context": name, **row} for name, entries in found.items() for row in entries]
        # The newest of all contexts, in one order.
        rows = sorted(rows, key=lambda row: row["at"], reverse=True)[: options["limit"]]
        if options["as_json"]:
            found.print_json(rows)
            return
        if rows:
            print_rows(view, [{**row, "ids": _short(row["ids"])} for row in rows], wide=options["wide"])
        elif found:
            print(f"No entries of the audit log in {', '.join(found)}.")
        if found.failed:
            print(found.unread())


def _find(wanted: dict[str, Any], limit: int, settings: ContextSettings) -> Any:
    query = ReadAudit(context=settings.name, **wanted, limit=limit)
    return asyncio.run(query_context(settings, query))


def _short(ids: list[str]) -> str:
    return ", ".join(ids[:_SHOWN_IDS]) + (", …" if len(ids) > _SHOWN_IDS else "")


@app.command()
def show(id: DeedArgument, context: OneContextOption = None, as_json: JsonOption = False) -> None:
    """Show one act: who did what to which rows, when and why, and whether it was undone."""
    found = one_context(context, lambda _: True)
    row = asyncio.run(query_context(found, GetDeed(context=found.name, id=id)))
    row = {"context": found.name, **row}
    about = row.pop("about") or {}
    if as_json:
        print_json({**row, **about})
        return
    refused = "; ".join(f"{id} {code}" for id, code, *_ in about.pop("refused", ()))
    print_fields({**row, "ids": _short(row["ids"]), **about, **({"refused": refused} if refused else {})})


@app.command(_UNDO.name, help=_UNDO.about)
@with_options({name: ACTING[name] for name in ("note", "actor", "context", "as_json")})
def _undo(id: DeedArgument, *, options: dict[str, Any]) -> None:
    found = one_context(options["context"], lambda _: True)
    command = UndoDeed(context=found.name, id=id, by=operator(options["actor"], options["note"]))
    outcome = asyncio.run(run_command(found, command))
    report(found.name, _UNDO.past, outcome, as_json=options["as_json"])
