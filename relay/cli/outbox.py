"""`relay outbox`: look at events, retry failed ones, replay published ones, discard unpublished ones."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.row_operations import audit
from relay.cli.controls import add_controls
from relay.cli.options import ACTING, Options, ask, operator, print_json, with_options
from relay.cli.progress import bar
from relay.cli.rows import After, RowCommands, group_of
from relay.domain.controls import What
from relay.domain.errors import NotPublishable
from relay.domain.operators import Operator, Outcome
from relay.domain.policies import Published
from relay.ops.kinds import EVENTS
from relay.settings import ContextSettings, load_settings

if TYPE_CHECKING:
    from relay.bootstrap import Context

#: How often to check whether events are published, in seconds.
_LOOK_EVERY_S: Final = 0.2
_WAIT: Final[Options] = {
    "wait": (
        Annotated[bool, typer.Option("--wait", help="Wait until they are published. Ctrl-C only ends the wait.")],
        False,
    ),
}


def _after(options: dict[str, Any]) -> After | None:
    return _wait if options["wait"] else None


def _wait(context: ContextSettings, outcome: Outcome) -> None:
    """Wait until workers have published events, with a bar on a terminal."""

    async def watch(source: Source) -> None:
        reader, count = PostgresBacklogReader(source), len(outcome.done)
        with bar(f"{context.name}: events", "published") as progress:
            while waiting := await reader.still_waiting(outcome.done):
                progress(count - waiting, count)
                await asyncio.sleep(_LOOK_EVERY_S)

    try:
        ask(context.database, watch)
    except KeyboardInterrupt:
        print("workers still publish them as soon as they can", file=sys.stderr)
        raise typer.Exit(130) from None


app: Final = group_of(EVENTS, _WAIT, _after)
_TYPE: Final[Options] = {
    "type": (
        Annotated[str | None, typer.Option("--type", help="A type of events; all publishing if not given.")],
        None,
    ),
}


def _subject(options: dict[str, Any]) -> tuple[What, str]:
    return (What.PUBLISHING, "") if options["type"] is None else (What.EVENT_TYPE, options["type"])


add_controls(app, _TYPE, _subject, ("pause", "resume"), lambda _: True)


@app.command("publish")
@with_options({name: ACTING[name] for name in ("note", "actor", "context", "as_json")})
def publish(id: Annotated[str, typer.Argument(help="The id of the event.")], *, options: dict[str, Any]) -> None:
    """Publish one event now, here and not by a worker, also a dead one or one that waits for its next attempt.

    Status 1 if it is unknown, published, refused, or waits for an earlier event of its key.
    """
    rows = RowCommands(EVENTS)
    row = rows.get(rows.key(id), options["context"])
    by, key = operator(options["actor"], options["note"]), UUID(str(row.get("row_id") or row["id"]))
    done = asyncio.run(_publish(row["context"], key, by))
    if options["as_json"]:
        place = {"stream": done.stream, "seq": done.seq, "duplicate": done.duplicate}
        print_json({"context": row["context"], "id": str(row["id"]), **place})
    else:
        print(f"{row['context']}: {row['id']} is in {done.stream} as {done.seq}")


async def _publish(context: str, id: UUID, by: Operator) -> Published:
    from relay.bootstrap import Application

    application = Application(load_settings(), role="cli")
    await application.start()
    try:
        parts = application.context(context)
        try:
            done = await parts.publish.publish(id)
        except NotPublishable as error:
            raise await _reason(parts, id) or error from None
        async with parts.pool.connection() as conn:
            await audit(conn, "outbox.publish", [id], by)
    finally:
        await application.stop()
    return done


async def _reason(parts: Context, id: UUID) -> NotPublishable | None:
    """Why an event could not be claimed; None if it was claimed, and the broker refused it."""
    blocks = parts.settings.publish.dead_head == "block"
    async with parts.pool.connection() as conn:
        found = await query(conn, "outbox/earlier", id=id, dead_head_blocks=blocks)
    for published, earlier in found:
        if published:
            return NotPublishable(f"event {id} is published", hint="relay outbox replay publishes it once more")
        if earlier is not None:
            text = f"event {id} waits for an earlier one of its key: {earlier}"
            return NotPublishable(text, hint="publish or retry that one first")
    return None
