"""`relay tasks`: look at background tasks, cancel those that have not begun, run failed ones again."""

from __future__ import annotations

import json
from enum import Enum
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from relay.adapters.postgres.operating import TaskFilter
from relay.cli.found import LISTING, Things, print_one, reason_option
from relay.cli.operating import ACTING, ContextOption, JsonOption, Options, as_id, as_time, with_options
from relay.cli.tables import View, columns
from relay.domain.tasks import UnknownTask
from relay.ops.rows import CancelTasks, FindTasks, GetTask, RetryTasks

app = typer.Typer(help="Tasks: list, show, retry failed ones, cancel waiting ones.", no_args_is_help=True)


class Status(Enum):
    """The state of a task. A ``delivered`` task waits for a worker or for its next attempt."""

    PENDING = "pending"
    DELIVERED = "delivered"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_UNFINISHED: Final = (Status.PENDING, Status.DELIVERED, Status.RUNNING, Status.FAILED)
_FILTER: Final[Options] = {
    "type": (Annotated[str | None, typer.Option("--type", help="Only this type.")], None),
    "queue": (Annotated[str | None, typer.Option("--queue", help="Only this queue.")], None),
    "correlation": (Annotated[str | None, typer.Option("--correlation", help="Only this correlation id.")], None),
    "since": (
        Annotated[str | None, typer.Option("--since", help="Only those scheduled since: 90m, 2d, or a time.")],
        None,
    ),
    "error": (Annotated[str | None, reason_option("--error")], None),
}
_ACTING: Final[Options] = {
    "ids": (Annotated[list[UUID] | None, typer.Argument(help="Ids of tasks.")], None),
    "everything": (Annotated[bool, typer.Option("--all", help="Every task for which this is possible.")], False),
    **_FILTER,
    **ACTING,
}


def _filter(options: dict[str, Any], statuses: tuple[Status, ...]) -> TaskFilter:
    return TaskFilter(
        statuses=[status.value for status in statuses],
        type=options["type"],
        queue=options["queue"],
        correlation_id=as_id(options["correlation"], "--correlation"),
        since=as_time(options["since"], "--since"),
        error=options["error"],
    )


_TASKS: Final = Things(
    one=GetTask,
    find=FindTasks,
    filters=_FILTER,
    wanted=_filter,
    view=View(
        columns={
            **columns(
                *("context", "id", "status", "created_at", "error_code", "attempts", "type", "queue", "priority")
            ),
            "error": "last_error",
        },
        lead=3,
    ),
    more=(
        *("waits_for", "available_at", "delivered_at", "started_at", "finished_at", "next_attempt_at"),
        *("correlation_id", "causation_id", "concurrency_key"),
    ),
    called="tasks",
    states=Status,
    text=("error", "last_error"),
)


@app.command("list")
@with_options(LISTING | _FILTER)
def list_(
    *,
    status: Annotated[list[Status], typer.Option("--status", help="Unfinished and failed if not given.")] = [],  # noqa: B006
    everything: Annotated[bool, typer.Option("--all", help="Completed and cancelled tasks too.")] = False,
    options: dict[str, Any],
) -> None:
    """List tasks without their payloads. Status 1 if a database does not answer."""
    _TASKS.list(options, tuple(Status) if everything else tuple(status) or _UNFINISHED)


@app.command()
def show(
    id: Annotated[UUID, typer.Argument(help="The task.")],
    payload: Annotated[bool, typer.Option("--payload", help="Show the payload too.")] = False,
    context: ContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one task: its state, its last error, who did what."""
    missing = UnknownTask(f"there is no task {id}", hint="relay tasks list --all")
    fields = _TASKS.get(id, context, missing)
    text = fields.pop("payload")
    print_one(fields, {"payload": json.loads(text) if as_json else text} if payload else {}, as_json=as_json)


@app.command()
@with_options(_ACTING)
def retry(*, options: dict[str, Any]) -> None:
    """Run failed tasks again, with new attempts. By id also cancelled tasks."""
    _TASKS.act("run again", RetryTasks, options, (Status.FAILED,))


@app.command()
@with_options(_ACTING)
def cancel(*, options: dict[str, Any]) -> None:
    """Cancel tasks that do not run: pending ones, and those that wait for a worker or their next attempt."""
    _TASKS.act("cancelled", CancelTasks, options, (Status.PENDING, Status.DELIVERED))
