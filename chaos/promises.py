"""The promises of DESIGN §9 that the final state alone decides. Each yields a sentence for every violation.

An event that did not finish is reported once. An event that still waits is stuck (6), one that is nowhere is
lost (1), one that was handled without an effect breaks effects once (3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from chaos.history import ORDERED, ConsumerEnd, InboxState, OutboxState, Plan, Produced, Source
from chaos.judgement import Figure, Judgement, conclude
from chaos.ledger import Ledger
from chaos.plan import effects_of

SOURCES: Final = frozenset(Source)
#: Plans that end as a dead letter, and its class.
DEAD_LETTERS: Final = {Plan.POISON: "poison", Plan.NEVER: "exhausted"}


# --- 1 ------------------------------------------------------------------------------------------


def nothing_lost(ledger: Ledger) -> Judgement:
    """Every committed event is published, stored, taken in and finished as its plan says."""
    figures = {
        "committed": len(ledger.committed),
        "published": sum(row.state == "published" for row in ledger.outbox.values()),
        "in the stream": len(ledger.stored),
        "stored more than once": sum(count > 1 for count in ledger.stored.values()),
        "processed": sum(row.state == "processed" for row in ledger.inbox.values()),
        "dead-lettered": sum(row.state == "dead-lettered" for row in ledger.inbox.values()),
        "lost by the stream, or deleted": len(ledger.lost),
        "lost by the producer's database": len(ledger.withdrawn),
    }
    return conclude(1, "nothing committed is lost", _losses(ledger), figures)


def _losses(ledger: Ledger) -> Iterator[str]:
    for id, number in ledger.missing.items():
        yield f"event {id} has no business row, though operation {number} was confirmed"
    for number in ledger.torn:
        yield f"operation {number} was one transaction, and the database has only a part of it"
    for id, event in ledger.committed.items():
        row = ledger.outbox.get(id)
        if row is None and id in ledger.withdrawn:
            yield from _forgotten(ledger, event)
        elif row is None:
            yield f"event {id} is committed and not in the outbox"
        elif row.state == "dead":
            yield f"event {id} is committed and dead in the outbox"
        elif row.state == "published":
            yield from _losses_after_publishing(ledger, event, row)


def _forgotten(ledger: Ledger, event: Produced) -> Iterator[str]:
    """Judge an event that the producer's database has lost and the consumers have."""
    if event.id in ledger.stored and event.id not in ledger.reported:
        yield f"event {event.id} is in the stream, its producer lost it, and it is neither adopted nor reported"
    yield from _losses_after_storing(ledger, event)


def _losses_after_publishing(ledger: Ledger, event: Produced, row: OutboxState) -> Iterator[str]:
    if event.id not in ledger.stored:
        yield f"event {event.id} was published (sequence {row.stream_seq}) and is not in the stream"
    elif event.id not in ledger.lost and (found := _at(ledger, row)) != event.id:
        yield f"the outbox has event {event.id} at sequence {row.stream_seq}, where the stream has {found}"
    yield from _losses_after_storing(ledger, event)


def _losses_after_storing(ledger: Ledger, event: Produced) -> Iterator[str]:
    taken = ledger.inbox.get(event.id)
    if taken is not None:
        yield from _wrong_ends(ledger, event, taken)
    elif event.id in ledger.stored:
        yield f"event {event.id} is in the stream and not in the inbox"


def _at(ledger: Ledger, row: OutboxState) -> str:
    return ledger.ids.get(row.stream_seq or 0, "nothing")


def _wrong_ends(ledger: Ledger, event: Produced, row: InboxState) -> Iterator[str]:
    planned = "dead-lettered" if event.plan in DEAD_LETTERS else "processed"
    if row.state in {"processed", "dead-lettered"} and row.state != planned and event.id not in ledger.abandoned:
        yield f"message {event.id} (plan {event.plan}) ended {row.state}, not {planned}"
    if row.source in SOURCES and row.source != event.source:
        yield f"message {event.id} is for {event.source} and came to {row.source}"


# --- 2 ------------------------------------------------------------------------------------------


def nothing_phantom(ledger: Ledger) -> Judgement:
    """No trace of an event whose transaction was rolled back, or that nobody produced."""
    figures = {"rolled back": len(ledger.undone)}
    return conclude(2, "nothing rolled back is delivered", _phantoms(ledger), figures)


def _phantoms(ledger: Ledger) -> Iterator[str]:
    for id in ledger.undone:
        if id in ledger.rows:
            yield f"event {id} has a business row, though operation {ledger.undone[id]} was rolled back"
    expected = set(ledger.expected())
    places = {"outbox": ledger.outbox, "stream": ledger.stored, "inbox": ledger.inbox, "effects": ledger.effects}
    for place, found in places.items():
        for id in found:
            if id not in expected:
                yield f"{_origin(ledger, id)} is in the {place}"


def _origin(ledger: Ledger, id: str) -> str:
    if id in ledger.undone:
        return f"event {id} of operation {ledger.undone[id]}, which did not commit,"
    return f"event {id}, which no operation produced,"


# --- 3 ------------------------------------------------------------------------------------------


def effects_once(ledger: Ledger) -> Judgement:
    """The number of effects of each message is what its plan says, however often its handler was called."""
    figures: dict[str, Figure] = {
        "effects": sum(len(found) for found in ledger.effects.values()),
        "messages with an effect": len(ledger.effects),
        "given up while the handler was away": len(ledger.abandoned),
    }
    return conclude(3, "a handler's effect happens once", _wrong_effects(ledger), figures)


def _wrong_effects(ledger: Ledger) -> Iterator[str]:
    for id, event in ledger.committed.items():
        count, planned = len(ledger.effects.get(id, ())), effects_of(event.plan)
        row = ledger.inbox.get(id)
        missed = count < planned and row is not None and row.state == "processed"
        if count > planned or missed:
            yield f"message {id} ({event.source}, plan {event.plan}) has {count} effects, not {planned}"


# --- 4 ------------------------------------------------------------------------------------------


def order_kept(ledger: Ledger) -> Judgement:
    """The stream and the effects of an ordered subscription follow the commit order of each key."""
    # The empty key opts out of order.
    keys = {key: [id for id in ids if id not in ledger.lost] for key, ids in ledger.keys.items() if key}
    figures = {
        "keys": len(keys),
        "keys with several events": sum(len(ids) > 1 for ids in keys.values()),
        "events left out, lost or deleted": len(ledger.lost),
        "effects in order of a key": sum(_ordered_by(ledger, id) is not None for id in ledger.effects),
    }
    return conclude(4, "order per key", _disorder(ledger, keys), figures)


def _ordered_by(ledger: Ledger, id: str) -> Source | None:
    """Return the ordered subscription of an event; None if the event was given up or requeued."""
    event = ledger.committed.get(id)
    exempt = event is None or id in ledger.abandoned or id in ledger.requeued
    return event.source if event is not None and not exempt and event.source in ORDERED else None


def _disorder(ledger: Ledger, keys: Mapping[str, list[str]]) -> Iterator[str]:
    for key, ids in keys.items():
        yield from _inversions(key, "in the stream", [(ledger.first[id], id) for id in ids if id in ledger.first])
        for source in sorted(ORDERED):
            effects = [
                (min(effect.place for effect in ledger.effects[id]), id)
                for id in ids
                if id in ledger.effects and _ordered_by(ledger, id) is source
            ]
            yield from _inversions(key, "in its effects", effects)


def _inversions(key: str, where: str, placed: list[tuple[int, str]]) -> Iterator[str]:
    """Yield each event that precedes one which its key committed earlier. ``placed`` is in commit order."""
    last: tuple[int, str] | None = None
    for place, id in placed:
        if last is None or place > last[0]:
            last = (place, id)
        else:
            yield f"key {key}: event {id} was committed after {last[1]} and comes before it {where}"


# --- 5 ------------------------------------------------------------------------------------------


def dead_letters_accounted(ledger: Ledger) -> Judgement:
    """Dead-lettered inbox rows and incidents are one to one, and each has the class that its plan says."""
    kinds = Counter(incident.kind for found in ledger.incidents.values() for incident in found)
    figures = {f"class {kind}": count for kind, count in sorted(kinds.items())}
    if ledger.letters is not None:
        figures |= {"letters stored": ledger.letters.stored, "unconfirmed": ledger.letters.unconfirmed}
        figures["letters of strangers"] = ledger.forged
    found = chain(_unaccounted(ledger), _letters(ledger))
    return conclude(5, "every dead letter is accounted for", found, figures)


def _letters(ledger: Ledger) -> Iterator[str]:
    """Judge the letters: a death has one, or two if it was routed again after the duplicate window."""
    if (letters := ledger.letters) is None:
        return
    if letters.unrecorded:
        yield f"{letters.unrecorded} dead rows have no incident of their own"
    if letters.stored > 2 * ledger.deaths + ledger.forged:
        yield f"{letters.stored} letters of {ledger.deaths} deaths and {ledger.forged} strangers: they multiply"
    if letters.unconfirmed > ledger.forged:
        yield f"{letters.unconfirmed} incidents are unconfirmed, and strangers sent {ledger.forged} letters"


def _unaccounted(ledger: Ledger) -> Iterator[str]:
    for id, row in ledger.inbox.items():
        if row.state == "dead-lettered" and id not in ledger.incidents:
            yield f"message {id} is dead-lettered and has no incident"
    for id, found in ledger.incidents.items():
        requeued = ledger.requeued.get(id, 0)
        if len(found) > 1 + requeued:
            yield f"message {id} has {len(found)} incidents"
        row_or_none = ledger.inbox.get(id)
        if row_or_none is None or (row_or_none.state != "dead-lettered" and not requeued):
            yield f"message {id} has an incident and is not dead-lettered in the inbox"
        yield from (
            _misjudged(ledger, id, incident.kind) for incident in found if _surprising(ledger, id, incident.kind)
        )


def _surprising(ledger: Ledger, id: str, kind: str) -> bool:
    if id in ledger.stand_ins:
        return kind != "poison"
    event = ledger.committed.get(id)
    planned = DEAD_LETTERS.get(event.plan) if event else None
    return kind != planned and not (id in ledger.abandoned and kind == "exhausted")


def _misjudged(ledger: Ledger, id: str, kind: str) -> str:
    event = ledger.committed.get(id)
    plan = f"plan {event.plan}" if event else "not committed"
    return f"message {id} ({plan}) has an incident of class {kind}"


# --- 6 ------------------------------------------------------------------------------------------


def nothing_stuck(ledger: Ledger, consumers: list[ConsumerEnd], drained: bool) -> Judgement:
    """Every row has ended, and no consumer has a message left, neither to deliver nor to acknowledge."""
    figures = {
        "drained": "yes" if drained else "no",
        "outbox rows waiting": sum(_waits(row) for row in ledger.outbox.values()),
        "inbox rows open": sum(_open(row) for row in ledger.inbox.values()),
        "consumers": len(consumers),
        "messages pending": sum(consumer.pending + consumer.ack_pending for consumer in consumers),
    }
    return conclude(6, "nothing is stuck", _stuck(ledger, consumers, drained), figures)


def _waits(row: OutboxState) -> bool:
    return row.state not in {"published", "dead"}


def _open(row: InboxState) -> bool:
    return row.state not in {"processed", "dead-lettered"}


def _stuck(ledger: Ledger, consumers: list[ConsumerEnd], drained: bool) -> Iterator[str]:
    if not drained:
        yield "the run was not drained in time"
    for outgoing in filter(_waits, ledger.outbox.values()):
        yield f"event {outgoing.id} is {outgoing.state} in the outbox"
    for incoming in filter(_open, ledger.inbox.values()):
        yield f"message {incoming.id} is {incoming.state} in the inbox after {incoming.attempts} attempts"
    for consumer in consumers:
        if consumer.pending or consumer.ack_pending:
            counts = f"{consumer.pending} messages to deliver and {consumer.ack_pending} to acknowledge"
            yield f"consumer {consumer.name} has {counts}"
        # The counts are also 0 for a message that JetStream has given up. Then the floor stays behind.
        if consumer.ack_floor < consumer.last_seq:
            floor = f"{consumer.ack_floor} while its last message is {consumer.last_seq}"
            yield f"consumer {consumer.name} has acknowledged without a gap up to {floor}"


# --- 9 ------------------------------------------------------------------------------------------


def bad_rows_contained(ledger: Ledger) -> Judgement:
    """A row that can never be published ends dead in the outbox, with no trace elsewhere and no harm to others."""
    states = {id: row.state for id, row in ledger.outbox.items()}
    figures = {
        "bad rows": sum(id in states for id in ledger.bad),
        "dead": sum(states.get(id) == "dead" for id in ledger.bad),
        "good rows dead beside them": sum(states.get(id) == "dead" for id in ledger.committed),
        "hostile messages": len(ledger.hostile),
    }
    return conclude(9, "bad input never reaches the broker", _uncontained(ledger), figures)


def _uncontained(ledger: Ledger) -> Iterator[str]:
    for id in ledger.bad:
        row = ledger.outbox.get(id)
        if row is None:
            yield f"bad event {id} is committed and not in the outbox"
        elif row.state == "published":
            yield f"bad event {id} is published in the outbox"
        places = {"stream": ledger.stored, "inbox": ledger.inbox, "effects": ledger.effects}
        yield from (f"bad event {id} is in the {place}" for place, found in places.items() if id in found)
    for id in ledger.committed:
        good = ledger.outbox.get(id)
        if ledger.bad and good is not None and good.state == "dead":
            yield f"good event {id} is dead in the outbox beside bad ones"
    for message in ledger.hostile.values():
        taken = ledger.inbox.get(message.stand_in)
        kept = ledger.ids.get(message.seq) == message.id  # or a lost tail took it away
        if kept and (taken is None or taken.state != "dead-lettered"):
            state = "not in the inbox" if taken is None else f"{taken.state} in the inbox"
            yield f"hostile message {message.id} at {message.seq} is {state}, not dead-lettered"
