"""`relay inbox`: look at messages in the inbox, try them now, hold or discard them, replay old ones into it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.paging import Row
from relay.cli.options import (
    ACTING,
    ContextOption,
    JsonOption,
    Options,
    as_time,
    one_context,
    operator,
    print_json,
    query_context,
    run_command,
    visiting_contexts,
    with_options,
)
from relay.cli.progress import bar
from relay.cli.rows import group_of, view_of
from relay.cli.tables import print_rows
from relay.ops.kinds import MESSAGES, REPLAYS
from relay.ops.requests import ListReplays, StartReplay, StopReplay
from relay.settings import ContextSettings

app: Final = group_of(MESSAGES)
#: How often to look how far a replay has come, in seconds.
_LOOK_EVERY_S: Final = 0.5
_VIEW: Final = view_of(REPLAYS, lead=4)


class Handled(StrEnum):
    """What becomes of messages that the subscription has handled."""

    SKIP = "skip"
    AGAIN = "again"


_REPLAY: Final[Options] = {
    "subscription": (
        Annotated[str, typer.Option("--subscription", help="Into the inbox of this one, and no other.")],
        ...,
    ),
    "handled": (
        Annotated[Handled, typer.Option("--handled", help="Those that it has handled: skip, or handle again.")],
        ...,
    ),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Those stored since: 90m, 2d, or a time.")],
        None,
    ),
    "until": (Annotated[str | None, typer.Option("--until", help="Those stored before; now if not given.")], None),
    "key": (Annotated[str | None, typer.Option("--key", help="Only this partition key.")], None),
    "event_type": (Annotated[str | None, typer.Option("--type", help="Only this type.")], None),
    "rate": (Annotated[int, typer.Option("--rate", min=1, max=10_000, help="Messages a second.")], 100),
    "wait": (
        Annotated[bool, typer.Option("--wait", help="Show progress until it ends. Ctrl-C only ends the wait.")],
        False,
    ),
    **{name: ACTING[name] for name in ("note", "actor", "context", "as_json")},
}


@app.command("replay")
@with_options(_REPLAY)
def replay(*, options: dict[str, Any]) -> None:
    """Put old messages into the inbox of one subscription. Workers do it; no other consumer sees them.

    They come from the stream, and what it has dropped from the outbox and the archive of its producer, in order.
    """
    context = one_context(options["context"], MESSAGES.fits)
    command = StartReplay(
        context=context.name,
        **{name: options[name] for name in ("subscription", "key", "event_type", "rate")},
        since=as_time(options["since"], "--since"),
        until=as_time(options["until"], "--until"),
        again=options["handled"] is Handled.AGAIN,
        by=operator(options["actor"], options["note"]),
    )
    id: int = asyncio.run(run_command(context, command))
    if options["wait"]:
        asyncio.run(_watch(context, id))
    [found] = _replays(context, id)
    if options["as_json"]:
        print_json({"context": context.name, **found})
    else:
        print(f"{context.name}: replay {id} is {found['state']}: relay inbox replays")


@app.command("replays")
def replays(context: ContextOption = None, as_json: JsonOption = False) -> None:
    """List replays, the newest first, and how far each has come. Status 1 if a database does not answer."""
    with visiting_contexts(context, _replays) as answers:
        rows = [{"context": name, **row} for name, found in answers.items() for row in found]
        if as_json:
            answers.print_json(rows)
            return
        if rows:
            print_rows(_VIEW, rows)
        elif answers:
            print("Nothing was replayed into an inbox.")
        if answers.failed:
            print(answers.unread())


@app.command("stop-replay")
@with_options({name: ACTING[name] for name in ("note", "actor", "context", "as_json")})
def stop_replay(
    id: Annotated[int, typer.Argument(help="The number of the replay.")], *, options: dict[str, Any]
) -> None:
    """Stop a replay. What it has put into the inbox stays there: `relay inbox discard`."""
    context = one_context(options["context"], MESSAGES.fits)
    by = operator(options["actor"], options["note"])
    asyncio.run(run_command(context, StopReplay(context=context.name, id=id, by=by)))
    print_json({"context": context.name, "id": id, "state": "stopped"}) if options["as_json"] else print(
        f"{context.name}: replay {id} is stopped"
    )


def _replays(context: ContextSettings, id: int | None = None) -> Sequence[Row]:
    rows: Sequence[Row] = asyncio.run(query_context(context, ListReplays(context=context.name, id=id)))
    return rows


async def _watch(context: ContextSettings, id: int) -> None:
    with bar(f"{context.name}: replay {id}", "read") as progress:
        while True:
            [found] = await query_context(context, ListReplays(context=context.name, id=id))
            if found["last_position"]:
                progress(min(found["position"], found["last_position"]), found["last_position"])
            if found["state"] != "running":
                return
            await asyncio.sleep(_LOOK_EVERY_S)
