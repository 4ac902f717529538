"""Every job of the fleet as a value: its actor, its queue, and what it is about.

Schedulers, workers and commands make their messages here. So each queue, key and actor name is defined in one
place, and no code has to parse a name. Messages carry names and ids, never content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from dramatiq import Message

from relay.adapters.dramatiq.shares import AGAIN, SHARE
from relay.domain.schedule import WaitingRun
from relay.domain.tasks import DEFAULT_QUEUE, TaskRef

PUBLISH_QUEUE: Final = "relay-publish"
PULL_QUEUE: Final = "relay-pull"
HANDLE_QUEUE: Final = "relay-handle"
UPKEEP_QUEUE: Final = "relay-upkeep"
ARCHIVE_QUEUE: Final = "relay-archive"
CRON_QUEUE: Final = "relay-cron"
#: The queues of every fleet. Those of tasks have names of their own (`task_queue`).
QUEUES: Final = (PUBLISH_QUEUE, PULL_QUEUE, HANDLE_QUEUE, UPKEEP_QUEUE, ARCHIVE_QUEUE, CRON_QUEUE)


@dataclass(frozen=True, slots=True)
class DutyKind:
    """What the jobs of one actor have in common. ``name``: the name of their duties.

    ``waits``: its jobs wait for servers most of the time. So the event loop runs all of them, without a thread.
    """

    actor: str
    queue: str
    name: str
    waits: bool = False

    def of(self, context: str, *about: str | int) -> Duty:
        """The duty of a context. ``about``: the subscription or shard, if each has its own duty."""
        return Duty(self, context, about)


@dataclass(frozen=True, slots=True)
class Duty:
    """Work that repeats. At most one job of a duty is outstanding (see `relay.adapters.dramatiq.gates`)."""

    kind: DutyKind
    context: str
    about: tuple[str | int, ...] = ()

    @property
    def key(self) -> str:
        """The name of the duty's gate and of its row in ``relay schedule list``."""
        return ":".join(map(str, (self.kind.name, self.context, *self.about)))

    def message(self, token: str, *more: int | None, **hints: list[str]) -> Message[Any]:
        """The message of the job that has ``token`` at the gate. ``hints``: what a worker need not ask again."""
        args = (self.context, *self.about, *more, token)
        # A share of its own: a duty that hangs takes no slot on the event loop from another.
        options = {SHARE: self.key} if self.kind.waits else {}
        return Message(
            queue_name=self.kind.queue, actor_name=self.kind.actor, args=args, kwargs=hints, options=options
        )


def _kind(actor: str, queue: str = UPKEEP_QUEUE, name: str | None = None) -> DutyKind:
    return DutyKind(actor, queue, name or actor, waits=queue in {PUBLISH_QUEUE, PULL_QUEUE, UPKEEP_QUEUE})


PUBLISH: Final = _kind("publish_shard", PUBLISH_QUEUE, "publish")
RECONCILE_STREAM: Final = _kind("reconcile_stream")
PRUNE: Final = _kind("prune")
ARCHIVE: Final = _kind("archive", ARCHIVE_QUEUE)
PULL: Final = _kind("pull_messages", PULL_QUEUE, "pull")
LOOK_AFTER: Final = _kind("look_after")
RECONCILE_INBOX: Final = _kind("reconcile_inbox")
DELIVER_TASKS: Final = _kind("deliver_tasks")
SWEEP_TASKS: Final = _kind("sweep_tasks")


# --- jobs for one or a few rows: the row says whether there is work -------------------------------

HANDLE_MESSAGE: Final = "handle_message"
HANDLE_CHUNK: Final = "handle_chunk"
RUN_CRON: Final = "run_cron"
RUN_TASK: Final = "run_task"


def handle(context: str, subscription: str, ids: Sequence[str], *, again: bool = False) -> Message[Any]:
    """The job that handles one message, or a chunk of several. ``again``: they were tried before."""
    actor, what = (HANDLE_MESSAGE, ids[0]) if len(ids) == 1 else (HANDLE_CHUNK, list(ids))
    return _row(HANDLE_QUEUE, actor, share(context, subscription, again=again), context, subscription, what)


def handled_id(message: Message[Any]) -> UUID:
    """The inbox message that a job of `handle` is about."""
    return UUID(message.args[2])


def context_of(message: Message[Any]) -> str | None:
    """The context that a job of any kind is about; None for a job that is not ours."""
    return message.args[0] if message.args and isinstance(message.args[0], str) else None


def run_cron(context: str, run: WaitingRun) -> Message[Any]:
    """The job that runs a cron job."""
    return _row(CRON_QUEUE, RUN_CRON, share(context, run.job), context, run.job, run.scheduled_for.isoformat())


def run_task(context: str, task: TaskRef) -> Message[Any]:
    """The job that makes one attempt at a task. Each context has its share of a queue."""
    args = context, task.type, str(task.id)
    return _row(task_queue(task.queue), RUN_TASK, context, *args, task_priority=task.priority)


def task_of(message: Message[Any]) -> tuple[str, UUID]:
    """The type and the id of the task that a job of `run_task` is about."""
    return message.args[1], UUID(message.args[2])


def task_queue(queue: str = DEFAULT_QUEUE) -> str:
    """The Dramatiq queue of a task queue, for ``dramatiq -Q``."""
    return f"relay-task-{queue}"


def share(context: str, name: str, *, again: bool = False) -> str:
    """The share that a subscription or a cron job has of its queue (see `relay.adapters.dramatiq.shares`).

    ``again``: that of its rows that were tried before.
    """
    return f"{context}/{name}{AGAIN if again else ''}"


def _row(queue: str, actor: str, share: str, *args: str | list[str], **options: int) -> Message[Any]:
    return Message(queue_name=queue, actor_name=actor, args=args, kwargs={}, options={SHARE: share, **options})
