"""Backlogs as values: what waits in a context (SDS-047 §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from relay.domain.backpressure import RELEASE

#: How far rows are counted. What is more is an estimate of the server's, and at least so much.
MAX_COUNTED_ROWS: Final = 20_000


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """The events that are not published (QRY-050).

    ``count`` events are not published; the oldest of them occurred at ``oldest_at``. ``dead`` of them cannot be
    published and wait for an operator. ``waiting`` of them will be published; the oldest has waited for
    ``waiting_age_seconds`` by the database's clock (0 when there is none).

    ``estimated``: more than `MAX_COUNTED_ROWS` are not published. Then ``count`` and ``waiting`` are about right,
    and ``dead`` counts at most so many.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    dead: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """The messages that are not processed (QRY-051).

    ``count`` messages are not processed; the oldest of them was received at ``oldest_at``. ``dead`` of them are
    dead letters. ``waiting`` of them will be handled; the oldest has waited for ``waiting_age_seconds`` by the
    database's clock (0 when there is none). ``failed_attempts`` of those that wait were tried more than three
    times.

    ``estimated``: more than `MAX_COUNTED_ROWS` are not processed. Then ``count`` and ``waiting`` are about right,
    ``dead`` counts at most so many, and ``failed_attempts`` only the oldest of them.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    failed_attempts: int
    dead: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """About how many ``events`` the outbox holds, published ones too, by the server's statistics."""

    events: int


@dataclass(frozen=True, slots=True)
class Overdue:
    """How late publishing is: the ``seconds`` since the earliest overdue event was due; 0 if none is overdue."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Brake:
    """What producers are told of a full outbox: an ``action``, and why, and since when. None: nothing."""

    action: str | None = None
    reason: str | None = None
    since: datetime | None = None

    @property
    def braking(self) -> int:
        """1 while producers are braked, else 0."""
        return int(self.action is not None)

    def __str__(self) -> str:
        what = {"warn": "warned", "delay": "delayed", "refuse": "refused"}.get(self.action or "", self.action)
        return f"producers are {what}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FullInbox:
    """An inbox that is so full that the pulls pause, or may: of ``max_inbox`` messages it holds ``unfinished``."""

    subscription: str
    unfinished: int
    max_inbox: int

    @property
    def shown(self) -> bool:
        """Whether it is full enough to say so: a pause ends below this."""
        return self.unfinished >= self.max_inbox * RELEASE

    def __str__(self) -> str:
        return (
            f"the inbox of {self.subscription} holds {self.unfinished} unfinished messages: "
            f"pulls pause at {self.max_inbox} and go on below {self.max_inbox * RELEASE:g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBacklog:
    """The tasks that wait to be run.

    ``count`` tasks are due and not finished, the oldest for ``oldest_age_seconds`` (0 when there is none).
    ``delayed`` tasks are due later. ``failed`` tasks wait for an operator. Of each state at most
    `MAX_COUNTED_ROWS` are counted.
    """

    count: int
    oldest_age_seconds: float
    delayed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What of a subscription waits for an operator: ``count`` items, the oldest for ``oldest_age_seconds``.

    ``kind``: the class of the incidents.
    """

    subscription: str | None
    kind: str | None = None
    count: int
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionBacklog:
    """What of a subscription waits to be handled: ``count`` messages, neither processed nor dead-lettered.

    The oldest was received ``oldest_age_seconds`` ago. ``failed_attempts`` messages were tried more than three
    times. Beyond `MAX_COUNTED_ROWS` the count is an estimate, and the others are of so many.
    """

    subscription: str | None
    count: int
    oldest_age_seconds: float
    failed_attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlogs:
    """Everything that waits in a context, and how much its outbox holds."""

    outbox: OutboxBacklog
    held: Held
    overdue: Overdue
    inbox: Sequence[SubscriptionBacklog]
    tasks: TaskBacklog
    incidents: Sequence[Waiting]
    parked: Sequence[Waiting]
    brake: Brake = Brake()
