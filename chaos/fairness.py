"""Promise 11: a handler that hangs delays only its own messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from chaos.calls import CALLED_ONCE
from chaos.evidence import Evidence
from chaos.history import BEHIND, QUICK, Fault, Outcome
from chaos.judgement import Figure, Judgement, conclude
from chaos.ledger import Ledger
from chaos.recovery import percentile

HANG: Final = "handler-hang"
#: Nine of ten messages of other handlers are handled within this time of their commit, in seconds.
PROMPT: Final = 5.0
#: How long ago other faults must have ended, because messages that they delayed are handled first.
_CALM: Final = 8.0
#: After this time a hang has filled all the slots that it can fill, in seconds.
_FILLED: Final = 1.0
#: Fewer messages than these say nothing.
_ENOUGH: Final = 20


def fairly_shared(evidence: Evidence, ledger: Ledger) -> Judgement:
    """Judge how long quick messages wait while another handler hangs and no other fault is active."""
    called = _first_calls(evidence)
    waits = [(hang, found) for hang in _hangs(evidence) if (found := _waits(evidence, ledger, hang, called))]
    measured = [seconds for _, found in waits for seconds in found]
    figures: dict[str, Figure] = {"hangs": len(_hangs(evidence)), "quick messages beside them": len(measured)}
    if measured:
        figures["90th percentile of their wait"] = f"{percentile(measured, 0.9):.1f} s"
        figures["longest"] = f"{max(measured):.1f} s"
    return conclude(11, "a handler that hangs delays no other", _starved(waits), figures)


def _starved(waits: list[tuple[Fault, list[float]]]) -> Iterator[str]:
    for hang, found in waits:
        if len(found) >= _ENOUGH and (mostly := percentile(found, 0.9)) > PROMPT:
            yield f"during fault {hang.number} one in ten quick messages waited {mostly:.1f} s and longer"


def _hangs(evidence: Evidence) -> list[Fault]:
    return [fault for fault in evidence.faults if fault.kind == HANG and BEHIND not in fault.note]


def _waits(evidence: Evidence, ledger: Ledger, hang: Fault, called: Mapping[str, float]) -> list[float]:
    """Return the seconds from each quick message's commit to its first call, or to the end without a call."""
    others = [fault.ended for fault in evidence.faults if fault is not hang and fault.began < hang.ended]
    first = max(hang.began + _FILLED, *(ended + _CALM for ended in others), hang.began)
    return [
        max(0.0, min(called.get(event.id, hang.ended), hang.ended) - operation.at)
        for operation in evidence.operations
        if operation.outcome is Outcome.OK and first < operation.at < hang.ended - PROMPT
        for event in operation.events
        if event.id in ledger.committed and event.source in QUICK and event.plan in CALLED_ONCE
    ]


def _first_calls(evidence: Evidence) -> dict[str, float]:
    first: dict[str, float] = {}
    for call in evidence.calls:
        began = call.at - (call.ended - call.began)
        first[call.message_id] = min(began, first.get(call.message_id, began))
    return first
