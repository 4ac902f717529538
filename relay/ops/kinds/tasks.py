"""Background tasks."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from relay.adapters.postgres.row_operations import PostgresTaskOperations, TaskFilter
from relay.domain.tasks import UnknownTask
from relay.ops.kinds.model import Action, Column, Filter, Kind
from relay.ops.kinds.shared import CHAIN, CORRELATION, ERROR, EXPIRES_AT, EXPIRES_IN, since

TASKS: Final = Kind(
    path="tasks",
    command="tasks",
    title="Tasks",
    one="task",
    many="tasks",
    whole="Tasks",
    about="Work that services do later, as rows of their own transactions.",
    empty="A task is scheduled with schedule(session, function, argument), in the transaction of a change.",
    listing="List tasks without their payloads, the newest first.",
    shows="its state, its last error, and who did what",
    store=PostgresTaskOperations,
    filter=TaskFilter,
    id=UUID,
    states=("pending", "delivered", "running", "completed", "failed", "cancelled", "expired"),
    usual=("pending", "delivered", "running", "completed", "failed", "cancelled", "expired"),
    urgent=("pending", "delivered", "running", "failed"),
    aged="created_at",
    order="seq",
    filters=(
        Filter(
            name="type", label="Type", meaning="Only this type, or those that begin so: mail_*", words=("type",)
        ),
        Filter(name="queue", label="Queue", meaning="Only this queue", words=("queue",)),
        CORRELATION,
        since("scheduled"),
        ERROR,
    ),
    columns=(
        Column(name="id", label="Id", show="row"),
        Column(name="seq", label="Sequence", show="number", on_page=False),
        Column(name="status", label="State", show="state", on_page=False),
        Column(name="type", label="Type", show="filter", on_page=False),
        Column(name="queue", label="Queue"),
        Column(name="priority", label="Priority", show="number"),
        Column(name="waits_for", label="Waits for"),
        Column(name="attempts", label="Attempts", show="number"),
        Column(name="created_at", label="Made", show="time"),
        Column(name="available_at", label="Due", show="time"),
        EXPIRES_AT,
        Column(name="delivered_at", label="Delivered", show="time"),
        Column(name="started_at", label="Started", show="time"),
        Column(name="next_attempt_at", label="Next attempt", show="time"),
        Column(name="finished_at", label="Ended", show="time"),
        Column(name="concurrency_key", label="Concurrency key"),
        Column(name="error_code", label="Code", show="code", on_page=False),
        Column(name="last_error", label="Error", show="reason", typed="error", on_page=False),
        *CHAIN,
    ),
    table=(
        *("id", "status", "created_at", "error_code", "attempts", "type", "queue", "priority"),
        "last_error",
    ),
    listed=(
        *("status", "type", "id", "queue", "created_at"),
        Column(
            name="finished_at", label="Next or ended", show="time", instead=("next_attempt_at", "available_at")
        ),
        "attempts",
        "last_error",
    ),
    actions=(
        Action(
            name="retry",
            label="Run again",
            about="Run failed tasks again, with new attempts. By id also cancelled and expired tasks.",
            past="run again",
            done="will be run again",
            states=("failed",),
            fits=("failed", "cancelled", "expired"),
            arguments=(EXPIRES_IN,),
        ),
        Action(
            name="cancel",
            label="Cancel",
            about="Cancel tasks that do not run: pending ones, "
            "and those that wait for a worker or their next attempt.",
            past="cancelled",
            done="is cancelled",
            states=("pending", "delivered"),
            fits=("pending", "delivered"),
            harsh=True,
            undo="reopen",
        ),
        Action(
            name="reopen",
            label="Reopen",
            about="Let cancelled or expired tasks wait again, with their time and the attempts that they had.",
            past="reopened",
            done="waits again",
            states=("cancelled", "expired"),
            fits=("cancelled", "expired"),
            arguments=(EXPIRES_IN,),
        ),
    ),
    text=("error", "last_error"),
    trouble="Its last error",
    heading="type",
    began="created_at",
    unknown=lambda id: UnknownTask(f"there is no task {id}", hint="relay tasks list --all"),
)
