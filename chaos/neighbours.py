"""Promise 16: what strangers write and what functions do harms nobody else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Final

from chaos.calls import Span
from chaos.deployment import LEASE_SECONDS, TWIN
from chaos.evidence import Evidence
from chaos.history import Fault, Source
from chaos.judgement import Figure, Judgement, conclude
from chaos.ledger import Ledger
from chaos.recovery import MOSTLY, SLOWEST, stood_still
from chaos.rude_handlers import raised_by
from chaos.windows import Windows

RAISING: Final = "base-exceptions"
#: While these last, everything moves.
GENTLE: Final = frozenset({"foreign-answers", "odd-sessions", "leftovers", RAISING})
#: Whose handlers raise what they like.
_RUDE: Final = frozenset({Source.PYTHON, Source.ORDERED})
#: Fewer calls say nothing.
_ENOUGH: Final = 3
_GRACE: Final = 10.0


def others_unharmed(evidence: Evidence, ledger: Ledger, calls: list[Span]) -> Judgement:
    """Judge foreign rows, rude functions, and a task behind a thousand queues that nobody knows."""
    waits = [it.ran - it.began for it in evidence.probes if it.ran is not None]
    figures: dict[str, Figure] = {
        "rows of strangers": sum(len(it.ids) for it in evidence.strange),
        "tasks behind invented queues": len(evidence.probes),
    }
    if waits:
        figures["slowest of them"] = f"{max(waits):.1f} s"
    found = chain(
        _published(evidence, ledger),
        _rude(evidence),
        _held_up(evidence),
        _stopped(evidence),
        _unnoted(evidence, calls),
    )
    return conclude(16, "strangers and functions harm no other", found, figures)


def _published(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    noted = evidence.noted(TWIN)
    for it in evidence.strange:
        for id in it.ids if it.stay else ():
            row = ledger.outbox.get(id)
            if id in ledger.stored or id in noted or (row is not None and row.state == "published"):
                yield f"fault {it.fault}: row {id} of a stranger was published"


def _rude(evidence: Evidence) -> Iterator[str]:
    for left in evidence.leftovers:
        yield f"the call about message {left.message_id} found what another call has left: {left.what}"
    for ended in evidence.ended:
        yield f"fault {ended.fault}: an exception of a handler ended {', '.join(ended.processes)}"


def _held_up(evidence: Evidence) -> Iterator[str]:
    for it in evidence.probes:
        others = Windows([fault for fault in evidence.faults if fault.number != it.fault])
        if it.ran is None:
            yield f"fault {it.fault}: a task behind invented queues did not run"
        elif (seconds := others.calm(it.began, it.ran)) > SLOWEST:
            yield f"fault {it.fault}: a task behind invented queues waited {seconds:.1f} s"


def _stopped(evidence: Evidence) -> Iterator[str]:
    gentle = [fault for fault in evidence.faults if fault.kind in GENTLE]
    for fault, side in stood_still(evidence, gentle, _GRACE, MOSTLY):
        yield f"{side.name} stood still for more than {MOSTLY:.0f} s during fault {fault.number} ({fault.kind})"


def _unnoted(evidence: Evidence, calls: list[Span]) -> Iterator[str]:
    """Yield exceptions after which no call came before the lease was over: nobody noted the failed attempt."""
    gaps: defaultdict[str, list[float]] = defaultdict(list)
    of_message: defaultdict[str, list[Span]] = defaultdict(list)
    for call in calls:
        if call.source in _RUDE:
            of_message[call.message_id].append(call)
    others = Windows([fault for fault in evidence.faults if fault.kind != RAISING])
    raising = [fault for fault in evidence.faults if fault.kind == RAISING]
    for message_id, several in of_message.items():
        for attempt, (before, after) in enumerate(pairwise(several), start=1):
            alone = not others.any_within(several[0].began - _GRACE, after.began)
            if before.answer == "error" and alone and _during(raising, before.ended):
                gaps[raised_by(message_id, attempt).__name__].append(after.began - before.ended)
    for name, found in gaps.items():
        if len(found) >= _ENOUGH and min(found) > LEASE_SECONDS / 2:
            yield f"none of {len(found)} calls that raised {name} was tried again within {min(found):.1f} s"


def _during(faults: list[Fault], at: float) -> bool:
    return any(fault.began <= at <= fault.ended for fault in faults)
