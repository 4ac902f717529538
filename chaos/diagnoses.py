"""Promise 14: while a cause holds a backlog still, `relay doctor` names it, and not when it is healed."""

from __future__ import annotations

from collections.abc import Iterator

from chaos.evidence import Evidence
from chaos.judgement import Figure, Judgement, conclude


def causes_named(evidence: Evidence) -> Judgement:
    """Every cause was named in time, and forgotten in time."""
    named = [it.named for it in evidence.diagnosed if it.named is not None]
    gone = [it.gone for it in evidence.diagnosed if it.gone is not None]
    figures: dict[str, Figure] = {"causes": len(evidence.diagnosed)}
    if named:
        figures["slowest to be named"] = f"{max(named):.0f} s"
    if gone:
        figures["slowest to go"] = f"{max(gone):.0f} s"
    return conclude(14, "health names what stands still", _untold(evidence), figures)


def _untold(evidence: Evidence) -> Iterator[str]:
    for it in evidence.diagnosed:
        if it.named is None:
            yield f"fault {it.fault}: {it.cause} was not named, only: {it.found or 'nothing'}"
        if it.gone is None:
            yield f"fault {it.fault}: {it.cause} was healed, and is still named"
