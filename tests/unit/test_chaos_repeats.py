"""Promises 10 and 11: what is done twice or at once needs a cause, and a handler that hangs delays no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chaos.evidence import Evidence
from chaos.history import (
    BEHIND,
    Begun,
    Call,
    Fault,
    Hostile,
    InboxState,
    Incident,
    Lost,
    Operated,
    Plan,
    Source,
    Stored,
)
from chaos.judgement import Judgement
from tests.unit.chaos_support import BEGIN, EVERY_CHOICE, broken, fault, give_up, good_run, judged

#: From the monotonic clock of a run to Unix time.
SHIFT = BEGIN - 500
#: Event ``e<number>`` is of ``EVERY_CHOICE[number]``: each source and plan in turn, keys 0, 1, 2, 0…
HTTP, PYTHON, ORDERED, SLOW = (f"e{7 * place}" for place in range(4))
#: Of the ordered subscription, on one key, in order of commit; and two of one key of which neither is.
EARLIER, LATER = "e14", "e17"


def quiet_run() -> Evidence:
    """A run without calls whose faults are over after twenty seconds."""
    evidence = good_run()
    evidence.calls, evidence.faults = [], [fault(1, BEGIN + 10)]
    return evidence


def call(id: str, began: float, seconds: float, answer: str = "ok", pid: int = 1) -> Call:
    """A call that begins so many seconds after the beginning."""
    source = EVERY_CHOICE[int(id[1:])][0]
    monotonic = BEGIN + began - SHIFT
    return Call(id, source, answer, BEGIN + began + seconds, monotonic, monotonic + seconds, pid)


def repeats(*calls: Call, faults: list[Fault] | None = None) -> Judgement:
    evidence = quiet_run()
    evidence.calls = list(calls)
    evidence.faults += faults or []
    return judged(evidence)[10]


def during(kind: str, began: float, ended: float, target: str = "worker-1") -> list[Fault]:
    return [Fault(2, kind, target, BEGIN + began, BEGIN + ended)]


# --- two calls at once ----------------------------------------------------------------------------


@pytest.mark.parametrize("id", [HTTP, PYTHON, ORDERED, SLOW])
def test_two_calls_about_one_message_at_once_are_a_violation(id: str) -> None:
    found = repeats(call(id, 50, 2, "error"), call(id, 51, 2, pid=2))
    assert f"message {id} " in found.violations[0]
    assert "two calls at once for 1.0 s, the first from" in found.violations[0]
    assert repeats(call(id, 50, 1, "error"), call(id, 51, 2, pid=2)).kept


@pytest.mark.parametrize(("one", "other", "at_once"), [(EARLIER, LATER, True), ("e0", "e3", False)])
def test_two_messages_of_a_key_at_once_are_one_only_where_order_was_asked_for(
    one: str, other: str, at_once: bool
) -> None:
    found = repeats(call(one, 50, 2), call(other, 51, 2, pid=2))
    assert found.kept is not at_once
    if at_once:
        assert "key key-2 (ordered): messages e14 and e17 were handled at once for 1.0 s" in found.violations[0]


def test_a_message_that_was_in_a_lost_tail_may_run_beside_others_of_its_key() -> None:
    evidence = quiet_run()
    evidence.calls = [call(EARLIER, 50, 2, "error"), call(LATER, 51, 2, pid=2)]
    evidence.lost = [Lost(2, [EARLIER])]
    assert judged(evidence)[10].kept
    evidence.calls.append(call(EARLIER, 51.5, 2, "error", pid=3))
    assert judged(evidence)[10].total == 1  # of one message there is one call at a time, as ever


def test_a_call_that_overlaps_one_before_the_last_is_found() -> None:
    found = repeats(call(SLOW, 50, 10, "error"), call(SLOW, 52, 1, "error", 2), call(SLOW, 55, 1, "error", 3))
    assert found.total == 2


def test_a_call_whose_process_died_lasts_while_the_process_shows_life() -> None:
    evidence = quiet_run()
    evidence.begun = [Begun(ORDERED, Source.ORDERED, BEGIN + 50 - SHIFT, 1)]
    evidence.calls = [call(ORDERED, 52, 1, pid=2)]
    assert judged(evidence)[10].kept
    assert judged(evidence)[10].figures["without an end"] == 1
    evidence.calls.append(call(LATER, 55, 1, pid=1))
    assert judged(evidence)[10].total == 2  # on the message, and on the key


def test_a_call_that_ended_is_not_without_an_end() -> None:
    evidence = quiet_run()
    evidence.calls = [call(ORDERED, 50, 1)]
    evidence.begun = [Begun(ORDERED, Source.ORDERED, evidence.calls[0].began, 1)]
    assert judged(evidence)[10].figures["handler calls"] == 1
    assert judged(evidence)[10].figures["without an end"] == 0


def test_a_function_in_a_thread_counts_until_its_time_out() -> None:
    assert repeats(call(PYTHON, 50, 5, "hang"), call(PYTHON, 53.2, 1, pid=2)).kept
    # The time-out began before the function could say that it had begun.
    assert repeats(call(PYTHON, 50, 5, "hang"), call(PYTHON, 52.5, 1, pid=2)).kept
    assert not repeats(call(PYTHON, 50, 5, "hang"), call(PYTHON, 51, 4, pid=2)).kept
    assert not repeats(call(PYTHON, 50, 2.9, "error"), call(PYTHON, 52.5, 1, pid=2)).kept
    assert not repeats(call(ORDERED, 50, 5, "hang"), call(ORDERED, 53.2, 1, pid=2)).kept


@pytest.mark.parametrize(
    ("faults", "explained"),
    [
        (during("worker-freeze", 51, 59), True),
        (during("worker-stall", 51, 59), True),
        (during("worker-freeze", 45, 49), False),
        (during("worker-freeze", 61, 63), False),
        (during("worker-kill", 51, 52), False),
        (during("worker-clock", 51, 59), False),
        (during("postgres-kill", 51, 52, "postgres"), False),
        (during("link-black-hole", 51, 59, "worker-postgres"), False),
    ],
)
@pytest.mark.parametrize("id", [SLOW, ORDERED])
def test_only_a_pause_of_a_worker_during_the_first_call_explains_two_at_once(
    id: str, faults: list[Fault], explained: bool
) -> None:
    calls = [call(id, 50, 15, "error"), call(id, 60, 2, pid=2)]
    assert repeats(*calls, faults=faults).kept is explained


def test_a_service_hears_late_of_a_hang_up_while_the_news_is_held_back() -> None:
    held = during("link-black-hole", 51, 60, "worker-service")
    assert repeats(call(SLOW, 50, 11, "hang"), call(SLOW, 59, 5, pid=1), faults=held).kept
    assert not repeats(call(SLOW, 50, 13, "hang"), call(SLOW, 59, 5, pid=1), faults=held).kept
    assert not repeats(call(ORDERED, 50, 11, "hang"), call(ORDERED, 59, 5, pid=1), faults=held).kept
    frozen = during("service-freeze", 51, 60, "service")
    assert repeats(call(SLOW, 50, 11, "hang"), call(SLOW, 59, 5, pid=1), faults=frozen).kept


# --- calls again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["ok", "repeat", "poison"])
def test_a_message_that_was_answered_and_is_called_again_in_peace_is_a_violation(answer: str) -> None:
    found = repeats(call(HTTP, 50, 0.1, answer), call(HTTP, 58, 0.1, "repeat"))
    [sentence] = found.violations
    assert "was called again 7.9 s after its answer" in sentence
    assert found.figures["handler calls per message outside faults"] == "2.000"


def test_a_database_that_refuses_what_is_to_be_recorded_explains_each_call_meanwhile() -> None:
    calls = [call(PYTHON, 50 + at, 0.1) for at in (0, 0.3, 0.8, 1.5, 2.4)]
    assert repeats(*calls, faults=during("postgres-disk-full", 49, 53, "postgres")).kept
    assert not repeats(*calls, faults=during("postgres-freeze", 49, 53, "postgres")).kept
    later = [*calls, *(call(PYTHON, 53 + at, 0.1) for at in (1, 2, 3, 4))]
    assert not repeats(*later, faults=during("postgres-disk-full", 49, 53, "postgres")).kept


def test_answers_that_find_no_way_back_explain_each_call_meanwhile() -> None:
    calls = [call(HTTP, 50 + at, 0.1) for at in (0, 0.3, 0.8, 1.5, 2.4)]
    assert repeats(*calls, faults=during("link-cut-reply", 49, 53, "worker-service")).kept
    assert not repeats(*calls, faults=during("link-cut-reply", 49, 53, "worker-nats")).kept
    assert not repeats(*calls, faults=during("link-cut", 49, 53, "worker-service")).kept


@pytest.mark.parametrize("answer", ["error", "hang", "drop", "late"])
def test_a_message_without_a_final_answer_is_called_again(answer: str) -> None:
    assert repeats(call(HTTP, 50, 0.1, answer), call(HTTP, 58, 0.1)).kept


def test_an_answer_after_the_time_out_is_none() -> None:
    assert repeats(call(HTTP, 50, 3.1), call(HTTP, 58, 0.1)).kept


@pytest.mark.parametrize(("began", "explained"), [(50.5, True), (42, True), (35, False), (59, False)])
def test_a_fault_between_two_calls_or_shortly_before_them_explains_the_second(
    began: float, explained: bool
) -> None:
    faults = during("worker-kill", began, began + 1)
    assert repeats(call(HTTP, 50, 0.1), call(HTTP, 58, 0.1, "repeat"), faults=faults).kept is explained


def test_a_fault_that_disturbs_no_call_explains_none() -> None:
    faults = during("poison-rows", 51, 52, "producer")
    assert not repeats(call(HTTP, 50, 0.1), call(HTTP, 58, 0.1, "repeat"), faults=faults).kept


def test_a_fault_explains_a_call_for_each_lease_that_it_outlasts_and_no_more() -> None:
    faults = during("worker-freeze", 49, 66)
    calls = [call(HTTP, 50 + 2 * number, 0.1, pid=number) for number in range(5)]
    assert repeats(*calls, faults=faults).kept
    more = [*calls, call(HTTP, 60, 0.1)]
    assert repeats(*more, faults=faults).violations == (f"message {HTTP} was called 6 times, 1 faults explain 5",)


# --- copies in the stream -------------------------------------------------------------------------


def copied(*later: tuple[str, float], faults: list[Fault] | None = None) -> Evidence:
    """The events are stored at the beginning, and these once more, so many seconds later."""
    evidence = quiet_run()
    evidence.stream = [replace(message, at=BEGIN + 40) for message in evidence.stream]
    for place, (id, at) in enumerate(later, start=100):
        evidence.stream.append(Stored(place, id, BEGIN + 40 + at))
    evidence.faults += faults or []
    return evidence


#: So that the publisher learns nothing and cannot ask again until the duplicate window is over.
AWAY = during("nats-freeze", 40, 170, "nats")


@pytest.mark.parametrize(
    ("seconds", "faults", "missing"),
    [
        (1, AWAY, "1.0 s apart: within the duplicate window"),
        (130, [], "no fault was near the first"),
        (130, during("nats-freeze", 100, 170, "nats"), "no fault was near the first"),
        (130, during("service-freeze", 40, 170, "service"), "no fault was near the first"),
        (130, during("nats-freeze", 40, 60, "nats"), "between them was peace for 110 s"),
        (130, AWAY, None),
    ],
)
def test_a_copy_needs_an_unknown_outcome_and_an_outage_as_long_as_the_window(
    seconds: float, faults: list[Fault], missing: str | None
) -> None:
    found = judged(copied(("e26", seconds), faults=faults))[10]
    assert found.figures["stored more than once"] == 1
    if missing is None:
        assert found.kept
    else:
        assert missing in "\n".join(found.violations)


def test_what_was_lost_or_replayed_is_stored_again() -> None:
    evidence = copied((EARLIER, 1))
    assert broken(evidence) == {10}
    lost = copied((EARLIER, 1))
    lost.lost.append(Lost(1, [EARLIER]))
    assert broken(lost) == set()
    evidence.operated.append(Operated(1, "replay", [EARLIER], BEGIN))
    assert broken(evidence) == set()


#: The events of key-2 in order of commit; the fifth is the first of the slow subscription's.
KEY_2 = [f"e{number}" for number in range(2, 28, 3)]


@pytest.mark.parametrize(
    ("again", "sentence"),
    [
        (KEY_2, None),
        (KEY_2[-2:], None),
        (KEY_2[-1:], None),
        (KEY_2[-2:-1], "a copy of event e23 is in the stream after later events of its key"),
        ([*KEY_2[:2], *KEY_2[3:]], "after the copy of e5 the stream has e11, with others between them"),
    ],
)
def test_copies_are_in_order_to_the_newest(again: list[str], sentence: str | None) -> None:
    found = judged(copied(*((id, 130 + place) for place, id in enumerate(again)), faults=AWAY))[10]
    assert "\n".join(found.violations) == (f"key key-2: {sentence}" if sentence else "")


# --- operators and strangers ----------------------------------------------------------------------


def test_a_dead_letter_that_was_given_back_may_die_again() -> None:
    evidence = good_run()
    evidence.incidents.append(evidence.incidents[0])
    assert broken(evidence) == {5}
    evidence.operated.append(Operated(1, "requeue", [evidence.incidents[0].message_id], BEGIN))
    assert broken(evidence) == set()
    evidence.incidents.append(evidence.incidents[0])
    assert broken(evidence) == {5}


def test_a_hostile_message_is_dead_lettered_and_no_phantom() -> None:
    evidence = good_run()
    evidence.stream.append(Stored(99, "hostile-1"))
    evidence.inbox.append(InboxState("stand-in", "http", "dead-lettered", 0))
    evidence.incidents.append(Incident("stand-in", "http", "poison", 0))
    assert broken(evidence) == {2, 5}
    evidence.hostile.append(Hostile(1, "hostile-1", 99, "stand-in"))
    assert broken(evidence) == set()
    evidence.inbox.pop()
    assert broken(evidence) == {5, 9}
    evidence.incidents.pop()
    assert broken(evidence) == {9}
    evidence.stream.pop()  # with a lost tail
    assert broken(evidence) == set()


# --- a hanging handler ----------------------------------------------------------------------------


def hanging_run(wait: float, *others: Fault) -> Evidence:
    """A hang of twenty seconds, and quick messages throughout that wait so long for their call."""
    events = [(Source.HTTP, f"k{number}", Plan.ACCEPT) for number in range(180)]
    evidence = good_run(events)
    for place, operation in enumerate(evidence.operations[:60]):
        at = BEGIN + 40 + place / 3
        evidence.operations[place] = replace(operation, at=at)
        evidence.calls += [replace(call("e0", at + wait - BEGIN, 0.1), message_id=e.id) for e in operation.events]
    evidence.calls = [found for found in evidence.calls if found.ended]
    evidence.faults = [Fault(1, "handler-hang", "service", BEGIN + 40, BEGIN + 60), *others]
    return evidence


@pytest.mark.parametrize(("wait", "kept"), [(0.1, True), (4.9, True), (5.1, False), (30, False)])
def test_quick_messages_wait_for_no_hanging_handler(wait: float, kept: bool) -> None:
    found = judged(hanging_run(wait))[11]
    assert found.figures["quick messages beside them"] > 30  # type: ignore[operator]
    assert found.kept is kept


def test_a_wait_that_another_fault_may_have_caused_is_not_judged() -> None:
    assert not judged(hanging_run(6, fault(2, BEGIN + 35)))[11].kept
    assert judged(hanging_run(6, fault(2, BEGIN + 53)))[11].kept


def test_a_hang_that_began_while_much_waited_is_not_judged() -> None:
    evidence = hanging_run(6)
    evidence.faults[0] = replace(evidence.faults[0], note=BEHIND)
    assert judged(evidence)[11].kept


def test_a_run_without_a_hang_breaks_no_promise() -> None:
    evidence = good_run()
    give_up(evidence, "e0", 60)
    assert judged(evidence)[11].kept
