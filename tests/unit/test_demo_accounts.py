"""The audit of the demo, with cooked books: every lie must be found and the event named."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.cli.demo import accounts, scenario
from relay.cli.demo.accounts import Books, Fault, SampleVerdict, audit
from relay.cli.demo.screen import percentile

SOUND = [uuid4() for _ in range(4)]
FLAKY, SLOW, ALREADY, POISON, ROLLED_BACK, STRANGER = (uuid4() for _ in range(6))
COMMITTED = {
    **dict.fromkeys(SOUND, SampleVerdict.OK),
    FLAKY: SampleVerdict.FLAKY,
    SLOW: SampleVerdict.SLOW,
    ALREADY: SampleVerdict.ALREADY,
    POISON: SampleVerdict.POISON,
}
EFFECTS = [*SOUND, FLAKY, SLOW]
TRUTH = Books(
    committed=COMMITTED,
    rolled_back={ROLLED_BACK},
    business=[*COMMITTED],
    outbox={*COMMITTED},
    published={*COMMITTED},
    stream=[*COMMITTED],
    received={*COMMITTED},
    handled={*COMMITTED} - {POISON},
    dead_lettered={POISON},
    done=EFFECTS,
    effects=EFFECTS,
    dlq=[POISON],
    unacknowledged=0,
)


def cook(**changes: Any) -> list[Fault]:
    return audit(dataclasses.replace(TRUTH, **changes))


def without(place: str, *ids: UUID) -> Any:
    found = getattr(TRUTH, place)
    return type(found)(id for id in found if id not in ids)


def having(place: str, *ids: UUID) -> Any:
    found = getattr(TRUTH, place)
    return type(found)([*found, *ids])


def test_true_books_balance() -> None:
    assert audit(TRUTH) == []


def test_books_of_nothing_balance() -> None:
    empty = {field.name: type(getattr(TRUTH, field.name))() for field in dataclasses.fields(Books)}
    assert audit(Books(**empty)) == []


LIES = {
    "a business row is lost": ({"business": without("business", SOUND[0])}, SOUND[0], "business row"),
    "a business row nobody wrote": ({"business": having("business", STRANGER)}, STRANGER, "never committed"),
    "never published": ({"published": without("published", SOUND[0])}, SOUND[0], "not published"),
    "lost in the stream": ({"stream": without("stream", SOUND[0])}, SOUND[0], "not in the stream"),
    "twice in the stream": ({"stream": having("stream", SOUND[0])}, SOUND[0], "more than once"),
    "a stranger in the stream": ({"stream": having("stream", STRANGER)}, STRANGER, "never committed"),
    "not handled": ({"handled": without("handled", SOUND[0])}, SOUND[0], "neither handled"),
    "handled and dead": ({"dead_lettered": having("dead_lettered", FLAKY)}, FLAKY, "both handled"),
    "a stranger in the inbox": ({"received": having("received", STRANGER)}, STRANGER, "received, but never"),
    "a second effect": ({"effects": having("effects", SLOW)}, SLOW, "second effect"),
    "two calls with effect": ({"done": having("done", SLOW)}, SLOW, "second effect"),
    "a lost effect": ({"effects": without("effects", SLOW)}, SLOW, "without the effect"),
    "no call and no effect": (
        {"effects": without("effects", SLOW), "done": without("done", SLOW)},
        SLOW,
        "without their effect",
    ),
    "an effect of poison": ({"effects": having("effects", POISON)}, POISON, "should have none"),
    "an effect of a 409": ({"effects": having("effects", ALREADY)}, ALREADY, "should have none"),
    "poison handled": ({"handled": having("handled", POISON)}, POISON, "poison, but handled"),
    "sound and dead": (
        {"handled": without("handled", FLAKY), "dead_lettered": having("dead_lettered", FLAKY)},
        FLAKY,
        "good, but dead-lettered",
    ),
    "a dead letter is lost": ({"dlq": without("dlq", POISON)}, POISON, "not in the dead-letter stream"),
    "a dead letter comes twice": ({"dlq": having("dlq", POISON)}, POISON, "more than once"),
    "a dead letter of nobody": ({"dlq": having("dlq", STRANGER)}, STRANGER, "not dead-lettered"),
}


@pytest.mark.parametrize("name", LIES)
def test_every_lie_is_found(name: str) -> None:
    changes, culprit, words = LIES[name]
    assert any(culprit in fault.ids and words in fault.what for fault in cook(**changes))


@pytest.mark.parametrize("place", ["business", "outbox", "stream", "received", "effects", "dlq"])
def test_what_was_rolled_back_may_be_nowhere(place: str) -> None:
    faults = cook(**{place: having(place, ROLLED_BACK)})
    assert any("rolled back, but in" in fault.what and ROLLED_BACK in fault.ids for fault in faults)


def test_an_unacknowledged_message_is_a_fault() -> None:
    assert [str(fault) for fault in cook(unacknowledged=3)] == [
        "3 messages that are not acknowledged in JetStream"
    ]


def test_a_fault_names_its_events_but_not_hundreds() -> None:
    ids = [UUID(int=number) for number in range(8)]
    text = str(Fault("lost", ids))
    assert text.startswith(f"8 lost: {ids[0]}, ")
    assert text.endswith(f"{ids[4]} and 3 more")


@pytest.mark.parametrize("events", [10, 11, 57, 500])
def test_the_plan_commits_so_many_events_and_has_every_verdict_and_rollbacks(events: int) -> None:
    transactions = scenario.plan(events)
    committed = Counter(verdict for found in transactions if not found.roll_back for verdict in found.verdicts)
    assert committed.total() == events
    assert set(committed) == set(SampleVerdict)
    assert any(found.roll_back for found in transactions)


def test_only_what_takes_effect_is_expected_to() -> None:
    assert {verdict for verdict in accounts.SampleVerdict if verdict.has_effect} == {"ok", "flaky", "slow"}


@pytest.mark.parametrize(("share", "value"), [(0.5, 2), (0.95, 4), (1.0, 4)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert percentile([1, 2, 3, 4], share) == value


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None
