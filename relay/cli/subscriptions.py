"""`relay subscriptions`: which there are, what is paused or limited; pause, resume and limit them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from relay.cli.controls import add_controls
from relay.cli.options import (
    ContextOption,
    JsonOption,
    OneContextOption,
    Options,
    WideOption,
    one_context,
    query_context,
    visiting_contexts,
)
from relay.cli.tables import View, columns, print_rows
from relay.cli.work import show_work
from relay.domain.controls import What
from relay.domain.history import Of
from relay.ops.requests import ListSubscriptions

app = typer.Typer(help="Subscriptions: list, show, pause, resume, limit, restore.", no_args_is_help=True)

_NAME: Final[Options] = {"name": (Annotated[str, typer.Argument(help="A subscription.")], ...)}
_VIEW: Final = View(
    columns={
        "context": "context",
        **columns("name", "state", "until", "by", "limit", "handler", "stream", "reason"),
    },
    lead=3,
)


@app.command("list")
def _list(context: ContextOption = None, as_json: JsonOption = False, wide: WideOption = False) -> None:
    """List the subscriptions: whether each is paused or limited, until when, by whom, and why.

    Status 1 if a database does not answer.
    """
    with visiting_contexts(
        context, lambda found: asyncio.run(query_context(found, ListSubscriptions(context=found.name)))
    ) as answers:
        rows = [{"context": name, **row} for name, found in answers.items() for row in found]
        if as_json:
            answers.print_json(rows)
            return
        if rows:
            in_force = [{**row, "limit": row["limit"] or row["configured_limit"]} for row in rows]
            print_rows(_VIEW, in_force, wide=wide)
        elif answers:
            print(f"No subscriptions in {', '.join(answers)}.")
        if answers.failed:
            print(answers.unread())


@app.command("show")
def _show(
    name: Annotated[str, typer.Argument(help="A subscription.")],
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one subscription: what waits, runs and fails, its history and settings, its pause or limit."""
    chosen = one_context(context, lambda found: name in found.subscriptions)
    show_work(chosen, Of.SUBSCRIPTION, name, as_json=as_json)


def _subject(options: dict[str, Any]) -> tuple[What, str]:
    return What.SUBSCRIPTION, options["name"]


add_controls(
    app, _NAME, _subject, ("pause", "resume", "limit", "restore"), lambda found: bool(found.subscriptions)
)
