"""Operators' actions on tasks: cancel tasks that do not run, run failed tasks again (building blocks §2.7).

As in `relay.commands.operate`, an action is one transaction with its row in the audit log. It answers for each id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from relay.commands.operate import Audited, Outcome
from relay.domain.errors import RelayError
from relay.domain.operators import Operator
from relay.domain.tasks import NotCancellable, NotRetryable, UnknownTask

_OPEN: Final = ("pending", "delivered")
_ENDED_BADLY: Final = ("failed", "cancelled")


@dataclass(frozen=True, slots=True)
class TaskState:
    """The facts that decide whether an action on a task is allowed."""

    id: str
    status: str
    running: bool


class TaskChange(Audited, Protocol):
    """Tasks locked for one operator."""

    @property
    def tasks(self) -> Sequence[TaskState]:
        """The tasks that were found, in the order in which they were scheduled."""

    async def retry(self, ids: Sequence[str]) -> None:
        """Make the tasks due again, with new attempts."""

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel tasks that do not run."""


class TaskStore(Protocol):
    """The tasks of one context, for changes by an operator."""

    def change(self, ids: Sequence[UUID]) -> AbstractAsyncContextManager[TaskChange]:
        """Lock tasks in one transaction. Raises DatabaseUnreachable."""


class OperateTasks:
    """Decisions about tasks. Nothing runs here: workers run the tasks that a decision releases."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store

    async def retry(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Run failed or cancelled tasks again, with new attempts.

        A task is refused with NOT_RETRYABLE or UNKNOWN_TASK. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _sort(ids, change.tasks, _retry_refusal)
            if wanted:
                await change.retry(wanted)
                await change.audit("tasks.retry", wanted, by)
            return Outcome(tuple(wanted), tuple(refused))

    async def cancel(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Cancel tasks that do not run now.

        A task is refused with NOT_CANCELLABLE or UNKNOWN_TASK. Raises DatabaseUnreachable.
        """
        async with self._store.change(ids) as change:
            wanted, refused = _sort(ids, change.tasks, _cancel_refusal)
            if wanted:
                await change.cancel(wanted)
                await change.audit("tasks.cancel", wanted, by)
            return Outcome(tuple(wanted), tuple(refused))


def _sort(
    ids: Sequence[UUID], tasks: Sequence[TaskState], refusal: Callable[[TaskState], RelayError | None]
) -> tuple[list[str], list[tuple[str, RelayError]]]:
    """Split ids into those that a rule allows, in the order of the tasks, and those that it refuses."""
    found = {task.id for task in tasks}
    unknown = UnknownTask("there is no such task", hint="relay tasks list --all")
    refused = [(str(id), unknown) for id in dict.fromkeys(ids) if str(id) not in found]
    judged = [(task.id, refusal(task)) for task in tasks]
    wanted = [id for id, error in judged if error is None]
    return wanted, [*refused, *((id, error) for id, error in judged if error is not None)]


def _retry_refusal(task: TaskState) -> RelayError | None:
    if task.status in _ENDED_BADLY:
        return None
    hint = "its effect is there" if task.status == "completed" else "it is run in its turn"
    return NotRetryable(f"is {task.status}", hint=hint)


def _cancel_refusal(task: TaskState) -> RelayError | None:
    if task.running:
        return NotCancellable("runs", hint="wait for its end; its time limit bounds it")
    return None if task.status in _OPEN else NotCancellable(f"is {task.status}")
