"""The plan of an event is the same everywhere, and plans come as often as their weights say."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest

from chaos.history import Plan
from chaos.plan import WEIGHTS, Answer, answer_to, effects_of, failures_of, plan_of, slowness_of

SEED = 7


def ids(count: int) -> list[UUID]:
    chance = random.Random(1)
    return [UUID(int=chance.getrandbits(128), version=4) for _ in range(count)]


def first_of(plan: Plan) -> UUID:
    return next(id for id in ids(5_000) if plan_of(id, SEED) is plan)


def answers(plan: Plan, calls: int = 6) -> list[Answer]:
    return [answer_to(first_of(plan), SEED, call) for call in range(1, calls + 1)]


def test_every_plan_has_a_weight_and_nine_in_ten_events_are_accepted() -> None:
    assert set(WEIGHTS) == set(Plan)
    assert WEIGHTS[Plan.ACCEPT] / sum(WEIGHTS.values()) == 0.9


def test_plans_come_as_often_as_their_weights_say() -> None:
    sample = 50_000
    found = Counter(plan_of(id, SEED) for id in ids(sample))
    for plan, weight in WEIGHTS.items():
        expected = sample * weight / sum(WEIGHTS.values())
        assert abs(found[plan] - expected) < 5 * expected**0.5, plan


def test_another_seed_gives_other_plans() -> None:
    differing = sum(plan_of(id, 1) is not plan_of(id, 2) for id in ids(2_000))
    assert 200 < differing < 600


def test_text_and_uuid_are_the_same_id() -> None:
    for id in ids(100):
        assert plan_of(str(id).upper(), SEED) is plan_of(id, SEED)
        assert failures_of(str(id), SEED) == failures_of(id, SEED)


def test_a_flaky_event_fails_one_to_three_times_and_then_never_again() -> None:
    flaky = [id for id in ids(5_000) if plan_of(id, SEED) is Plan.FLAKY]
    assert {failures_of(id, SEED) for id in flaky} == {1, 2, 3}
    for id in flaky:
        failures = failures_of(id, SEED)
        given = [answer_to(id, SEED, call) for call in range(1, 6)]
        assert given == [Answer.ERROR] * failures + [Answer.OK] * (5 - failures)


@pytest.mark.parametrize(
    ("plan", "first", "later"),
    [
        (Plan.ACCEPT, Answer.OK, Answer.OK),
        (Plan.REPEAT, Answer.REPEAT, Answer.REPEAT),
        (Plan.POISON, Answer.POISON, Answer.POISON),
        (Plan.HANG, Answer.HANG, Answer.OK),
        (Plan.DROP, Answer.DROP, Answer.OK),
        (Plan.NEVER, Answer.ERROR, Answer.ERROR),
    ],
)
def test_each_plan_answers_as_it_says(plan: Plan, first: Answer, later: Answer) -> None:
    assert answers(plan) == [first, *[later] * 5]


def test_what_is_accepted_in_the_end_has_one_effect() -> None:
    assert {plan: effects_of(plan) for plan in Plan} == {
        Plan.ACCEPT: 1,
        Plan.REPEAT: 0,
        Plan.POISON: 0,
        Plan.FLAKY: 1,
        Plan.HANG: 1,
        Plan.DROP: 1,
        Plan.NEVER: 0,
    }


def test_an_event_that_always_fails_is_not_slow_too() -> None:
    slow = Counter(plan_of(id, SEED) for id in ids(20_000) if slowness_of(id, SEED))
    assert slow[Plan.ACCEPT] > 0
    assert Plan.NEVER not in slow
