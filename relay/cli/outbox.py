"""`relay outbox`: look at events, retry failed ones, replay published ones. The relay then publishes them."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import Enum
from typing import Annotated, Any, Final

import typer

from relay.adapters.postgres.backlogs import PostgresBacklogReader
from relay.adapters.postgres.operating import EventFilter
from relay.adapters.postgres.pool import Source
from relay.cli.found import LISTING, Things, print_one, reason_option
from relay.cli.operating import (
    ACTING,
    ContextOption,
    JsonOption,
    Options,
    as_id,
    as_time,
    ask,
    print_json,
    with_options,
)
from relay.cli.progress import bar
from relay.cli.tables import View, columns
from relay.domain.errors import InvalidRequest, NotPublishable
from relay.domain.operators import Outcome
from relay.ops.rows import Act, FindEvents, GetEvent, ReplayEvents, RetryEvents
from relay.settings import ContextSettings

#: How often to check whether events are published, in seconds.
_LOOK_EVERY_S: Final = 0.2
app = typer.Typer(help="Events: list, show, retry failed ones, replay published ones.", no_args_is_help=True)


class Status(Enum):
    """The state of an event."""

    WAITING = "waiting"
    FAILING = "failing"
    DEAD = "dead"
    PUBLISHED = "published"


_FILTER: Final[Options] = {
    "event_type": (Annotated[str | None, typer.Option("--event-type", help="Only this type.")], None),
    "aggregate": (
        Annotated[str | None, typer.Option("--aggregate", help="Only this aggregate: TYPE:ID, or TYPE.")],
        None,
    ),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Only this correlation id.")], None),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Only those that happened since: 90m, 2d, or a time.")],
        None,
    ),
    "until": (
        Annotated[str | None, typer.Option("--until", help="Only those that happened before: 10m, or a time.")],
        None,
    ),
    "error": (Annotated[str | None, reason_option("--error")], None),
}
_FAILED: Final = (Status.DEAD, Status.FAILING)
_ACTING: Final[Options] = {
    "ids": (Annotated[list[str] | None, typer.Argument(help="Ids of events.")], None),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Print how many, and change nothing.")], False),
    **_FILTER,
    **ACTING,
    "wait": (
        Annotated[bool, typer.Option("--wait", help="Wait until they are published. Ctrl-C only ends the wait.")],
        False,
    ),
}
_EVERY: Final[Options] = {
    "everything": (Annotated[bool, typer.Option("--all", help="Every dead or failing event.")], False)
}


def _filter(options: dict[str, Any], statuses: tuple[Status, ...]) -> EventFilter:
    kind, _, aggregate_id = (options["aggregate"] or "").partition(":")
    return EventFilter(
        statuses=[status.value for status in statuses],
        event_type=options["event_type"],
        aggregate_type=kind or None,
        aggregate_id=aggregate_id or None,
        correlation_id=as_id(options["correlation"], "--correlation"),
        since=as_time(options["since"], "--since"),
        until=as_time(options["until"], "--until"),
        error=options["error"],
    )


_EVENTS: Final = Things(
    one=GetEvent,
    find=FindEvents,
    filters=_FILTER,
    wanted=_filter,
    view=View(
        columns={
            **columns("context", "id", "status", "occurred_at", "error_code"),
            "attempts": "publish_attempts",
            "event type": "event_type",
            "key": "partition_key",
            "error": "publish_error",
        },
        lead=3,
    ),
    more=(
        *("seq", "aggregate_type", "aggregate_id", "event_version", "correlation_id", "causation_id", "topic"),
        *("stream", "published_at", "available_at", "dead_at", "published_stream", "published_seq", "generation"),
    ),
    called="events",
    states=Status,
    text=("error", "publish_error"),
)


@app.command("list")
@with_options(LISTING | _FILTER)
def list_(
    *,
    status: Annotated[list[Status], typer.Option("--status", help="Dead and failing events if not given.")] = [],  # noqa: B006
    options: dict[str, Any],
) -> None:
    """List events without their payloads. Status 1 if a database does not answer."""
    _EVENTS.list(options, tuple(status) or _FAILED)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="The event, by its id.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload too.")] = False,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one event: its status, its copy in the stream, and who did what."""
    missing = NotPublishable(f"there is no event {id}", hint="relay outbox list")
    fields = _EVENTS.get(as_id(id, "id"), context, missing)
    text = fields.pop("payload")
    print_one(fields, {"payload": json.loads(text) if as_json else text} if payload else {}, as_json=as_json)


@app.command()
@with_options(_ACTING | _EVERY)
def retry(*, options: dict[str, Any]) -> None:
    """Retry failed events, with new attempts and a new back-off. The business rows do not change."""
    _act("published", RetryEvents, _FAILED, options)


@app.command()
@with_options(_ACTING)
def replay(*, options: dict[str, Any]) -> None:
    """Publish events once more, to every consumer of the stream. Consumers recognise events by their id."""
    if options["error"] is not None:
        raise InvalidRequest("a published event has no error", field="--error")
    _act("published once more", ReplayEvents, (Status.PUBLISHED,), options)


def _act(done: str, action: type[Act], statuses: tuple[Status, ...], options: dict[str, Any]) -> None:
    options["ids"] = [as_id(id, "id") for id in options["ids"] or ()]
    if not options["dry_run"]:
        wait = options["wait"]
        reported = done if wait else f"to be {done}"
        _EVENTS.act(done, action, options, statuses, reported, *((_wait,) if wait else ()))
        return
    found, ids = _EVENTS.choose(options, statuses)
    context = found.name
    if options["as_json"]:
        print_json({"context": context, "action": done, "dry_run": True, "count": len(ids)})
    else:
        print(f"{context}: {len(ids)} events would be {done}")


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
