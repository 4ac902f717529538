"""Promise 8: how soon the system moves again after a fault. The samples limit the precision.

The system has several sides: publishing, handling, and fetching for each subscription. A side moves when its count
grows from one sample to the next, or when nothing waits for it. The system has recovered when all sides have moved
since the end of the fault. Faults follow each other closely and overlap. So the recovery time is the longest time
without faults until then: if other faults interrupt a recovery, it begins again after the last of them. No
recovery is left out. If there is never enough time without faults to find a slow recovery, another check finds
it: a side that stands still through all faults while others move.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.evidence import Evidence
from chaos.history import Fault, Plan, Sample, Source
from chaos.judgement import Figure, Judgement, conclude
from chaos.windows import Windows

#: Nine of ten recoveries take no longer, in seconds; in runs with a hundred or more, 99 of 100.
MOSTLY: Final = 10.0
#: No recovery takes longer.
SLOWEST: Final = 30.0
#: In liveness mode no standstill with work waiting takes longer.
AT_MOST: Final = 60.0
_MANY: Final = 100
_FETCHING: Final = "fetching for"
#: When others move so often, it is no coincidence.
_OFTEN: Final = 3


@dataclass(frozen=True, slots=True)
class Side:
    """A part of an event's way: what has passed it, and what waits. None: unknown at that moment."""

    name: str
    done: Callable[[Sample], int | None]
    waiting: Callable[[Sample], int | None]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault, and the longest fault-free seconds from its end until all sides moved. None: not sampled."""

    fault: Fault
    seconds: float | None


def sides(evidence: Evidence) -> tuple[Side, ...]:
    """Return the sides of this run. Messages that fail for ever wait long by design, and are no backlog."""
    stubborn = sum(event.plan is Plan.NEVER for operation in evidence.operations for event in operation.events)

    def waiting(sample: Sample) -> int | None:
        return None if sample.inbox is None else max(0, sample.inbox - stubborn)

    return (
        Side("publishing", lambda sample: sample.published, lambda sample: sample.outbox),
        Side("handling", lambda sample: sample.handled, waiting),
        *(_fetching(source) for source in Source if any(sample.pending for sample in evidence.samples)),
    )


def _fetching(source: Source) -> Side:
    """The way from the stream to the inbox. An unknown backlog counts as one."""

    def done(sample: Sample) -> int | None:
        return None if sample.delivered is None else sample.delivered.get(source)

    def waiting(sample: Sample) -> int | None:
        return None if sample.pending is None else sample.pending.get(source)

    return Side(f"{_FETCHING} {source}", done, waiting)


# --- recovery -----------------------------------------------------------------------------------


def recoveries(evidence: Evidence) -> list[Recovery]:
    """How long each fault's recovery took."""
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    windows, all_sides = Windows(evidence.faults), sides(evidence)
    return [Recovery(fault, _recovery(fault, samples, windows, all_sides)) for fault in evidence.faults]


def _recovery(fault: Fault, samples: list[Sample], windows: Windows, all_sides: tuple[Side, ...]) -> float | None:
    if not samples or samples[-1].at <= fault.ended:
        return None
    start = bisect_left(samples, fault.ended, key=lambda sample: sample.at)
    moved = max(_moved(side, samples, start) for side in all_sides)
    return windows.longest_calm(fault.ended, min(moved, samples[-1].at))


def _moved(side: Side, samples: list[Sample], start: int) -> float:
    """When a side moved for the first time since a sample."""
    before: int | None = None
    for index in range(start, len(samples)):
        sample = samples[index]
        done = side.done(sample)
        if side.waiting(sample) == 0 or (done is not None and before is not None and done > before):
            return sample.at
        before = before if done is None else done
    return math.inf


def standstill(evidence: Evidence) -> float:
    """The longest time for which a side had work and did not move, an unknown backlog counted as work."""
    return max((last - first for _, first, last in _standstills(evidence)), default=0.0)


def _standstills(evidence: Evidence) -> Iterator[tuple[Side, float, float]]:
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    return ((side, *gap) for side in sides(evidence) for gap in _gaps(side, samples))


def _gaps(side: Side, samples: list[Sample]) -> Iterator[tuple[float, float]]:
    """From a move, or the beginning, to each sample up to the next move."""
    moved, before = (samples[0].at if samples else 0.0), None
    for sample in samples:
        done = side.done(sample)
        yield moved, sample.at
        if side.waiting(sample) == 0 or (done is not None and before is not None and done > before):
            moved = sample.at
        before = before if done is None else done


def stood_still(
    evidence: Evidence, during: Sequence[Fault], grace: float, seconds: float
) -> Iterator[tuple[Fault, Side]]:
    """Yield each of these faults and each side that did not move for so long while only it was active.

    ``grace``: how long ago all other faults must have ended, in seconds.
    """
    others = Windows([fault for fault in evidence.faults if fault not in during])
    found: dict[tuple[int, str], tuple[Fault, Side]] = {}
    for side, first, last in _standstills(evidence):
        for fault in during:
            begin, end = max(first, fault.began), min(last, fault.ended)
            if end - begin > seconds and not others.any_within(begin - grace, end):
                found[fault.number, side.name] = fault, side
    yield from found.values()


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# --- judgements ---------------------------------------------------------------------------------


def recovered(evidence: Evidence, liveness: bool) -> Judgement:
    """Recovery after each fault, or in liveness mode, where faults never end, no long standstill."""
    measured = [found for found in recoveries(evidence) if found.seconds is not None]
    times = [found.seconds for found in measured if found.seconds is not None]
    pause = standstill(evidence)
    figures: dict[str, Figure] = {
        "recoveries measured": len(measured),
        "faults after the last sample": len(evidence.faults) - len(measured),
        **{name: f"{value:.1f} s" for name, value in _spread(times)},
        "longest standstill with work waiting": f"{pause:.1f} s",
    }
    broken = _halted(pause) if liveness else _slow(evidence, measured, times)
    return conclude(8, "recovery within 10 s after a fault", broken, figures)


def _spread(times: list[float]) -> list[tuple[str, float]]:
    if not times:
        return []
    return [
        ("median", percentile(times, 0.5)),
        ("90th percentile", percentile(times, 0.9)),
        ("99th percentile", percentile(times, 0.99)),
        ("slowest", max(times)),
    ]


def _halted(pause: float) -> Iterator[str]:
    if pause > AT_MOST:
        yield f"nothing moved for {pause:.1f} s while work waited, more than {AT_MOST:.0f} s"


def _halted_in_peace(evidence: Evidence) -> Iterator[str]:
    """Yield each side that stood still too long outside of faults, whether or not a fault was the cause."""
    windows = Windows(evidence.faults)
    longest: dict[str, float] = {}
    for side, first, last in _standstills(evidence):
        longest[side.name] = max(windows.calm(first, last), longest.get(side.name, 0.0))
    for name, seconds in longest.items():
        if seconds > SLOWEST:
            yield f"{name} stood still for {seconds:.1f} s outside of faults while work waited"


def _left_behind(evidence: Evidence) -> Iterator[str]:
    """Yield each subscription without fetches while others had some: no fault can explain this."""
    windows = Windows(evidence.faults)
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    fetching = [side for side in sides(evidence) if side.name.startswith(_FETCHING)]
    moves = {side.name: _moves(side, samples) for side in fetching}
    for side in fetching:
        for first, last in _whole(_gaps(side, samples)):
            others = (sum(first < at < last for at in moves[name]) for name in moves if name != side.name)
            seconds = windows.calm(first, last)
            if seconds > MOSTLY and max(others, default=0) >= _OFTEN:
                yield f"{side.name} stood still for {last - first:.1f} s, {seconds:.1f} s of it outside of faults"


def _moves(side: Side, samples: list[Sample]) -> list[float]:
    """When a side's count grew."""
    counts = [(sample.at, done) for sample in samples if (done := side.done(sample)) is not None]
    return [at for (_, before), (at, done) in pairwise(counts) if done > before]


def _whole(gaps: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """The longest of the gaps that have one beginning."""
    return list(dict(gaps).items())


def _slow(evidence: Evidence, measured: list[Recovery], times: list[float]) -> Iterator[str]:
    if evidence.faults and not measured:
        yield "no recovery could be measured: there are too few samples"
    share = 0.99 if len(times) >= _MANY else 0.9
    mostly = percentile(times, share) if times else 0.0
    if mostly > MOSTLY:
        yield f"the {100 * share:.0f}th percentile of the recoveries is {mostly:.1f} s, more than {MOSTLY:.0f} s"
    limit = MOSTLY if mostly > MOSTLY else SLOWEST
    yield from _halted_in_peace(evidence)
    yield from _left_behind(evidence)
    for fault, seconds in zip((found.fault for found in measured), times, strict=True):
        if seconds > limit:
            yield f"fault {fault.number} ({fault.kind} of {fault.target}): {seconds:.1f} s to recover"
