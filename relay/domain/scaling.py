"""How many workers a host should have, as a pure function of the load and of what was seen before.

The number follows the load slowly and in steps, and only if the load lasts. A load is high, low, or in between. In
between nothing changes, and neither if the load is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from relay.domain.errors import InvalidRequest, RelayError
from relay.domain.lag import Load

#: A load is low below this part of the rows and the age that count as high.
_LOW_PART: Final = 1 / 4
#: The part of the threads that may be busy after a worker has gone.
_LOW_BUSY: Final = 0.7
#: From this part on, threads count as busy.
_HIGH_BUSY: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """The limits ``least`` and ``most``, when the load is high, and how long it must last. Times in seconds.

    High is more than ``rows`` due, or one due for longer than ``age_s``, or all threads busy. Workers are added
    once the load was high for ``grow_after_s``, and end once it was low for ``shrink_after_s``. Two changes are at
    least ``pause_s`` apart, so that a new worker has time to help.

    Raises InvalidRequest for values that contradict each other; ``field`` is the option of the command line.
    """

    least: int = 1
    most: int = 1
    rows: int = 10_000
    age_s: float = 30.0
    grow_after_s: float = 10.0
    shrink_after_s: float = 60.0
    pause_s: float = 15.0

    def __post_init__(self) -> None:
        if self.least < 1:
            raise InvalidRequest("a fleet has at least one worker", field="--min")
        if self.most < self.least:
            wrong = f"--max {self.most} is less than --min {self.least}"
            raise InvalidRequest(wrong, field="--max", hint="a fleet of fixed size has both the same")
        if self.rows < 1:
            raise InvalidRequest("must be at least 1", field="--rows")
        for option, seconds in (
            ("--age", self.age_s),
            ("--grow-after", self.grow_after_s),
            ("--shrink-after", self.shrink_after_s),
            ("--pause", self.pause_s),
        ):
            if not 0 <= seconds < float("inf"):
                raise InvalidRequest("must be a number of seconds, 0 or more", field=option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The load ``at`` a time, in seconds of a clock that never goes back.

    ``load``: the lag; or why it is not known. ``busy``: the part of the threads of this host's workers that are
    busy, 0 to 1; None if no worker has said so yet.
    """

    at: float
    load: Load | RelayError
    busy: float | None


class LoadLevel(Enum):
    """What a load asks for."""

    HIGH = "high"
    MIDDLE = "middle"
    LOW = "low"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What decisions remember: since when the pressure is the same, and when the number last changed."""

    pressure: LoadLevel = LoadLevel.UNKNOWN
    since: float = 0.0
    changed_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``size`` workers are wanted. ``why`` is the reason for people, without data."""

    size: int
    why: str
    history: History


def decide(rules: ScalingRules, size: int, sample: Sample, history: History) -> Decision:
    """Decide how many workers are wanted, from ``size`` that were wanted so far."""
    size = min(max(size, rules.least), rules.most)
    pressure, why = _pressure(rules, size, sample)
    if pressure is not history.pressure:
        history = replace(history, pressure=pressure, since=sample.at)
    wanted = _wanted(rules, size, pressure, sample.at - history.since)
    rested = history.changed_at is None or sample.at - history.changed_at >= rules.pause_s
    if wanted != size and rested:
        return Decision(size=wanted, why=why, history=replace(history, changed_at=sample.at))
    return Decision(size=size, why=why, history=history)


def _pressure(rules: ScalingRules, size: int, sample: Sample) -> tuple[LoadLevel, str]:
    load, busy = sample.load, sample.busy
    if isinstance(load, RelayError):
        return LoadLevel.UNKNOWN, f"the load is not known: {load.code}: {load.message}"
    if busy is None:
        return LoadLevel.UNKNOWN, "no worker has reported yet how busy it is"
    why = f"{load.rows} due, the oldest for {load.age_seconds:.0f} s, {busy:.0%} of the threads busy"
    if load.rows > rules.rows or load.age_seconds > rules.age_s or (busy >= _HIGH_BUSY and load.rows):
        return LoadLevel.HIGH, why
    fewer = busy * size / max(1, size - 1)
    low_load = load.rows <= rules.rows * _LOW_PART and load.age_seconds <= rules.age_s * _LOW_PART
    return LoadLevel.LOW if low_load and fewer <= _LOW_BUSY else LoadLevel.MIDDLE, why


def _wanted(rules: ScalingRules, size: int, pressure: LoadLevel, lasted: float) -> int:
    """Half as many more, or one fewer. So a fleet grows from two to ten in five steps, and shrinks in eight."""
    match pressure:
        case LoadLevel.HIGH if lasted >= rules.grow_after_s:
            return min(rules.most, size + max(1, size // 2))
        case LoadLevel.LOW if lasted >= rules.shrink_after_s:
            return max(rules.least, size - 1)
    return size
