"""Promise 10: nothing is done again, and nothing at the same time, unless a fault explains it."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.calls import Span, amplification, amplified, overlapping, spans
from chaos.evidence import Evidence
from chaos.judgement import Figure, Judgement, conclude
from chaos.ledger import Ledger
from chaos.stream_copies import relapses, unexplained


def repeated(evidence: Evidence, ledger: Ledger) -> Judgement:
    """Copies in the stream, their order, calls at once and calls again."""
    calls = spans(evidence)
    figures: dict[str, Figure] = {
        "stored more than once": sum(count > 1 for count in ledger.stored.values()),
        "handler calls": len(calls),
        "without an end": sum(call.answer is None for call in calls),
        "handler calls per message outside faults": amplification(evidence, ledger, calls),
    }
    return conclude(10, "work is repeated only for a cause", _broken(evidence, ledger, calls), figures)


def _broken(evidence: Evidence, ledger: Ledger, calls: list[Span]) -> Iterator[str]:
    yield from unexplained(evidence, ledger)
    yield from relapses(evidence, ledger)
    yield from overlapping(evidence, ledger, calls)
    yield from amplified(evidence, ledger, calls)
