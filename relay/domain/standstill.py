"""Standstills: parts of a backlog in which something is due and nothing moves, whatever the cause.

Movement is measured, not inferred from what may go wrong. So a cause that nobody has thought of is found too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from relay.domain.controls import Controls, What
from relay.domain.members import Seen, handled_names, handles


class BacklogKind(StrEnum):
    """What waits.

    ``events``: to be published. ``stream``: messages in a stream, to be received. ``messages``: to be handled.
    ``letters``: dead letters in the DLQ stream, to be recorded. ``tasks``: to be run. ``runs``: of cron jobs.
    ``alerts``: to be taken by the webhook. ``archive``: ended rows that should leave their tables.
    """

    EVENTS = "events"
    STREAM = "stream"
    MESSAGES = "messages"
    LETTERS = "letters"
    TASKS = "tasks"
    RUNS = "runs"
    ALERTS = "alerts"
    ARCHIVE = "archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """How a part of a context's backlog moves, by the clock of the server that holds it.

    ``part``: a subscription, a queue, a cron job or a lane; "" for all of the kind. ``due``: how many items are
    due and nobody works on them, counted up to a limit. The first of them, ``head``, has been due for
    ``due_seconds``. ``moved_seconds``: since an item was last finished, claimed or tried; None if none was lately.
    ``overtaken``: items that became due later were finished, and ``head`` was not, though nothing holds it back.
    """

    kind: BacklogKind
    part: str = ""
    due: int
    due_seconds: float
    head: str
    moved_seconds: float | None = None
    overtaken: bool = False

    def stands_still(self, bound: timedelta) -> bool:
        """Whether something has been due for longer than ``bound``, and nothing has moved for as long."""
        most = bound.total_seconds()
        if self.due == 0 or self.due_seconds <= most:
            return False
        return self.overtaken or self.moved_seconds is None or self.moved_seconds > most

    @property
    def still_seconds(self) -> float:
        """For how long it has stood still, if it does."""
        if self.overtaken or self.moved_seconds is None:
            return self.due_seconds
        return min(self.due_seconds, self.moved_seconds)


def standing(movements: Iterable[Movement], bound: timedelta) -> Sequence[Movement]:
    """The parts that stand still: see `Movement.stands_still`."""
    return [it for it in movements if it.stands_still(bound)]


def rests(movement: Movement, controls: Controls) -> bool:
    """Whether an operator has paused it: then it stands still on purpose."""
    match movement.kind:
        case BacklogKind.EVENTS:
            return controls.is_paused(What.PUBLISHING)
        case BacklogKind.MESSAGES | BacklogKind.STREAM:
            return controls.is_paused(What.SUBSCRIPTION, movement.part)
        case BacklogKind.TASKS:
            return controls.is_paused(What.TASK_QUEUE, movement.part)
        case _:
            return False


def confirmed(first: Iterable[Movement], second: Iterable[Movement]) -> Sequence[Movement]:
    """What stands still in two looks at the same item.

    A row may have become visible just now, with an old time, because its transaction was long, or a program gave
    the time. Between two looks such a row begins to move.
    """
    heads = {(it.kind, it.part): it.head for it in first}
    return [it for it in second if heads.get((it.kind, it.part)) == it.head]


# --- what may be the cause ---


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedEvents:
    """Events that were refused and are tried again: how many, how old the first is, the most frequent reason."""

    count: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseOfFleet:
    """Workers of a release: how many there are, and whether they handle a version of an event."""

    release: str
    handles: bool
    workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedVersion:
    """A version of an event that messages of a subscription wait for: a worker that handles it.

    ``count`` messages, the first received ``seconds`` ago. ``subject``: of one of them.
    """

    subscription: str | None
    event_type: str | None
    event_version: int | None
    subject: str
    count: int
    seconds: float

    def names(self, context: str) -> Sequence[str]:
        """What a worker that handles it tells of it: its type, or the name of the command."""
        return handled_names(
            context, self.subscription or "", self.event_type, self.subject, self.event_version or 1
        )

    def known_by(self, context: str, members: Iterable[Seen]) -> Sequence[ReleaseOfFleet]:
        """The releases of the workers, by their names, and whether each handles it."""
        names = self.names(context)
        count = Counter(
            (it.member.release_shown, any(handles(it.member.handles, name) for name in names))
            for it in members
            if it.member.kind == "worker"
        )
        return [ReleaseOfFleet(*found, workers) for found, workers in sorted(count.items())]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failing:
    """Messages of a subscription that failed and are tried again.

    ``count`` messages, the first received ``seconds`` ago, mostly for ``reason``. ``handled``: how many messages
    of the subscription were handled within the bound of a standstill.
    """

    subscription: str | None
    count: int
    seconds: float
    reason: str
    handled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """A session that holds locks on ``what`` in a transaction that began ``seconds`` ago."""

    name: str
    pid: int
    seconds: float | None
    what: str
