"""Promise 15: every final failure alerts: one row, and a receipt at a webhook that fails now and then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from chaos.evidence import Evidence
from chaos.judgement import Judgement, conclude


def all_alerted(evidence: Evidence) -> Judgement:
    """Each failure has its alert, and the webhook got at least as many as the databases say that it took."""
    taken = [it for it in evidence.receipts if it.taken]
    figures = {
        "failures": len(evidence.failures),
        "alerts taken": len(taken),
        "refused": len(evidence.receipts) - len(taken),
    }
    return conclude(15, "every final failure alerts", _silent(evidence), figures)


def _silent(evidence: Evidence) -> Iterator[str]:
    # A dead event that an operator gives back may die again, and alerts again.
    retries = sum("outbox retry: done" in fault.note for fault in evidence.faults)
    for it in evidence.failures:
        most = 1 + (retries if it.kind == "dead_event" else 0)
        if not 1 <= it.alerts <= most:
            yield f"{it.kind} {it.id} of {it.context} has {it.alerts} alerts"
        elif it.posted < it.alerts:
            yield f"{it.kind} {it.id} of {it.context} alerted {it.alerts} times, {it.posted} of them posted"
    got: Counter[tuple[str, str]] = Counter()
    for receipt in evidence.receipts:
        if receipt.taken:
            got[receipt.context, receipt.kind] += receipt.count
    for posted in evidence.posted:
        if got[posted.context, posted.kind] < posted.count:
            what = f"{posted.count} alerts of class {posted.kind} were posted for {posted.context}"
            yield f"{what}, and the webhook has got {got[posted.context, posted.kind]}"
