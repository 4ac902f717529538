"""Promise 13: each subscription has its own view of what it has seen.

Two subscriptions are beside those of the sources. ``audit`` reads the messages of one source a second time.
``twin`` reads another stream, whose producer uses ids of the first one's events (`chaos.injections.twins`).
"""

from __future__ import annotations

from collections.abc import Iterator

from chaos.deployment import AUDIT, TWIN
from chaos.evidence import Evidence
from chaos.history import Source
from chaos.judgement import Judgement, conclude
from chaos.ledger import Ledger


def seen_by_each(evidence: Evidence, ledger: Ledger) -> Judgement:
    """Each subscription handles its messages once, whatever others have seen."""
    figures = {"second reader": len(evidence.noted(AUDIT)), "same ids": len(evidence.noted(TWIN))}
    return conclude(13, "each subscription has its own view", _unseen(evidence, ledger), figures)


def _unseen(evidence: Evidence, ledger: Ledger) -> Iterator[str]:
    if not any(consumer.name.endswith(f"__{AUDIT}") for consumer in evidence.consumers):
        return
    theirs = [id for it in evidence.twins for id in it.ids]
    both = (id for id, event in ledger.committed.items() if event.source is Source.PYTHON)
    ours = [id for id in both if id in ledger.stored]
    for name, ids in ((AUDIT, ours), (TWIN, theirs)):
        noted = evidence.noted(name)
        yield from (f"message {id} was not handled by {name}" for id in dict.fromkeys(ids) if id not in noted)
        yield from (
            f"message {id} was handled {count} times by {name}" for id, count in noted.items() if count > 1
        )
