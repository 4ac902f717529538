"""Promise 10, calls: no two at once, and no repeated call without a cause. Read from the handlers' own records.

All handlers run on this host, so the monotonic clock orders their calls across processes.

Two calls may overlap if the worker of the first was paused: a paused process cannot cancel its call before another
worker takes the lease. A service also learns late that its caller has hung up if it is frozen itself, or if their
link is blocked. A function in a thread counts only until its time-out: it cannot be cancelled, and the
documentation says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from chaos.deployment import CALL_SECONDS, LEASE_SECONDS
from chaos.evidence import Evidence
from chaos.history import ORDERED, Call, Fault, Plan, Source
from chaos.ledger import Ledger
from chaos.windows import Windows

#: Plans whose message needs one call when nothing disturbs it.
CALLED_ONCE: Final = frozenset({Plan.ACCEPT, Plan.REPEAT, Plan.POISON})
#: Answers that end a message.
_FINAL: Final = frozenset({"ok", "repeat", "poison"})
#: Answers that come after the time-out.
_OUTLIVED: Final = {"hang", "late"}
_SERVED: Final = frozenset({Source.HTTP, Source.SLOW})
#: Faults that pause a worker: its calls cannot be cancelled meanwhile.
PAUSES: Final = frozenset({"worker-freeze", "worker-stall", "still-loop", "still-workers"})
#: How long a hang-up may take to reach the service, and how much longer after it was held back.
_NEWS_SECONDS: Final = 0.5
_LATE_NEWS_SECONDS: Final = 2.0
#: Up to so many seconds after a fault, its damage may be noticed and repaired.
_GRACE: Final = 10.0
#: Faults that disturb no call.
_HARMLESS: Final = frozenset(
    {"poison-rows", "future-rows", "hostile-messages", "forged-letters", "hostile-rows", "foreign-answers"}
)


@dataclass(frozen=True, slots=True)
class Span:
    """A call from beginning to end, in Unix time. ``answer``: None if its process died before the answer."""

    message_id: str
    source: Source
    answer: str | None
    began: float
    ended: float


def spans(evidence: Evidence) -> list[Span]:
    """Return all calls by their beginning. A call without an end lasts until the last record of its process."""
    shift = _shift(evidence.calls)
    found = [_span(call, shift) for call in evidence.calls]
    ended = {(call.message_id, call.pid, call.began) for call in evidence.calls}
    alive: dict[int, float] = {}
    for pid, at in ((call.pid, call.ended) for call in evidence.calls):
        alive[pid] = max(at, alive.get(pid, at))
    for begun in evidence.begun:
        alive[begun.pid] = max(begun.began, alive.get(begun.pid, begun.began))
    for begun in evidence.begun:
        if (begun.message_id, begun.pid, begun.began) not in ended:
            last = _capped(begun.source, begun.began, alive[begun.pid])
            found.append(Span(begun.message_id, begun.source, None, begun.began + shift, last + shift))
    return sorted(found, key=lambda span: span.began)


def _shift(calls: list[Call]) -> float:
    """From the monotonic clock to Unix time."""
    known = sorted(call.at - call.ended for call in calls if call.ended)
    return known[len(known) // 2] if known else 0.0


def _span(call: Call, shift: float) -> Span:
    if not call.ended:
        return Span(call.message_id, call.source, call.answer, call.at, call.at)
    late = call.ended - call.began >= CALL_SECONDS[call.source]
    ended = _capped(call.source, call.began, call.ended)
    answer = "late" if late and call.answer in _FINAL else call.answer
    return Span(call.message_id, call.source, answer, call.began + shift, ended + shift)


def _capped(source: Source, began: float, ended: float) -> float:
    return min(ended, began + CALL_SECONDS[source]) if source is Source.PYTHON else ended


# --- two at once --------------------------------------------------------------------------------


def overlapping(evidence: Evidence, ledger: Ledger, calls: list[Span]) -> Iterator[str]:
    """Yield a sentence for every call that begins during another call that excludes it."""
    by_message: defaultdict[str, list[Span]] = defaultdict(list)
    by_key: defaultdict[tuple[Source, str], list[Span]] = defaultdict(list)
    for call in calls:
        by_message[call.message_id].append(call)
        if call.source in ORDERED and (key := _ordered_key(ledger, call.message_id)):
            by_key[call.source, key].append(call)
    for message_id, several in by_message.items():
        for first, second, seconds in _overlaps(several, evidence.faults):
            yield f"message {message_id} ({second.source}): two calls at once for {seconds:.1f} s, {_when(first)}"
    for (source, key), several in by_key.items():
        for first, second, seconds in _overlaps(several, evidence.faults):
            if first.message_id != second.message_id:
                both = f"messages {first.message_id} and {second.message_id}"
                yield f"key {key} ({source}): {both} were handled at once for {seconds:.1f} s, {_when(first)}"


def _ordered_key(ledger: Ledger, message_id: str) -> str | None:
    """Return the key whose order a message must keep; None if it was published again after a loss."""
    event = ledger.committed.get(message_id)
    return None if event is None or message_id in ledger.lost else event.key


def _when(call: Span) -> str:
    return f"the first from {call.began:.1f} to {call.ended:.1f}"


def _overlaps(calls: list[Span], faults: list[Fault]) -> Iterator[tuple[Span, Span, float]]:
    last: Span | None = None
    for call in calls:
        seconds = min(last.ended, call.ended) - call.began if last else 0.0
        if last and seconds > _slack(last) and not any(_explains(fault, last, call) for fault in faults):
            yield last, call, seconds
        if last is None or call.ended > last.ended:
            last = call


def _slack(first: Span) -> float:
    """Return how long a second call may run beside the first without a cause, in seconds."""
    if first.source in _SERVED:
        return _NEWS_SECONDS
    # The time-out of a function in a thread began before its own record. A busy machine takes long in between.
    outlived = first.source is Source.PYTHON and first.answer in _OUTLIVED
    return CALL_SECONDS[Source.PYTHON] / 2 if outlived else 0.0


def _explains(fault: Fault, first: Span, second: Span) -> bool:
    """Tell whether this fault could let the first call go on while the second began."""
    if fault.began > second.began or fault.ended < first.began:
        return False
    if fault.kind in PAUSES:
        return True
    held_back = fault.kind == "service-freeze" or fault.target == "worker-service"
    return held_back and first.source in _SERVED and first.ended < fault.ended + _LATE_NEWS_SECONDS


# --- once more than needed ----------------------------------------------------------------------


def amplified(evidence: Evidence, ledger: Ledger, calls: list[Span]) -> Iterator[str]:
    """Yield a sentence for every message handled again after a final answer more often than faults explain.

    A fault that prevents the record of an answer explains one call, and one more for each lease that it lasts.
    A fault that a worker notices at once (`_is_told`) explains each call while it lasts: back-offs separate calls.
    """
    disturbing = [fault for fault in evidence.faults if fault.kind not in _HARMLESS]
    windows, told = Windows(disturbing), Windows([fault for fault in disturbing if _is_told(fault)])
    for message_id, several in _needing_one(ledger, calls).items():
        again = [(before, call) for before, call in pairwise(several) if before.answer in _FINAL]
        if not again:
            continue
        for before, call in again:
            if not windows.any_within(before.began - _GRACE, call.began):
                gap = f"{call.began - before.ended:.1f} s after its answer {before.answer}, and no fault between"
                yield f"message {message_id} ({call.source}) was called again {gap}"
        life = windows.within(several[0].began - _GRACE, several[-1].began)
        most = sum(2 + math.floor((fault.ended - fault.began) / LEASE_SECONDS) for fault in life)
        if life and sum(not told.active(before.ended) for before, _ in again) > most:
            yield f"message {message_id} was called {len(several)} times, {len(life)} faults explain {most + 1}"


def _is_told(fault: Fault) -> bool:
    """Tell whether a worker hears at once that a call failed: no room for the record, or no way for the answer."""
    no_way = fault.kind == "link-cut-reply" and fault.target == "worker-service"
    return no_way or fault.kind == "postgres-disk-full"


def amplification(evidence: Evidence, ledger: Ledger, calls: list[Span]) -> str:
    """Return the handler calls per message, for messages that need one call and met no fault."""
    windows = Windows(evidence.faults)
    counts = [
        len(several)
        for several in _needing_one(ledger, calls).values()
        if not any(windows.active(call.ended) for call in several)
    ]
    return f"{sum(counts) / len(counts):.3f}" if counts else "unknown"


def _needing_one(ledger: Ledger, calls: Iterable[Span]) -> dict[str, list[Span]]:
    found: defaultdict[str, list[Span]] = defaultdict(list)
    for call in calls:
        event = ledger.committed.get(call.message_id)
        if event is not None and event.plan in CALLED_ONCE and event.id not in ledger.requeued:
            found[call.message_id].append(call)
    return found
