"""The evidence of a run by event id: what was committed, what was not, and how each event ended."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from chaos.deployment import BACKOFF, BESIDE
from chaos.evidence import Evidence
from chaos.history import (
    Effect,
    Hostile,
    InboxState,
    Incident,
    Letters,
    Operation,
    OutboxState,
    Outcome,
    Plan,
    Produced,
)
from chaos.windows import Windows

#: Jitter leaves at least this share of the nominal back-off.
_LEAST_OF_BACKOFF: Final = 0.8
#: Targets where a fault keeps a handler away, or keeps its answers from being recorded.
_AROUND_HANDLERS: Final = ("worker", "service", "postgres", "valkey")
#: Faults that cost no message an attempt: the circuit of a handler that is away is open, and who gets no session
#: does not call.
_COST_NO_ATTEMPT: Final = frozenset({"handler-away", "few-connections", "odd-sessions"})
#: A call that meets a fault may fail so much later, in seconds.
_CALL: Final = 3.0

#: The kind of an operation that its producer means to roll back.
ROLLBACK: Final = "rollback"

OfMessage = TypeVar("OfMessage", Effect, Incident)


@dataclass(slots=True)
class Ledger:
    """A look-up for each question of the promises. The business table decides what was committed."""

    committed: dict[str, Produced] = field(default_factory=dict)
    """Good events whose business row is there: the system must deliver each of them."""
    missing: dict[str, int] = field(default_factory=dict)
    """Events of an operation that the database confirmed, without their business row, and the operation."""
    undone: dict[str, int] = field(default_factory=dict)
    """Events that were rolled back, and the operation."""
    bad: list[str] = field(default_factory=list)
    """Committed events that can never be published."""
    torn: list[int] = field(default_factory=list)
    """Operations of which the database kept a part."""
    unmade: list[str] = field(default_factory=list)
    """Business rows that no recorded operation wrote."""
    rows: frozenset[str] = frozenset()
    """Events with a business row."""
    keys: dict[str, list[str]] = field(default_factory=dict)
    """The committed events of each key in the order of their places."""
    outbox: Mapping[str, OutboxState] = field(default_factory=dict)
    inbox: Mapping[str, InboxState] = field(default_factory=dict)
    ids: Mapping[int, str] = field(default_factory=dict)
    """What the stream has under a sequence number."""
    stored: Counter[str] = field(default_factory=Counter)
    first: Mapping[str, int] = field(default_factory=dict)
    """The position in the stream of an event's first occurrence."""
    effects: Mapping[str, list[Effect]] = field(default_factory=dict)
    incidents: Mapping[str, list[Incident]] = field(default_factory=dict)
    """Those of the subscriptions that the inbox above is of."""
    lost: frozenset[str] = frozenset()
    """Events that were in a lost tail of the stream. It cannot have kept their place in the order of their key."""
    abandoned: frozenset[str] = frozenset()
    """Good messages given up after all attempts, because their handler was away for so long."""
    replayed: frozenset[str] = frozenset()
    """Events that an operator had published again."""
    requeued: Mapping[str, int] = field(default_factory=dict)
    """Dead letters that an operator gave back, and how often."""
    withdrawn: frozenset[str] = frozenset()
    """Events that the producer's database has lost, because it was set back."""
    reported: frozenset[str] = frozenset()
    """Those that were reported to the consumers."""
    notices: frozenset[str] = frozenset()
    """The events that report them."""
    hostile: Mapping[str, Hostile] = field(default_factory=dict)
    """What strangers put into the stream, by its id there."""
    stand_ins: frozenset[str] = frozenset()
    """The ids of those in the inbox."""
    strange: frozenset[str] = frozenset()
    """Rows that a stranger put into an outbox."""

    letters: Letters | None = None
    """What dead letters became."""
    deaths: int = 0
    """How often messages of events died."""
    forged: int = 0
    """How many letters somebody else wrote."""

    def expected(self) -> Iterator[str]:
        """Ids that may appear downstream of the outbox; anything else there is a phantom."""
        yield from self.committed
        yield from self.missing
        yield from self.bad
        yield from self.unmade
        yield from self.hostile
        yield from self.stand_ins
        yield from self.notices
        yield from self.strange


def open_ledger(evidence: Evidence, max_attempts: int) -> Ledger:
    """Index the evidence."""
    ledger = Ledger(
        outbox={row.id: row for row in evidence.outbox},
        inbox={row.id: row for row in evidence.inbox},
        ids={message.seq: message.id for message in evidence.stream},
        stored=Counter(message.id for message in evidence.stream),
        effects=_by_message(evidence.effects),
        incidents=_by_message([it for it in evidence.incidents if it.source not in BESIDE]),
        lost=frozenset(id for tail in evidence.lost for id in tail.ids),
        replayed=frozenset(id for done in evidence.operated if done.action == "replay" for id in done.ids),
        requeued=Counter(id for done in evidence.operated if done.action == "requeue" for id in done.ids),
        withdrawn=frozenset(id for done in evidence.set_back for id in done.ids),
        reported=frozenset(it.id for it in evidence.orphans if it.state == "reported"),
        notices=frozenset(it.id for it in evidence.orphans if it.state == "notice"),
        hostile={message.id: message for message in evidence.hostile},
        stand_ins=frozenset(message.stand_in for message in evidence.hostile),
        strange=frozenset(id for rows in evidence.strange for id in rows.ids),
        letters=evidence.letters[-1] if evidence.letters else None,
        deaths=len(evidence.incidents),
        forged=sum(done.count for done in evidence.forged),
    )
    ledger.first = _first_positions(evidence)
    _settle(ledger, evidence)
    ledger.keys = _by_key(ledger, evidence)
    ledger.abandoned = _abandoned(ledger, evidence, max_attempts)
    return ledger


def _settle(ledger: Ledger, evidence: Evidence) -> None:
    """Sort every event by what became of its transaction."""
    ledger.rows = frozenset(row.event_id for row in evidence.business)
    for operation in evidence.operations:
        _settle_operation(ledger, operation)
    known = {event.id for operation in evidence.operations for event in operation.events}
    ledger.unmade = sorted(ledger.rows - known)


def _settle_operation(ledger: Ledger, operation: Operation) -> None:
    present = {event.id for event in operation.events} & ledger.rows
    kept = sum(event.id in present or event.id not in ledger.withdrawn for event in operation.events)
    if 0 < len(present) < kept:
        ledger.torn.append(operation.number)
    for event in operation.events:
        if event.id in ledger.withdrawn and event.id not in present:
            # What had reached the stream goes its way. The rest never was.
            if event.id in ledger.stored or event.id in ledger.inbox:
                ledger.committed[event.id] = event
            else:
                ledger.undone[event.id] = operation.number
        elif event.id in present and operation.kind != ROLLBACK:
            if event.bad:
                ledger.bad.append(event.id)
            else:
                ledger.committed[event.id] = event
        elif operation.outcome is Outcome.OK and operation.kind != ROLLBACK:
            ledger.missing[event.id] = operation.number
        else:
            ledger.undone[event.id] = operation.number


def _by_key(ledger: Ledger, evidence: Evidence) -> dict[str, list[str]]:
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for row in sorted(evidence.business, key=lambda row: row.place):
        if row.event_id in ledger.committed:
            keys[row.key].append(row.event_id)
    return dict(keys)


def _first_positions(evidence: Evidence) -> dict[str, int]:
    first: dict[str, int] = {}
    for position, message in enumerate(evidence.stream):
        first.setdefault(message.id, position)
    return first


def _abandoned(ledger: Ledger, evidence: Evidence, max_attempts: int) -> frozenset[str]:
    """Return messages that used all attempts while faults blocked their handler for as long as these take."""
    around = [fault for fault in evidence.faults if fault.target.startswith(_AROUND_HANDLERS)]
    windows = Windows([fault for fault in around if fault.kind not in _COST_NO_ATTEMPT])
    committed_at = {event.id: operation.at for operation in evidence.operations for event in operation.events}
    patience = shortest_patience(max_attempts)
    return frozenset(
        incident.message_id
        for incident in evidence.incidents
        if incident.kind == "exhausted"
        and incident.attempts >= max_attempts
        and (event := ledger.committed.get(incident.message_id)) is not None
        and event.plan is not Plan.NEVER
        and windows.covered(committed_at[event.id], math.inf, more=_CALL) >= patience
    )


def shortest_patience(max_attempts: int) -> float:
    """The seconds between the first attempt and the last, if every call fails at once."""
    initial, most = BACKOFF
    return sum(min(most, initial * 2.0**failures) * _LEAST_OF_BACKOFF for failures in range(max_attempts - 1))


def _by_message(records: list[OfMessage]) -> dict[str, list[OfMessage]]:
    result: defaultdict[str, list[OfMessage]] = defaultdict(list)
    for record in records:
        result[record.message_id].append(record)
    return dict(result)
