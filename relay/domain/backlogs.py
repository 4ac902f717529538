"""Backlogs as values: what waits in a context (SDS-047 §5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from relay.domain.backpressure import RELEASE
from relay.domain.controls import Act, Control, What
from relay.domain.standstill import Movement

#: Up to so many rows are counted. A larger number is an estimate of PostgreSQL, and at least this.
MAX_COUNTED_ROWS: Final = 20_000
#: By default the whole fleet takes this part of the sessions that a server allows.
FLEET_PART: Final = 3


@dataclass(frozen=True, slots=True)
class OutboxBacklog:
    """The events that are not published (QRY-050).

    ``count`` events are not published; the oldest of them occurred at ``oldest_at``. ``dead`` of them cannot be
    published and wait for an operator. ``delayed`` of them are to be published later, because their producer wants
    so. ``waiting`` of them will be published; the oldest has waited for ``waiting_age_seconds`` by the database's
    clock (0 when there is none), a delayed one since its time came.

    ``estimated``: more than `MAX_COUNTED_ROWS` are not published. Then ``count`` and ``waiting`` are estimates,
    and ``dead`` and ``delayed`` are at most `MAX_COUNTED_ROWS`.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    dead: int
    estimated: bool = False
    delayed: int = 0


@dataclass(frozen=True, slots=True)
class InboxBacklog:
    """The messages that are not processed (QRY-051).

    ``count`` messages are not processed; the oldest of them was received at ``oldest_at``. ``dead`` of them are
    dead letters. ``waiting`` of them will be handled; the oldest has waited for ``waiting_age_seconds`` by the
    database's clock (0 when there is none). ``failed_attempts`` of those that wait were tried more than three
    times. ``held`` of them were set aside by an operator.

    ``estimated``: more than `MAX_COUNTED_ROWS` are not processed. Then ``count`` and ``waiting`` are estimates,
    ``dead`` and ``held`` are at most `MAX_COUNTED_ROWS`, and ``failed_attempts`` counts only among the oldest.
    """

    count: int
    oldest_at: datetime | None
    waiting: int
    waiting_age_seconds: float
    failed_attempts: int
    dead: int
    estimated: bool = False
    held: int = 0


@dataclass(frozen=True, slots=True)
class Brake:
    """What a full outbox does to its producers: the ``action``, why, and since when. None: nothing."""

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
    """An inbox with a limit, ``max_inbox``, and how many ``unfinished`` messages it holds."""

    subscription: str
    unfinished: int
    max_inbox: int

    @property
    def shown(self) -> bool:
        """Whether it is full enough to be shown. A pause of the pulls ends below this."""
        return self.unfinished >= self.max_inbox * RELEASE

    def __str__(self) -> str:
        return (
            f"the inbox of {self.subscription} holds {self.unfinished} unfinished messages: "
            f"pulls pause at {self.max_inbox} and go on below {self.max_inbox * RELEASE:g}"
        )


@dataclass(frozen=True, slots=True)
class AwayHandler:
    """The handler of a subscription that is away, for ``seconds``; ``reason``: the last failure."""

    subscription: str
    reason: str
    seconds: float


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
    """``count`` items of a subscription that wait for an operator, the oldest for ``oldest_age_seconds``.

    ``kind``: the class of the incidents.
    """

    subscription: str | None
    kind: str | None = None
    count: int
    oldest_age_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionBacklog:
    """``count`` messages of a subscription that wait to be handled: neither processed nor dead letters.

    The oldest was received ``oldest_age_seconds`` ago. ``failed_attempts`` messages were tried more than three
    times. ``failing`` have failed at least once, and ``let_go`` hold no place of JetStream's window any more.
    ``held`` others were set aside by an operator.
    Beyond `MAX_COUNTED_ROWS` the count is an estimate, and the other numbers are about the rows counted.
    """

    subscription: str | None
    count: int
    oldest_age_seconds: float
    failed_attempts: int
    failing: int = 0
    let_go: int = 0
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSessions:
    """How many sessions the fleet has at the server, and how many the server allows besides superusers."""

    held: int = 0
    room: int = 0

    @property
    def share(self) -> int:
        """How many the whole fleet takes by default: a third."""
        return self.room // FLEET_PART

    def __str__(self) -> str:
        return f"the fleet holds {self.held} of {self.room} sessions, its share is {self.share}"


@dataclass(frozen=True, slots=True)
class PausedSubscription:
    """A subscription that an operator has paused."""

    subscription: str
    paused: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlogs:
    """Everything that waits in a context, and how much its outbox holds.

    ``held``: about how many events the outbox holds, published ones too, by the server's statistics. ``overdue``:
    how late publishing is, the seconds since the earliest overdue event was due; 0 if none is overdue.
    ``standing``: the parts that stand still. ``controls``: what is paused or limited.
    """

    outbox: OutboxBacklog
    held: int
    overdue: float
    inbox: Sequence[SubscriptionBacklog]
    tasks: TaskBacklog
    incidents: Sequence[Waiting]
    parked: Sequence[Waiting]
    brake: Brake = Brake()
    away: Sequence[AwayHandler] = ()
    standing: Sequence[Movement] = ()
    sessions: FleetSessions = FleetSessions()
    controls: Sequence[Control] = ()

    def _paused(self, what: What | None = None) -> Sequence[Control]:
        return [it for it in self.controls if it.act is Act.PAUSE and what in (None, it.what)]

    @property
    def paused(self) -> int:
        """How much is paused."""
        return len(self._paused())

    @property
    def publishing_paused(self) -> int:
        """1 while publishing is paused as a whole, else 0."""
        return len(self._paused(What.PUBLISHING))

    @property
    def task_queues_paused(self) -> int:
        """How many queues of tasks are paused."""
        return len(self._paused(What.TASK_QUEUE))

    @property
    def paused_subscriptions(self) -> Sequence[PausedSubscription]:
        """The subscriptions that are paused."""
        return [PausedSubscription(it.name) for it in self._paused(What.SUBSCRIPTION)]
