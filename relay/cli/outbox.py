"""`relay outbox`: look at events, retry failed ones, replay published ones. The relay then publishes them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from relay.adapters.postgres.outbox_operations import PostgresOutboxOperations
from relay.cli.contexts import ContextOption, JsonOption
from relay.cli.found import act_on, columns, find_chosen, list_found, print_one
from relay.cli.operating import (
    ACTING,
    OneContextOption,
    Options,
    as_time,
    as_uuid,
    ask,
    one_context,
    print_json,
    with_options,
)
from relay.commands.operate import OperateOutbox, Outcome
from relay.domain.errors import InvalidRequest, NotPublishable
from relay.domain.operators import Operator
from relay.queries import EventFilter

app = typer.Typer(help="Events: list, show, retry failed ones, replay published ones.", no_args_is_help=True)


class Status(Enum):
    """Where an event stands."""

    WAITING = "waiting"
    FAILING = "failing"
    DEAD = "dead"
    PUBLISHED = "published"


_FILTER: Final[Options] = {
    "event_type": (Annotated[str | None, typer.Option("--event-type", help="Of this type.")], None),
    "aggregate": (
        Annotated[str | None, typer.Option("--aggregate", help="Of this aggregate: TYPE:ID, or TYPE.")],
        None,
    ),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Of this correlation id.")], None),
    "since": (Annotated[str | None, typer.Option("--since", help="Happened since: 90m, 2d, or a time.")], None),
    "until": (Annotated[str | None, typer.Option("--until", help="Happened before: 10m, or a time.")], None),
    "error": (Annotated[str | None, typer.Option("--error", help="Its last error holds this text.")], None),
}
_FAILED: Final = (Status.DEAD, Status.FAILING)
_ACTING: Final[Options] = {
    "ids": (Annotated[list[UUID] | None, typer.Argument(help="Ids of events.")], None),
    "dry_run": (Annotated[bool, typer.Option("--dry-run", help="Print how many, and change nothing.")], False),
    **_FILTER,
    **ACTING,
}
_EVERY: Final[Options] = {
    "everything": (Annotated[bool, typer.Option("--all", help="Every dead or failing event.")], False)
}
Action = Callable[[OperateOutbox, Sequence[UUID], Operator], Awaitable[Outcome]]

_COLUMNS: Final = {
    **columns("context", "id", "status", "event_type"),
    "key": "partition_key",
    "attempts": "publish_attempts",
    "occurred at": "occurred_at",
    "error": "publish_error",
}


@app.command("list")
@with_options(_FILTER)
def list_(
    *,
    status: Annotated[list[Status], typer.Option("--status", help="Dead and failing ones if not given.")] = [],  # noqa: B006
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many, the newest first.")] = 50,
    context: ContextOption = None,
    as_json: JsonOption = False,
    options: dict[str, Any],
) -> None:
    """List events, payloads left out. Status 1 if a database does not answer."""
    wanted = _filter(options, tuple(status) or _FAILED)
    list_found(
        context,
        lambda source: PostgresOutboxOperations(source).find(wanted, limit),
        _COLUMNS,
        "No such events.",
        as_json=as_json,
    )


@app.command()
def show(
    id: Annotated[UUID, typer.Argument(help="The event.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload too.")] = False,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one event: its status, its copy in the stream, and who did what."""
    _, url = _context(context)
    detail = ask(url, lambda source: PostgresOutboxOperations(source).get(id))
    if detail is None:
        raise NotPublishable(f"there is no event {id}", hint="relay outbox list")
    fields = {**asdict(detail.event), "headers": dict(detail.headers), "history": list(detail.history)}
    if payload:
        fields["payload"] = json.loads(detail.payload) if as_json else detail.payload
    print_one(fields, as_json=as_json)


@app.command()
@with_options(_ACTING | _EVERY)
def retry(*, options: dict[str, Any]) -> None:
    """Retry failed events: attempts and back-off start anew, the business rows do not change."""
    _act("published", OperateOutbox.retry, _FAILED, options)


@app.command()
@with_options(_ACTING)
def replay(*, options: dict[str, Any]) -> None:
    """Publish events once more, to every consumer of the stream. Consumers deduplicate events by id."""
    if options["error"] is not None:
        raise InvalidRequest("a published event has no error", field="--error")
    _act("published once more", OperateOutbox.replay, (Status.PUBLISHED,), options)


def _act(done: str, action: Action, statuses: tuple[Status, ...], options: dict[str, Any]) -> None:
    """Find the chosen events, ask, act in one transaction, answer id by id."""
    where = _context(options["context"])
    found = find_chosen(options, _FILTER, lambda: _select(where[1], _filter(options, statuses), options["limit"]))
    if options["dry_run"]:
        _print_count(where[0], done, len(found), as_json=options["as_json"])
        return
    act_on(
        where,
        found,
        "events",
        done,
        lambda source, ids, by: action(OperateOutbox(PostgresOutboxOperations(source)), ids, by),
        options,
        reported=f"to be {done}",
    )


def _print_count(context: str, action: str, count: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"context": context, "action": action, "dry_run": True, "count": count})
    else:
        print(f"{context}: {count} events would be {action}")


def _select(url: str, wanted: EventFilter, limit: int) -> Sequence[UUID]:
    page = ask(url, lambda source: PostgresOutboxOperations(source).find(wanted, limit))
    return [UUID(found.id) for found in page.all_of(limit)]


def _filter(options: dict[str, Any], statuses: tuple[Status, ...]) -> EventFilter:
    kind, _, aggregate_id = (options["aggregate"] or "").partition(":")
    return EventFilter(
        statuses=tuple(status.value for status in statuses),
        event_type=options["event_type"],
        aggregate_type=kind or None,
        aggregate_id=aggregate_id or None,
        correlation_id=as_uuid(options["correlation"], "--correlation"),
        since=as_time(options["since"], "--since"),
        until=as_time(options["until"], "--until"),
        error=options["error"],
    )


def _context(name: str | None) -> tuple[str, str]:
    return one_context(name, lambda _: True)
