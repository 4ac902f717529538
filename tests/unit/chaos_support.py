"""A synthetic run in which every promise is kept: what the tests of the checker and of the report break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.checker import judge
from chaos.deployment import AUDIT, TWIN
from chaos.evidence import Evidence
from chaos.history import (
    Business,
    Call,
    ConsumerEnd,
    Diagnosed,
    Effect,
    Failure,
    Fault,
    InboxState,
    Incident,
    Noted,
    Operation,
    OutboxState,
    Outcome,
    Plan,
    Posted,
    Produced,
    Receipt,
    Sample,
    Source,
    Stored,
    Twins,
)
from chaos.judgement import Judgement

EFFECTIVE = {Plan.ACCEPT, Plan.FLAKY, Plan.HANG, Plan.DROP}
BEGIN = 1_000_000.0
Choice = tuple[Source, str, Plan]

#: Every plan of every source, on three keys.
EVERY_CHOICE: list[Choice] = [
    (source, f"key-{number % 3}", plan)
    for number, (source, plan) in enumerate((source, plan) for source in Source for plan in Plan)
]


def good_run(choices: Sequence[Choice] = EVERY_CHOICE) -> Evidence:
    """Operations of three events, some with an unknown outcome, then a rollback, a failure and a bad row."""
    evidence = Evidence()
    events = [Produced(f"e{number}", *choice[:2], choice[2]) for number, choice in enumerate(choices)]
    for number in range(0, len(events), 3):
        outcome = (Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED)[number // 3 % 3]
        _operation(evidence, "batch", Outcome.OK if number == 0 else outcome, *events[number : number + 3])
    for event in events:
        _deliver(evidence, event)
    _operation(evidence, "rollback", Outcome.FAILED, Produced("undone", Source.HTTP, "key-0", Plan.ACCEPT))
    _operation(evidence, "one", Outcome.UNKNOWN, Produced("unknown", Source.HTTP, "key-0", Plan.ACCEPT))
    _operation(evidence, "bad", Outcome.OK, Produced("bad", Source.HTTP, "bad-key", Plan.ACCEPT, bad=True))
    evidence.outbox.append(OutboxState("bad", "dead", None))
    evidence.business.append(Business("bad", "bad-key", 1))
    last = evidence.stream[-1].seq if evidence.stream else 0
    evidence.consumers += [ConsumerEnd(f"sea__{name}", 0, 0, last, last) for name in (*Source, AUDIT)]
    evidence.notes += [Noted(AUDIT, event.id, 1) for event in events if event.source is Source.PYTHON]
    evidence.twins.append(Twins(1, ["e0", "e1"]))
    evidence.notes += [Noted(TWIN, "e0", 1), Noted(TWIN, "e1", 1)]
    evidence.diagnosed.append(Diagnosed(1, "stream_full", 12.0, 1.0, "STREAM_REFUSES"))
    evidence.receipts += [
        Receipt("sea", "dead_letter", 2, taken=False),
        Receipt("sea", "dead_letter", 2, taken=True),
    ]
    evidence.posted.append(Posted("sea", "dead_letter", 2))
    evidence.failures.append(Failure("sea", "dead_letter", "7", 1, 1))
    evidence.samples += busy(BEGIN, 120)
    evidence.faults += [fault(number, BEGIN + 10 + 20 * number) for number in range(5)]
    return evidence


def busy(begin: float, seconds: int) -> list[Sample]:
    """Steady work: a sample a second, ten events between two of them and always a few on their way."""
    return [Sample(begin + n, 10 * n + 20, 10 * n + 10, 10 * n, 10, 40) for n in range(seconds)]


def fault(number: int, began: float, lasts: float = 3, kind: str = "kill worker") -> Fault:
    return Fault(number, kind, "worker-1", began, began + lasts)


def _operation(evidence: Evidence, kind: str, outcome: Outcome, *events: Produced) -> None:
    at = BEGIN + len(evidence.operations)
    evidence.operations.append(Operation(len(evidence.operations), kind, outcome, events, at))


def _deliver(evidence: Evidence, event: Produced) -> None:
    place = 1 + sum(row.key == event.key for row in evidence.business)
    seq = len(evidence.stream) + 1
    evidence.business.append(Business(event.id, event.key, place))
    evidence.outbox.append(OutboxState(event.id, "published", seq))
    evidence.stream.append(Stored(seq, event.id))
    refused = {Plan.POISON: "poison", Plan.NEVER: "exhausted"}.get(event.plan)
    attempts = 60 if event.plan is Plan.NEVER else 1
    state = "dead-lettered" if refused else "processed"
    evidence.inbox.append(InboxState(event.id, event.source, state, attempts))
    evidence.calls.append(Call(event.id, event.source, "ok", BEGIN + seq / 10))
    if refused:
        evidence.incidents.append(Incident(event.id, event.source, refused, attempts))
    elif event.plan in EFFECTIVE:
        evidence.effects.append(Effect(event.id, event.source, event.key, len(evidence.effects) + 1))


# --- judging and breaking it -----------------------------------------------------------------------


def judged(evidence: Evidence, *, drained: bool = True, **options: Any) -> dict[int, Judgement]:
    return {judgement.number: judgement for judgement in judge(evidence, drained=drained, **options)}


def broken(evidence: Evidence, **options: Any) -> set[int]:
    """The promises that are judged broken, without the sum of them."""
    return {number for number, judgement in judged(evidence, **options).items() if not judgement.kept} - {7}


def exchange(evidence: Evidence, one: str, other: str) -> None:
    """Swap two events in the stream, and let the outbox know: a publisher that did not keep order."""
    swapped = {one: other, other: one}
    evidence.stream[:] = [Stored(row.seq, swapped.get(row.id, row.id)) for row in evidence.stream]
    seqs = {row.id: row.seq for row in evidence.stream}
    evidence.outbox[:] = [replace(row, stream_seq=seqs.get(row.id)) for row in evidence.outbox]


def change(rows: list[Any], id: str, **fields: Any) -> None:
    """Replace fields of the row of a message."""
    [index] = [index for index, row in enumerate(rows) if id in {getattr(row, name) for name in ids_of(row)}]
    rows[index] = replace(rows[index], **fields)


def drop(rows: list[Any], id: str) -> None:
    """Delete every row of a message."""
    rows[:] = [row for row in rows if id not in {getattr(row, name) for name in ids_of(row)}]


def ids_of(row: Any) -> set[str]:
    return {"id", "message_id", "event_id"} & set(row.__dataclass_fields__)


def exchange_effects(evidence: Evidence, one: str, other: str) -> None:
    places = {effect.message_id: effect.place for effect in evidence.effects}
    change(evidence.effects, one, place=places[other])
    change(evidence.effects, other, place=places[one])


def vanish(evidence: Evidence, id: str) -> None:
    """The event is gone behind the outbox, which believes that it was published."""
    for rows in (evidence.stream, evidence.inbox, evidence.effects, evidence.calls, evidence.incidents):
        drop(rows, id)


def give_up(evidence: Evidence, id: str, attempts: int) -> None:
    """The good message is dead-lettered after so many attempts."""
    change(evidence.inbox, id, state="dead-lettered", attempts=attempts)
    drop(evidence.effects, id)
    evidence.incidents.append(Incident(id, "http", "exhausted", attempts))
