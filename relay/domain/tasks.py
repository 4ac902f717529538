"""Background tasks as values (building blocks §2.7, §4): the task, and when a limit allows it to start."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from relay.domain.errors import NotReopenable, NotRetryable, RelayError
from relay.domain.identity import Originals
from relay.domain.model import Lifespan
from relay.domain.operators import stale
from relay.domain.personal import Personal

DEFAULT_QUEUE: Final = "default"
#: 0 goes first, 100 last.
DEFAULT_PRIORITY: Final = 50
MAX_PRIORITY: Final = 100

_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_QUEUE = re.compile(r"[a-z0-9_-]{1,40}\Z")


class InvalidTask(RelayError, ValueError):
    """A task, or an option of a task, is not allowed."""

    code = "INVALID_TASK"


class UnknownTask(RelayError):
    """No task of this type is registered in this process, or no task has this id."""

    code = "UNKNOWN_TASK"


class NotCancellable(RelayError):
    """The task is running or has ended."""

    code = "NOT_CANCELLABLE"


def is_type(value: object) -> bool:
    """Whether it is a valid name for a task type."""
    return isinstance(value, str) and _TYPE.match(value) is not None


def check_type(value: object) -> str:
    """Return ``value`` if it is a valid name for a task type. Raises InvalidTask."""
    if not (isinstance(value, str) and is_type(value)):
        raise InvalidTask(
            f"{str(value)[:120]!r} is not a name for a task",
            field="type",
            hint="1 to 100 of A-Z a-z 0-9 _ . -",
        )
    return value


def check_queue(value: object) -> str:
    """Return ``value`` if it is a valid name for a queue. Raises InvalidTask."""
    if not isinstance(value, str) or not _QUEUE.match(value):
        raise InvalidTask(
            f"{str(value)[:60]!r} is not a name for a queue", field="queue", hint="1 to 40 of a-z 0-9 _ -"
        )
    return value


def check_priority(value: object) -> int:
    """Return ``value`` if it is a priority. Raises InvalidTask."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_PRIORITY:
        raise InvalidTask(f"{value!r} is not a priority", field="priority", hint="0, first, to 100, last")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundTask:
    """A task recorded in the transaction that requests it.

    ``payload``: JSON text. ``available_at`` or ``delay``: the task does not start before. A delay counts from the
    moment the row is written, by the database's clock. ``concurrency_key``: tasks of one key share a limit of how
    many run at the same time. ``schema``: where its table is; None follows the search_path. ``originals``: the
    texts of ids that are no UUIDs. ``lifespan``: until when it is worth running. ``personal``: what encrypts
    parts of the payload when the row is written. Raises InvalidTask.
    """

    id: UUID
    type: str
    payload: str
    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    available_at: datetime | None = None
    delay: timedelta | None = None
    concurrency_key: str | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    originals: Originals = field(default_factory=dict)
    schema: str | None = None
    lifespan: Lifespan | None = None
    personal: Personal | None = None

    def __post_init__(self) -> None:
        check_type(self.type)
        check_queue(self.queue)
        check_priority(self.priority)
        self._check_times()
        for name in ("id", "correlation_id", "causation_id"):
            value = getattr(self, name)
            if not isinstance(value, UUID) and (value is not None or name == "id"):
                raise InvalidTask("must be a UUID", field=name)

    def _check_times(self) -> None:
        if self.available_at is not None and self.delay is not None:
            raise InvalidTask("give a delay or a time, not both", field="delay")
        if self.delay is not None and self.delay < timedelta(0):
            raise InvalidTask("must not be negative", field="delay")
        if self.available_at is not None and self.available_at.tzinfo is None:
            raise InvalidTask("must be a datetime with a time zone", field="available_at")


@dataclass(frozen=True, slots=True)
class TaskRef:
    """What a queue needs to know about a task."""

    id: UUID
    type: str
    queue: str
    priority: int


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    """A task held under a claim token. ``attempts`` includes the attempt that follows.

    ``processed``: its effect is already committed, but the row does not show it yet.
    """

    token: UUID
    id: UUID
    type: str
    payload: str
    attempts: int
    correlation_id: UUID | None
    causation_id: UUID | None
    metadata: Mapping[str, Any]
    concurrency_key: str | None
    originals: Originals | None
    processed: bool
    #: Since when it could be run: when it was recorded, or the time that it was scheduled for.
    due_at: datetime
    #: Whether its time is over, so that it is not run.
    stale: bool = False
    #: `time.monotonic` before the claim was requested. The lease does not end earlier than its length after this.
    since: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class TaskState:
    """The facts that decide whether an operator's action on a task is allowed. ``stale``: its time is over."""

    status: str
    running: bool
    stale: bool = False


def retry_refusal(task: TaskState) -> RelayError | None:
    """Why a task cannot be run again; None if it can."""
    if task.status in ("failed", "cancelled", "expired"):
        return stale() if task.stale else None
    hint = "its effect exists already" if task.status == "completed" else "it is run in its turn"
    return NotRetryable(f"is {task.status}", hint=hint)


def cancel_refusal(task: TaskState) -> RelayError | None:
    """Why a task cannot be cancelled; None if it can."""
    if task.running:
        return NotCancellable("runs", hint="wait for its end; its time limit will end it")
    return None if task.status in ("pending", "delivered") else NotCancellable(f"is {task.status}")


def reopen_refusal(task: TaskState) -> RelayError | None:
    """Why the cancelling of a task cannot be taken back; None if it can."""
    if task.status not in ("cancelled", "expired"):
        return NotReopenable(f"is {task.status}")
    return stale() if task.stale else None


@dataclass(frozen=True, slots=True)
class PutOff:
    """A limit does not allow the task to start. Try again after ``delay``. No attempt is counted.

    ``waits_for``: ``turn`` (the rate limit has promised it a slot), ``room`` (too many of its key run) or
    ``handler`` (this worker does not know the type). The words are stored in rows and shown to users.
    """

    delay: timedelta
    waits_for: str


@dataclass(frozen=True, slots=True)
class Rate:
    """The state of a rate limit, from now: when the next start is free, and when the last promised start is."""

    free_in: timedelta
    promised_in: timedelta


def slot(rate: Rate, interval: timedelta, *, promised: bool) -> timedelta:
    """After how long a task may start. Zero or less means now.

    Starts are at least ``interval`` apart. A task that comes too early is promised the next free slot. So each
    task waits once and in order, and new tasks do not overtake tasks with a promise.
    """
    if promised:
        return rate.free_in
    if max(rate.free_in, rate.promised_in) <= timedelta(0):
        return timedelta(0)
    return max(rate.free_in, rate.promised_in + interval)


def looks_again(rate: Rate, id: UUID, most: timedelta) -> timedelta | None:
    """After how long one asks again whose promised slot is later than ``most``; None if none is.

    Each has a time of its own: if all came back for the next free slot, they would ask without end.
    """
    if rate.promised_in <= most or rate.free_in >= most:
        return None
    return rate.free_in + (most - rate.free_in) * (id.int % 1000 / 1000)
