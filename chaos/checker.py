"""The judge of a run: a judgement for every promise of DESIGN §9, from the records alone.

The checker reads no system and changes nothing. It does not trust the system under test. The business table says
what was committed. The records of producers, handlers and servers say what happened. A run in which nothing
happened proves nothing, so it does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chaos.alerting import all_alerted
from chaos.calls import spans
from chaos.cron_runs import one_at_a_time
from chaos.deployment import MAX_ATTEMPTS
from chaos.diagnoses import causes_named
from chaos.evidence import Evidence
from chaos.fairness import fairly_shared
from chaos.history import CRASHED
from chaos.judgement import Figure, Judgement, conclude
from chaos.ledger import Ledger, open_ledger
from chaos.neighbours import others_unharmed
from chaos.promises import (
    bad_rows_contained,
    dead_letters_accounted,
    effects_once,
    nothing_lost,
    nothing_phantom,
    nothing_stuck,
    order_kept,
)
from chaos.recovery import recovered
from chaos.repeats import repeated
from chaos.views import seen_by_each


def judge(
    evidence: Evidence,
    *,
    drained: bool,
    liveness: bool = False,
    faults_expected: bool = True,
    max_attempts: int = MAX_ATTEMPTS,
) -> list[Judgement]:
    """Judge every promise. ``drained``: the system was at rest in time after the last fault was healed.

    ``liveness``: the faults never end, so work must go on, but the time of recovery does not count.
    ``max_attempts``: with fewer attempts a message must not be given up because its handler was down.
    """
    ledger = open_ledger(evidence, max_attempts)
    final = [
        nothing_lost(ledger),
        nothing_phantom(ledger),
        effects_once(ledger),
        order_kept(ledger),
        dead_letters_accounted(ledger),
        nothing_stuck(ledger, evidence.consumers, drained),
    ]
    others = [
        bad_rows_contained(ledger),
        repeated(evidence, ledger),
        fairly_shared(evidence, ledger),
        one_at_a_time(evidence),
        seen_by_each(evidence, ledger),
        causes_named(evidence),
        all_alerted(evidence),
        others_unharmed(evidence, ledger, spans(evidence)),
    ]
    return [
        _meaningful(evidence, ledger, faults_expected),
        *final,
        _under_faults(evidence, [*final, *others]),
        recovered(evidence, liveness),
        *others,
    ]


def _meaningful(evidence: Evidence, ledger: Ledger, faults_expected: bool) -> Judgement:
    figures: dict[str, Figure] = {
        "operations": len(evidence.operations),
        "events committed": len(ledger.committed),
        "effects": len(evidence.effects),
        "faults": len(evidence.faults),
        "samples": len(evidence.samples),
    }
    return conclude(0, "the run is meaningful", _gaps(evidence, ledger, faults_expected), figures)


def _gaps(evidence: Evidence, ledger: Ledger, faults_expected: bool) -> Iterator[str]:
    required = {
        "no committed event is known": ledger.committed,
        "no effect is known": evidence.effects,
        "the counts were never sampled": evidence.samples,
        "no consumer was asked at the end": evidence.consumers,
    }
    if faults_expected:
        required["no fault was injected"] = evidence.faults
    yield from (gap for gap, found in required.items() if not found)
    yield from (f"business row {id} belongs to no recorded operation" for id in ledger.unmade)


def _under_faults(evidence: Evidence, others: list[Judgement]) -> Judgement:
    kinds = Counter(fault.kind for fault in evidence.faults)
    figures: dict[str, Figure] = {"faults": len(evidence.faults), **dict(sorted(kinds.items()))}
    broken = [f"promise {other.number} was broken: {other.name}" for other in others if not other.kept]
    crashed = [f"fault {fault.number}: {fault.note}" for fault in evidence.faults if CRASHED in fault.note]
    return conclude(7, "faults change none of this", [*broken, *crashed], figures)
