"""Promise 8: how soon the system moves again after a fault, read from the samples and as exact as they are dense.

The system has two sides, publishing and handling. A side moves when its count grows from one sample to the
next, or when nothing waits on it; the system has recovered when both sides have moved since the fault ended.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from relay.chaos.evidence import Evidence
from relay.chaos.history import Call, Fault, Plan, Sample
from relay.chaos.judgement import Figure, Judgement, conclude
from relay.chaos.ledger import Ledger

#: Nine of ten recoveries take no longer, in seconds.
MOSTLY: Final = 10.0
#: No recovery takes longer, and in liveness mode no standstill with work waiting.
AT_MOST: Final = 60.0
#: Plans whose message needs one call when nothing disturbs it.
CALLED_ONCE: Final = frozenset({Plan.ACCEPT, Plan.REPEAT, Plan.POISON})


@dataclass(frozen=True, slots=True)
class Side:
    """One half of the way of an event: how far it came, and what waits. None: unknown at that moment."""

    name: str
    done: Callable[[Sample], int | None]
    waiting: Callable[[Sample], int | None]


@dataclass(frozen=True, slots=True)
class Recovery:
    """A fault, and the seconds from its end until both sides moved. None: another fault came in between."""

    fault: Fault
    seconds: float | None


class Windows:
    """The times at which faults were under way."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._began = sorted(fault.began for fault in faults)
        self._ended = sorted(fault.ended for fault in faults)

    def active(self, at: float) -> int:
        """How many faults were under way."""
        return bisect_right(self._began, at) - bisect_left(self._ended, at)

    def next_after(self, at: float) -> float:
        """When the next fault began."""
        index = bisect_right(self._began, at)
        return self._began[index] if index < len(self._began) else math.inf


def sides(evidence: Evidence) -> tuple[Side, Side]:
    """The sides of this run. Messages that are refused for ever wait long by design, and are no backlog."""
    stubborn = sum(event.plan is Plan.NEVER for operation in evidence.operations for event in operation.events)

    def waiting(sample: Sample) -> int | None:
        return None if sample.inbox is None else max(0, sample.inbox - stubborn)

    return (
        Side("publishing", lambda sample: sample.published, lambda sample: sample.outbox),
        Side("handling", lambda sample: sample.handled, waiting),
    )


# --- recovery -----------------------------------------------------------------------------------


def recoveries(evidence: Evidence) -> list[Recovery]:
    """How long each fault's recovery took."""
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    windows, both = Windows(evidence.faults), sides(evidence)
    return [Recovery(fault, _recovery(fault, samples, windows, both)) for fault in evidence.faults]


def _recovery(fault: Fault, samples: list[Sample], windows: Windows, both: tuple[Side, ...]) -> float | None:
    if not samples or windows.active(fault.ended) > 1:
        return None
    start = bisect_left(samples, fault.ended, key=lambda sample: sample.at)
    moved = max(_moved(side, samples, start) for side in both) - fault.ended
    # What is seen of a recovery that the next fault, or the end of the samples, broke off: it took longer.
    seen = min(windows.next_after(fault.ended), samples[-1].at) - fault.ended
    if moved <= seen:
        return moved
    return seen if seen > MOSTLY else None


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
    samples = sorted(evidence.samples, key=lambda sample: sample.at)
    return max((gap for side in sides(evidence) for gap in _gaps(side, samples)), default=0.0)


def _gaps(side: Side, samples: list[Sample]) -> Iterator[float]:
    moved, before = (samples[0].at if samples else 0.0), None
    for sample in samples:
        done = side.done(sample)
        yield sample.at - moved
        if side.waiting(sample) == 0 or (done is not None and before is not None and done > before):
            moved = sample.at
        before = before if done is None else done


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
        "left out, another fault followed": len(evidence.faults) - len(measured),
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
        ("slowest", max(times)),
    ]


def _halted(pause: float) -> Iterator[str]:
    if pause > AT_MOST:
        yield f"nothing moved for {pause:.1f} s while work waited, more than {AT_MOST:.0f} s"


def _slow(evidence: Evidence, measured: list[Recovery], times: list[float]) -> Iterator[str]:
    if evidence.faults and not measured:
        yield "no recovery could be measured: there are too few samples, or no fault stood alone"
    mostly = percentile(times, 0.9) if times else 0.0
    if mostly > MOSTLY:
        yield f"the 90th percentile of the recoveries is {mostly:.1f} s, more than {MOSTLY:.0f} s"
    limit = MOSTLY if mostly > MOSTLY else AT_MOST
    for fault, seconds in zip((found.fault for found in measured), times, strict=True):
        if seconds > limit:
            yield f"fault {fault.number} ({fault.kind} of {fault.target}): {seconds:.1f} s to recover"


def amplification(evidence: Evidence, ledger: Ledger) -> str:
    """Handler calls per message, of messages that need one call and met no fault in any of theirs."""
    windows = Windows(evidence.faults)
    calls: dict[str, int] = {}
    disturbed: set[str] = set()
    for call in filter(lambda call: _needs_one(ledger, call), evidence.calls):
        calls[call.message_id] = calls.get(call.message_id, 0) + 1
        if windows.active(call.at):
            disturbed.add(call.message_id)
    counts = [count for id, count in calls.items() if id not in disturbed]
    return f"{sum(counts) / len(counts):.3f}" if counts else "unknown"


def _needs_one(ledger: Ledger, call: Call) -> bool:
    event = ledger.committed.get(call.message_id)
    return event is not None and event.plan in CALLED_ONCE
