"""`relay tasks`: look at background tasks, cancel those that have not begun, run failed ones again."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from relay.adapters.postgres.task_operations import PostgresTaskOperations, TaskFilter
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
    with_options,
)
from relay.commands.operate import Outcome
from relay.commands.operate_tasks import OperateTasks
from relay.domain.operators import Operator
from relay.domain.tasks import UnknownTask

app = typer.Typer(help="Tasks: list, show, retry failed ones, cancel waiting ones.", no_args_is_help=True)


class Status(Enum):
    """Where a task stands. ``delivered`` ones wait for a worker or for their next attempt."""

    PENDING = "pending"
    DELIVERED = "delivered"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_UNFINISHED: Final = (Status.PENDING, Status.DELIVERED, Status.RUNNING, Status.FAILED)
_FILTER: Final[Options] = {
    "type": (Annotated[str | None, typer.Option("--type", help="Of this type.")], None),
    "queue": (Annotated[str | None, typer.Option("--queue", help="Of this queue.")], None),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Of this correlation id.")], None),
    "since": (Annotated[str | None, typer.Option("--since", help="Scheduled since: 90m, 2d, or a time.")], None),
    "error": (Annotated[str | None, typer.Option("--error", help="Its last error holds this text.")], None),
}
_ACTING: Final[Options] = {
    "ids": (Annotated[list[UUID] | None, typer.Argument(help="Ids of tasks.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="All that it can be done to.")], False),
    **_FILTER,
    **ACTING,
}
Action = Callable[[OperateTasks, Sequence[UUID], Operator], Awaitable[Outcome]]

_COLUMNS: Final = columns(
    "context", "id", "status", "type", "queue", "priority", "attempts", "created_at", "last_error"
)


@app.command("list")
@with_options(_FILTER)
def list_(
    *,
    status: Annotated[list[Status], typer.Option("--status", help="Unfinished and failed if not given.")] = [],  # noqa: B006
    everything: Annotated[bool, typer.Option("--all", help="Completed and cancelled ones too.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Show so many, the newest first.")] = 50,
    context: ContextOption = None,
    as_json: JsonOption = False,
    options: dict[str, Any],
) -> None:
    """List tasks, payloads left out. Status 1 if a database does not answer."""
    wanted = _filter(options, tuple(Status) if everything else tuple(status) or _UNFINISHED)
    list_found(
        context,
        lambda source: PostgresTaskOperations(source).find(wanted, limit),
        _COLUMNS,
        "No such tasks.",
        as_json=as_json,
    )


@app.command()
def show(
    id: Annotated[UUID, typer.Argument(help="The task.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload too.")] = False,
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one task: how far it is, its last error, who did what."""
    _, url = _context(context)
    detail = ask(url, lambda source: PostgresTaskOperations(source).get(id))
    if detail is None:
        raise UnknownTask(f"there is no task {id}", hint="relay tasks list --all")
    fields = {**asdict(detail.task), "metadata": dict(detail.metadata), "history": list(detail.history)}
    if payload:
        fields["payload"] = json.loads(detail.payload) if as_json else detail.payload
    print_one(fields, as_json=as_json)


@app.command()
@with_options(_ACTING)
def retry(*, options: dict[str, Any]) -> None:
    """Run failed tasks again, with new attempts; by id cancelled ones too."""
    _act("run again", OperateTasks.retry, (Status.FAILED,), options)


@app.command()
@with_options(_ACTING)
def cancel(*, options: dict[str, Any]) -> None:
    """Give up tasks that do not run: pending ones, and those that wait for a worker or their next attempt."""
    _act("cancelled", OperateTasks.cancel, (Status.PENDING, Status.DELIVERED), options)


def _act(done: str, action: Action, statuses: tuple[Status, ...], options: dict[str, Any]) -> None:
    """Find the chosen tasks, ask, act in one transaction, answer id by id."""
    where = _context(options["context"])
    found = find_chosen(options, _FILTER, lambda: _select(where[1], _filter(options, statuses), options["limit"]))
    act_on(
        where,
        found,
        "tasks",
        done,
        lambda source, ids, by: action(OperateTasks(PostgresTaskOperations(source)), ids, by),
        options,
    )


def _select(url: str, wanted: TaskFilter, limit: int) -> Sequence[UUID]:
    page = ask(url, lambda source: PostgresTaskOperations(source).find(wanted, limit))
    return [UUID(found.id) for found in page.all_of(limit)]


def _filter(options: dict[str, Any], statuses: tuple[Status, ...]) -> TaskFilter:
    return TaskFilter(
        statuses=tuple(status.value for status in statuses),
        type=options["type"],
        queue=options["queue"],
        correlation_id=as_uuid(options["correlation"], "--correlation"),
        since=as_time(options["since"], "--since"),
        error=options["error"],
    )


def _context(name: str | None) -> tuple[str, str]:
    return one_context(name, lambda _: True)
