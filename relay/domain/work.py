"""A subscription or a type of tasks as it is now: what waits, runs and fails, and what it did lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from relay.domain.controls import Act, Control
from relay.domain.history import ContextHistory, Of, Series
from relay.domain.running import RunningRow
from relay.domain.standstill import ReleaseOfFleet

#: The states of rows that will be handled without an operator, and all that a page shows, in their order.
WAITS: Final = ("waiting", "failing", "running", "parked")
STATES: Final = ("waiting", "running", "failing", "parked", "delayed", "held", "dead")
#: Up to so many rows are counted.
COUNTED: Final = 10_001


@dataclass(frozen=True, slots=True)
class InState:
    """How many rows are in a state, and for how long the oldest has been there. None: it is not asked."""

    state: str
    count: int
    oldest_seconds: float


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Why rows fail, or died: ``count`` of the last thousand in the ``state``. ``text``: as the last one says it.

    ``code``: a stable code.
    """

    state: str
    code: str
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class HandlerAway:
    """The handler is away, for ``seconds``. ``reason``: the last failure."""

    reason: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """What JetStream has for a consumer: ``to_come``, ``in_flight`` of at most ``window``, and ``redelivered``."""

    to_come: int
    in_flight: int
    window: int
    redelivered: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsNow:
    """The rows of a subscription or of a type of tasks. ``parked_keys``: how many keys are set aside."""

    states: Sequence[InState] = ()
    causes: Sequence[ReasonCount] = ()
    queues: Sequence[str] = ()
    parked_keys: int = 0
    away: HandlerAway | None = None

    def count(self, *states: str) -> int:
        """How many are in these states."""
        return sum(it.count for it in self.states if it.state in states)

    def oldest(self, *states: str) -> float:
        """For how long the oldest has been in one of these states."""
        return max((it.oldest_seconds for it in self.states if it.state in states), default=0.0)

    def causes_of(self, state: str) -> Sequence[ReasonCount]:
        """Why rows are in a state, the most frequent first."""
        return [it for it in self.causes if it.state == state]


@dataclass(frozen=True, slots=True)
class WaitsForVersion:
    """Messages of a version that no worker that got them handles: ``count``, the first received ``seconds`` ago.

    ``releases``: those of the fleet; None if Redis does not answer.
    """

    event_type: str | None
    event_version: int | None
    count: int
    seconds: float
    releases: Sequence[ReleaseOfFleet] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A subscription or a type of tasks, and all that is known of it now.

    ``settings``: those of relay.toml; none of tasks. ``running``: some of what runs, the longest first. ``lag``:
    None for tasks, and if NATS does not answer. ``controls``: what is paused or limited of it or of its queues.
    ``versions``: those that its messages wait for.
    """

    context: str
    of: Of
    name: str
    rows: RowsNow
    history: ContextHistory
    settings: Mapping[str, Any]
    running: Sequence[RunningRow] = ()
    lag: Lag | None = None
    controls: Sequence[Control] = ()
    versions: Sequence[WaitsForVersion] = ()

    @property
    def series(self) -> Series | None:
        """What it did over time; None if nothing is recorded."""
        return next(iter(self.history.series), None)

    @property
    def known(self) -> bool:
        """Whether anything is known of it."""
        return bool(self.settings or self.rows.states or self.rows.parked_keys or self.controls or self.series)

    @property
    def state(self) -> str:
        """Whether it runs, or is limited or paused."""
        return str(control_fields(self.controls)["state"])

    def as_dict(self, now: datetime) -> dict[str, Any]:
        """The same for programs."""
        rows, series = self.rows, self.series
        return {
            "context": self.context,
            "name": self.name,
            **control_fields(self.controls),
            **self.settings,
            "waiting": rows.count(*WAITS),
            "oldest_seconds": rows.oldest(*WAITS),
            "states": [asdict(it) for it in rows.states],
            "causes": [asdict(it) for it in rows.causes],
            "queues": list(rows.queues),
            "parked_keys": rows.parked_keys,
            "away": None if rows.away is None else asdict(rows.away),
            "lag": None if self.lag is None else asdict(self.lag),
            "versions": [asdict(it) for it in self.versions],
            "controls": [it.row() for it in self.controls],
            "running": [
                {
                    "id": it.id,
                    "name": it.name,
                    "attempts": it.attempts,
                    "since": it.since,
                    "seconds": it.seconds(now),
                    "too_long": it.too_long(now),
                }
                for it in self.running
            ],
            "history": None if series is None else asdict(series),
        }


def control_fields(controls: Sequence[Control]) -> dict[str, Any]:
    """What is paused or limited of one thing, in one line: a pause says more than a limit."""
    pause, limit = (next((it for it in controls if it.act is act), None) for act in (Act.PAUSE, Act.LIMIT))
    control = pause or limit
    return {
        "state": "paused" if pause else "limited" if limit else "runs",
        "until": None if control is None else control.until,
        "by": None if control is None else control.by,
        "since": None if control is None else control.since,
        "reason": None if control is None else control.reason,
        "limit": None if limit is None else str(limit.limit),
    }
