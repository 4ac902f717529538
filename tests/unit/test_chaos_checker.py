"""The judge of a chaos run: a good run passes, and whatever breaks a promise is caught by that promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from chaos.deployment import BESIDE, TWIN
from chaos.evidence import Evidence
from chaos.history import (
    CRASHED,
    Business,
    ConsumerEnd,
    Effect,
    Ended,
    Failure,
    Fault,
    InboxState,
    Incident,
    Leftover,
    Letters,
    Lost,
    Noted,
    Orphan,
    OutboxState,
    Outcome,
    Plan,
    Probe,
    SetBack,
    Source,
    Stored,
    Strange,
)
from chaos.judgement import NAMED
from chaos.ledger import shortest_patience
from tests.unit.chaos_support import (
    BEGIN,
    EVERY_CHOICE,
    broken,
    change,
    drop,
    exchange,
    exchange_effects,
    give_up,
    good_run,
    judged,
    vanish,
)

Mutation = Callable[[Evidence], object]
#: Of the synthetic run: key, subscription and plan of event ``e<number>`` are those of ``EVERY_CHOICE[number]``.
ACCEPTED, POISON, NEVER = "e0", "e2", "e6"
#: Two events of one key of the ordered subscription, in commit order.
EARLIER, LATER = "e14", "e17"


def drop_operation_rows(evidence: Evidence, number: int) -> None:
    for event in evidence.operations[number].events:
        drop(evidence.business, event.id)


def set_back(evidence: Evidence, *ids: str) -> None:
    """The producer's database has lost events."""
    for id in ids:
        drop(evidence.business, id)
        drop(evidence.outbox, id)
    evidence.set_back.append(SetBack(1, ids, "report"))


def fail_bad(evidence: Evidence) -> None:
    """The bad row's transaction failed, and the row is in the outbox all the same."""
    evidence.operations[-1] = replace(evidence.operations[-1], outcome=Outcome.FAILED)
    drop(evidence.business, "bad")


def stand_still(evidence: Evidence, begin: int, seconds: int) -> None:
    """The counts stay as they were for so many seconds."""
    held = evidence.samples[begin]
    for index in range(begin, begin + seconds):
        evidence.samples[index] = replace(evidence.samples[index], published=held.published, handled=held.handled)


# --- a good run ---------------------------------------------------------------------------------


def test_a_good_run_keeps_every_promise() -> None:
    judgements = judged(good_run())
    assert list(judgements) == [*range(17)]
    assert [judgement.violations for judgement in judgements.values()] == [()] * 17


def test_operations_with_an_unknown_or_wrong_outcome_are_settled_by_the_business_table() -> None:
    figures = judged(good_run())[1].figures
    assert figures["committed"] == len(EVERY_CHOICE) == 28
    names = ("published", "in the stream", "processed", "dead-lettered")
    assert [figures[name] for name in names] == [28, 28, 20, 8]


def test_an_operation_that_never_committed_owes_nothing() -> None:
    evidence = good_run()
    number = next(op.number for op in evidence.operations if op.kind == "batch" and op.outcome is Outcome.UNKNOWN)
    for event in evidence.operations[number].events:
        drop(evidence.outbox, event.id)
        vanish(evidence, event.id)
    drop_operation_rows(evidence, number)
    assert broken(evidence) == set()


# --- one mutation for each rule -----------------------------------------------------------------

MUTATIONS: dict[str, tuple[int, Mutation]] = {
    "no operations at all": (0, lambda e: e.operations.clear()),
    "no effects at all": (0, lambda e: e.effects.clear()),
    "no faults at all": (0, lambda e: e.faults.clear()),
    "no samples at all": (0, lambda e: e.samples.clear()),
    "no consumer was asked": (0, lambda e: e.consumers.clear()),
    "a second reader missed a message": (13, lambda e: e.notes.pop(0)),
    "a message with a known id was swallowed": (13, lambda e: e.notes.pop()),
    "a message with a known id was handled twice": (
        13,
        lambda e: e.notes.append(replace(e.notes.pop(), count=2)),
    ),
    "a cause that nobody named": (14, lambda e: e.diagnosed.append(replace(e.diagnosed.pop(), named=None))),
    "a cause that is named for ever": (14, lambda e: e.diagnosed.append(replace(e.diagnosed.pop(), gone=None))),
    "a failure without an alert": (15, lambda e: e.failures.append(replace(e.failures.pop(), alerts=0))),
    "a failure with two alerts": (15, lambda e: e.failures.append(replace(e.failures.pop(), alerts=2, posted=2))),
    "an alert that the webhook never took": (15, lambda e: e.receipts.pop()),
    "an alert that was not posted": (15, lambda e: e.failures.append(replace(e.failures.pop(), posted=0))),
    "a lost event that nobody decided about": (1, lambda e: set_back(e, "e0")),
    "a lost event that its consumer has not got": (
        1,
        lambda e: (set_back(e, "e0"), e.orphans.append(Orphan("e0", "reported")), drop(e.inbox, "e0")),
    ),
    "a business row without an operation": (0, lambda e: e.business.append(Business("x", "key-0", 99))),
    "a confirmed operation without its rows": (1, lambda e: drop_operation_rows(e, 0)),
    "half of an unknown operation": (1, lambda e: drop(e.business, e.operations[1].events[0].id)),
    "a confirmed bad row without its business row": (1, lambda e: drop(e.business, "bad")),
    "a committed event without an outbox row": (1, lambda e: drop(e.outbox, ACCEPTED)),
    "a good event dead in the outbox": (1, lambda e: change(e.outbox, ACCEPTED, state="dead")),
    "a published event missing in the stream": (1, lambda e: vanish(e, ACCEPTED)),
    "a stored event missing in the inbox": (1, lambda e: (drop(e.inbox, ACCEPTED), drop(e.effects, ACCEPTED))),
    "a sequence of another event": (1, lambda e: change(e.outbox, ACCEPTED, stream_seq=2)),
    "a sequence that the stream has not": (1, lambda e: change(e.outbox, ACCEPTED, stream_seq=99)),
    "a published event without a sequence": (1, lambda e: change(e.outbox, ACCEPTED, stream_seq=None)),
    "a poison message that ended processed": (1, lambda e: change(e.inbox, POISON, state="processed")),
    "a good message that ended dead-lettered": (1, lambda e: change(e.inbox, ACCEPTED, state="dead-lettered")),
    "a message at another subscription": (1, lambda e: change(e.inbox, ACCEPTED, source="ordered")),
    "a rolled-back event in the outbox": (2, lambda e: e.outbox.append(OutboxState("undone", "dead", None))),
    "a rolled-back event in the stream": (2, lambda e: e.stream.append(Stored(99, "undone"))),
    "a rolled-back event in the inbox": (
        2,
        lambda e: e.inbox.append(InboxState("undone", "http", "processed", 1)),
    ),
    "a rolled-back effect": (2, lambda e: e.effects.append(Effect("undone", Source.HTTP, "key-0", 99))),
    "an unknown event that did not commit": (2, lambda e: e.stream.append(Stored(99, "unknown"))),
    "an event from nowhere": (2, lambda e: e.stream.append(Stored(99, "nobody"))),
    "a rolled-back operation with its row": (2, lambda e: e.business.append(Business("undone", "key-0", 99))),
    "a bad row that did not commit and is there": (2, fail_bad),
    "an effect twice": (3, lambda e: e.effects.append(replace(e.effects[0], place=99))),
    "a processed message without effect": (3, lambda e: drop(e.effects, ACCEPTED)),
    "an effect of a poison message": (3, lambda e: e.effects.append(Effect(POISON, Source.HTTP, "key-2", 99))),
    "an effect of a message refused for ever": (
        3,
        lambda e: e.effects.append(Effect(NEVER, Source.HTTP, "key-0", 99)),
    ),
    "an effect of a repeated message": (3, lambda e: e.effects.append(Effect("e1", Source.HTTP, "key-1", 99))),
    "two events of a key exchanged in the stream": (4, lambda e: exchange(e, EARLIER, LATER)),
    "two effects of a key exchanged": (4, lambda e: exchange_effects(e, EARLIER, LATER)),
    "a dead letter without incident": (5, lambda e: drop(e.incidents, POISON)),
    "an incident twice": (5, lambda e: e.incidents.append(e.incidents[0])),
    "an incident of the wrong class": (5, lambda e: change(e.incidents, POISON, kind="exhausted")),
    "an exhausted message of the wrong class": (5, lambda e: change(e.incidents, NEVER, kind="poison")),
    "an incident of a processed message": (
        5,
        lambda e: e.incidents.append(Incident(ACCEPTED, "http", "poison", 1)),
    ),
    "an incident of a row that ended processed": (5, lambda e: change(e.inbox, POISON, state="processed")),
    "an incident of an unknown message": (5, lambda e: e.incidents.append(Incident("nobody", "", "poison", 1))),
    "a death that only a forged letter tells": (5, lambda e: e.letters.append(Letters(8, 1, 0))),
    "letters that multiply": (5, lambda e: e.letters.append(Letters(99, 0, 0))),
    "a real death that counts as unconfirmed": (5, lambda e: e.letters.append(Letters(8, 0, 1))),
    "a good message given up early": (5, lambda e: give_up(e, ACCEPTED, 59)),
    "a waiting outbox row": (6, lambda e: change(e.outbox, ACCEPTED, state="waiting")),
    "an open inbox row": (6, lambda e: change(e.inbox, ACCEPTED, state="open")),
    "a consumer with messages to deliver": (6, lambda e: e.consumers.append(ConsumerEnd("c", 1, 0, 9, 9))),
    "a consumer with messages to acknowledge": (6, lambda e: e.consumers.append(ConsumerEnd("c", 0, 1, 9, 9))),
    "a consumer whose floor stays behind": (6, lambda e: e.consumers.append(ConsumerEnd("c", 0, 0, 8, 9))),
    "a standstill of 70 s": (8, lambda e: stand_still(e, 33, 70)),
    "samples that end with the first fault": (8, lambda e: e.samples.__delitem__(slice(11, None))),
    "a bad row that is published": (9, lambda e: change(e.outbox, "bad", state="published", stream_seq=99)),
    "a bad row in the stream": (9, lambda e: e.stream.append(Stored(99, "bad"))),
    "a bad row in the inbox": (9, lambda e: e.inbox.append(InboxState("bad", "http", "processed", 1))),
    "an effect of a bad row": (9, lambda e: e.effects.append(Effect("bad", Source.HTTP, "bad-key", 99))),
    "a bad row that is gone": (9, lambda e: drop(e.outbox, "bad")),
    "a row of a stranger that was published": (
        16,
        lambda e: (
            e.strange.append(Strange(1, ["odd"], stay=True)),
            e.outbox.append(OutboxState("odd", "published", 99)),
        ),
    ),
    "a row of a stranger in the stream": (
        16,
        lambda e: (e.strange.append(Strange(1, ["odd"], stay=True)), e.stream.append(Stored(99, "odd"))),
    ),
    "a row of a stranger in another context's stream": (
        16,
        lambda e: (e.strange.append(Strange(1, ["odd"], stay=True)), e.notes.append(Noted(TWIN, "odd", 1))),
    ),
    "a call that finds what another one left": (16, lambda e: e.leftovers.append(Leftover(ACCEPTED, "a lock"))),
    "a process that an exception ended": (16, lambda e: e.ended.append(Ended(1, ["worker-1"]))),
    "a task that never ran": (16, lambda e: e.probes.append(Probe(1, BEGIN, None))),
    "a task that waited for long": (16, lambda e: e.probes.append(Probe(9, BEGIN + 30, BEGIN + 119))),
    "a good row dead beside a bad one": (9, lambda e: change(e.outbox, ACCEPTED, state="dead")),
}


@pytest.mark.parametrize(("promise", "mutation"), MUTATIONS.values(), ids=MUTATIONS)
def test_what_breaks_a_promise_is_caught_by_it(promise: int, mutation: Mutation) -> None:
    evidence = good_run()
    mutation(evidence)
    found = judged(evidence)[promise]
    assert not found.kept
    assert all(found.violations)


#: Mutations that may be reported by one promise only, so that a report points at the cause.
SHARP = {
    "a confirmed bad row without its business row": 1,
    "a published event missing in the stream": 1,
    "a stored event missing in the inbox": 1,
    "a processed message without effect": 3,
    "an effect twice": 3,
    "two events of a key exchanged in the stream": 4,
    "two effects of a key exchanged": 4,
    "a dead letter without incident": 5,
    "a waiting outbox row": 6,
    "an open inbox row": 6,
    "a standstill of 70 s": 8,
    "a bad row in the stream": 9,
}


@pytest.mark.parametrize("name", SHARP)
def test_a_violation_is_reported_by_one_promise(name: str) -> None:
    evidence = good_run()
    MUTATIONS[name][1](evidence)
    assert broken(evidence) == {SHARP[name]}


def test_a_broken_promise_breaks_the_sum_of_them() -> None:
    evidence = good_run()
    drop(evidence.outbox, ACCEPTED)
    assert judged(evidence)[7].violations == ("promise 1 was broken: nothing committed is lost",)


def test_a_violation_names_the_event_and_what_is_wrong_with_it() -> None:
    evidence = good_run()
    exchange(evidence, EARLIER, LATER)
    [sentence] = judged(evidence)[4].violations
    assert sentence == f"key key-2: event {LATER} was committed after {EARLIER} and comes before it in the stream"


def test_an_event_that_only_its_business_row_knows_is_no_phantom() -> None:
    evidence = good_run()
    evidence.business.append(Business("x", "key-9", 1))
    evidence.outbox.append(OutboxState("x", "published", 99))
    assert broken(evidence) == {0}


def test_many_violations_are_counted_and_the_first_are_named() -> None:
    evidence = good_run([(Source.HTTP, "key", Plan.ACCEPT)] * 100)
    evidence.outbox.clear()
    found = judged(evidence)[1]
    assert (len(found.violations), found.total) == (NAMED, 100)


@pytest.mark.parametrize("subscription", BESIDE)
def test_a_message_may_die_in_a_second_subscription_too(subscription: str) -> None:
    evidence = good_run()
    evidence.incidents.append(Incident(POISON, subscription, "poison", 1))
    assert broken(evidence) == set()


def test_a_run_that_did_not_drain_is_stuck() -> None:
    assert broken(good_run(), drained=False) == {6}


def test_a_run_that_expects_no_faults_needs_none() -> None:
    evidence = good_run()
    evidence.faults.clear()
    assert broken(evidence, faults_expected=False) == set()


def test_a_command_that_ends_with_a_traceback_breaks_the_promise_about_faults() -> None:
    evidence = good_run()
    note = f"outbox retry: {CRASHED} DataError; dlq discard: done"
    evidence.faults.append(Fault(9, "operator-commands", "operator", BEGIN + 20, BEGIN + 21, note))
    assert judged(evidence)[7].violations == (f"fault 9: {note}",)


# --- what is allowed ----------------------------------------------------------------------------


def keep_the_handler_away(evidence: Evidence, seconds: float) -> None:
    evidence.faults.append(Fault(9, "service-freeze", "service", BEGIN + 20, BEGIN + 20 + seconds))


def test_a_good_message_may_be_given_up_after_all_attempts_while_its_handler_is_away() -> None:
    evidence = good_run()
    give_up(evidence, ACCEPTED, 60)
    keep_the_handler_away(evidence, shortest_patience(60))
    assert broken(evidence) == set()
    assert judged(evidence)[3].figures["given up while the handler was away"] == 1


@pytest.mark.parametrize("target", ["service", "nats", "scheduler-1"])
def test_a_fault_somewhere_excuses_no_message_that_was_given_up(target: str) -> None:
    evidence = good_run()
    give_up(evidence, ACCEPTED, 60)
    seconds = 5 if target == "service" else 90
    evidence.faults = [Fault(9, "some", target, BEGIN + 20, BEGIN + 20 + seconds)]
    assert broken(evidence) == {1, 5}


def test_a_handler_that_says_that_it_is_away_costs_no_message() -> None:
    evidence = good_run()
    give_up(evidence, ACCEPTED, 60)
    keep_the_handler_away(evidence, 60)
    assert broken(evidence) == set()
    evidence.faults[-1] = replace(evidence.faults[-1], kind="handler-away")
    assert broken(evidence) == {1, 5}


def test_faults_before_its_commit_excuse_no_message_that_was_given_up() -> None:
    evidence = good_run()
    give_up(evidence, ACCEPTED, 60)
    evidence.faults = [Fault(9, "service-freeze", "service", BEGIN - 100, BEGIN)]
    assert broken(evidence) == {1, 5}


def test_the_shortest_patience_is_that_of_the_shortest_back_off() -> None:
    assert shortest_patience(1) == 0
    assert shortest_patience(4) == pytest.approx(0.8 * (0.2 + 0.4 + 0.8))
    assert shortest_patience(25) == pytest.approx(0.8 * (0.2 + 0.4 + 0.8 + 21))


def test_no_good_message_may_be_given_up_without_faults() -> None:
    evidence = good_run()
    evidence.faults.clear()
    give_up(evidence, ACCEPTED, 60)
    assert broken(evidence, faults_expected=False) == {1, 5}


def test_an_answer_that_got_lost_leaves_one_effect_of_a_message_given_up_and_not_two() -> None:
    evidence = good_run()
    effect = evidence.effects[0]
    give_up(evidence, effect.message_id, 60)
    keep_the_handler_away(evidence, shortest_patience(60))
    evidence.effects.append(effect)
    assert broken(evidence) == set()
    evidence.effects.append(effect)
    assert broken(evidence) == {3}


def test_events_in_a_lost_tail_are_published_again_elsewhere_and_lose_their_place() -> None:
    evidence = good_run()
    exchange(evidence, EARLIER, LATER)
    exchange_effects(evidence, EARLIER, LATER)
    change(evidence.outbox, EARLIER, stream_seq=99)
    assert broken(evidence) == {1, 4}
    evidence.lost.append(Lost(0, [EARLIER]))
    assert broken(evidence) == set()
    assert judged(evidence)[4].figures["events left out, lost or deleted"] == 1


def test_the_others_of_a_key_keep_their_order_when_one_was_in_a_lost_tail() -> None:
    evidence = good_run()
    [first, *_] = [event for event in evidence.business if event.key == "key-2" and event.event_id < EARLIER]
    evidence.lost.append(Lost(0, [first.event_id]))
    exchange_effects(evidence, EARLIER, LATER)
    assert broken(evidence) == {4}


def test_an_event_in_a_lost_tail_must_still_come_back() -> None:
    evidence = good_run()
    evidence.lost.append(Lost(0, [ACCEPTED]))
    vanish(evidence, ACCEPTED)
    assert broken(evidence) == {1}


def test_the_empty_key_has_no_order() -> None:
    evidence = good_run([(Source.ORDERED, "", Plan.ACCEPT), (Source.ORDERED, "", Plan.ACCEPT)])
    exchange(evidence, "e0", "e1")
    exchange_effects(evidence, "e0", "e1")
    assert broken(evidence) == set()


def test_effects_of_an_unordered_subscription_have_no_order() -> None:
    evidence = good_run([(Source.HTTP, "key", Plan.ACCEPT), (Source.HTTP, "key", Plan.ACCEPT)])
    exchange_effects(evidence, "e0", "e1")
    assert broken(evidence) == set()


def test_what_a_producer_has_lost_is_adopted_or_reported_or_never_was() -> None:
    evidence = good_run()
    adopted = next(row for row in evidence.outbox if row.id == "e0")
    set_back(evidence, "e0", "e1", "e4", "bad")
    evidence.outbox.append(adopted)
    evidence.orphans += [Orphan("e1", "reported"), Orphan("notice", "notice")]
    evidence.stream.append(Stored(len(evidence.stream) + 1, "notice"))
    evidence.outbox.append(OutboxState("notice", "published", len(evidence.stream)))
    vanish(evidence, "e4")  # it had not been published
    assert broken(evidence) == set()


def test_a_dead_event_that_an_operator_gave_back_may_alert_again() -> None:
    evidence = good_run()
    evidence.failures.append(Failure("shop", "dead_event", "bad", 2, 2))
    assert broken(evidence) == {15}
    evidence.faults[0] = replace(evidence.faults[0], note="outbox retry: done")
    assert broken(evidence) == set()
