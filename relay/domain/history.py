"""What a context did over time, as values: series in equal parts, times as buckets, and what happened meanwhile.

A time falls into one of a fixed number of buckets, four for each doubling. So a percentile is exact to 9 %, and
buckets of any parts can be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

#: The upper end of bucket 0, in seconds; how many buckets a doubling has; the number of the last bucket: 34 days.
FIRST_S: Final = 0.001
PER_DOUBLING: Final = 4
LAST: Final = 126

#: How long minutes and hours are kept.
MINUTES_KEPT: Final = timedelta(hours=48)
HOURS_KEPT: Final = timedelta(days=90)


class Of(StrEnum):
    """What a series is about."""

    OUTBOX = "outbox"
    SUBSCRIPTION = "subscription"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Period:
    """A time that is looked at, in equal parts. ``step``: of which rows it is made."""

    name: str
    length: timedelta
    part: timedelta
    step: str = "minute"


SPANS: Final[Mapping[str, Period]] = {
    it.name: it
    for it in (
        Period("1h", timedelta(hours=1), timedelta(minutes=1)),
        Period("6h", timedelta(hours=6), timedelta(minutes=5)),
        Period("48h", timedelta(hours=48), timedelta(minutes=30)),
        Period("90d", timedelta(days=90), timedelta(hours=12), "hour"),
    )
}


@dataclass(frozen=True, slots=True)
class Level:
    """What waits now: how many, for how long the oldest, and how many wait for an operator."""

    of: Of
    name: str
    waiting: int
    oldest_seconds: float
    dead: int


@dataclass(frozen=True, slots=True)
class Told:
    """What one worker counted of a series: ``failed`` attempts, and how many calls took how long."""

    of: Of
    name: str
    failed: int
    handling: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Times:
    """Percentiles, in seconds. ``count``: of how many."""

    count: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One part of a series. ``minutes``: how many of its minutes were recorded. 0: a gap, and all else is 0, too.

    ``done``: rows that ended well; ``rate``: the same a second. ``failed``: attempts. ``died``: rows that ended
    for good without success. ``waiting``, ``oldest_seconds``, ``dead``: the most of the part. ``handling``: of a
    call. ``waited``: from when a row was due until it was done. None: nothing ended.
    """

    at: datetime
    minutes: int = 0
    done: int = 0
    rate: float = 0.0
    failed: int = 0
    died: int = 0
    waiting: int = 0
    oldest_seconds: float = 0.0
    dead: int = 0
    handling: Times | None = None
    waited: Times | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """One outbox, subscription or type of tasks. ``now`` and before: of five minutes each."""

    of: Of
    name: str
    points: Sequence[Point] = ()
    now: Point | None = None
    hour_ago: Point | None = None
    day_ago: Point | None = None

    @property
    def trouble(self) -> tuple[int, float, int]:
        """How bad it is now, for the order: the worst is the largest."""
        now = self.now
        return (0, 0.0, 0) if now is None else (now.failed + now.died, now.oldest_seconds, now.waiting + now.dead)


@dataclass(frozen=True, slots=True)
class LastHour:
    """What a context did in the last hour, in parts of two minutes; None for a gap.

    ``rates``: rows that ended well, a second, by what they are of. ``failed``: attempts that failed and rows that
    died.
    """

    rates: Mapping[Of, Sequence[float | None]] = field(default_factory=dict)
    failed: Sequence[int | None] = ()


#: Parts of the last hour, and how long each is.
HOUR_PARTS: Final = 30
HOUR_PART: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that may explain a change: what an operator did, a circuit, or a release that begins to run."""

    at: datetime
    what: str
    about: str | None = None
    actor: str | None = None


@dataclass(frozen=True, slots=True)
class ContextHistory:
    """The series of a context in a time, and what happened in it, the newest first."""

    context: str
    span: Period
    since: datetime
    until: datetime
    series: Sequence[Series] = field(default=())
    marks: Sequence[Mark] = field(default=())

    @property
    def worst_first(self) -> Sequence[Series]:
        """The series, those that fail, wait or died most before others; then by name."""
        return sorted(self.series, key=lambda it: (*(-part for part in it.trouble), it.of, it.name))

    def as_dict(self) -> dict[str, Any]:
        """The history as JSON shows it."""
        return {
            "context": self.context,
            "span": self.span.name,
            "since": self.since,
            "until": self.until,
            "part_seconds": self.span.part.total_seconds(),
            "series": [asdict(it) for it in self.worst_first],
            "marks": [asdict(it) for it in self.marks],
        }


def bucket_of(seconds: float) -> int:
    """The bucket of a time. `history/record` does the same in SQL."""
    if seconds <= FIRST_S:
        return 0
    return min(LAST, math.ceil(math.log2(seconds / FIRST_S) * PER_DOUBLING))


def bucketed(times: Iterable[float]) -> dict[int, int]:
    """How many times fall into each bucket."""
    found: dict[int, int] = {}
    for seconds in times:
        bucket = bucket_of(seconds)
        found[bucket] = found.get(bucket, 0) + 1
    return found


def times_of(buckets: Mapping[int, int]) -> Times | None:
    """The percentiles of what was counted in buckets; None of nothing."""
    if not (count := sum(buckets.values())):
        return None
    p50, p95, p99 = (_percentile(buckets, count, part) for part in (0.5, 0.95, 0.99))
    return Times(count, p50, p95, p99)


def _percentile(buckets: Mapping[int, int], count: int, part: float) -> float:
    """The middle of the bucket in which the wanted one lies."""
    left = math.ceil(count * part)
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        if left <= 0:
            break
    return FIRST_S * 2 ** ((bucket - 0.5) / PER_DOUBLING) if bucket else FIRST_S / 2


def ends(span: Period, now: datetime) -> tuple[datetime, datetime]:
    """The begin and the end of a span whose last part holds ``now``. Parts begin at round times."""
    part = int(span.part.total_seconds())
    end = datetime.fromtimestamp((int(now.timestamp()) // part + 1) * part, UTC)
    return end - span.length, end
