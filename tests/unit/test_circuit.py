"""When a handler counts as away: stories of calls that fail and succeed, and what the circuit makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from relay.domain.circuit import (
    FLAPPING,
    LATELY,
    TRUSTED,
    Circuit,
    CircuitPolicy,
    Reported,
    Successes,
)

POLICY = CircuitPolicy()
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Story:
    """A subscription whose calls fail and succeed at given seconds, as `PostgresCircuits.report` sees them."""

    circuit: Circuit = field(default_factory=Circuit)
    now: datetime = BEGIN
    processed: list[datetime] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def succeeds(self) -> None:
        self.processed.append(self.now)

    def fails(
        self, message: int, *, surely: bool = False, last: bool = False, attempts: int | None = None
    ) -> bool:
        """One call fails; returns whether that has opened the circuit."""
        self.attempts[message] = attempts or self.attempts.get(message, 0) + 1
        reports = [Reported(UUID(int=message), self.attempts[message], "HTTP 503", surely=surely, last=last)]
        noted = self.circuit.noting(reports, self.now)
        if noted.suspects(reports, POLICY):
            assert noted.since is not None
            since = [at for at in self.processed if at >= noted.since]
            successes = Successes(len(since), max(self.processed, default=None))
            noted = noted.after(successes)
            if noted.is_away(reports, successes, POLICY, self.now):
                self.circuit = noted.opened(reports, POLICY, self.now)
                return True
            noted = noted.counting_again(POLICY, self.now)
        self.circuit = noted
        return False

    def all_fail(self, messages: Iterable[int], rounds: int, every: float = 1.0) -> int | None:
        """All fail again and again; returns in which round the circuit opens."""
        for number in range(rounds):
            if [it for it in messages if self.fails(it)]:
                return number
            self.wait(every)
        return None


def test_one_message_that_always_fails_alone_never_opens_it() -> None:
    assert Story().all_fail([1], rounds=100) is None


def test_two_that_always_fail_alone_never_open_it() -> None:
    assert Story().all_fail([1, 2], rounds=100) is None


@pytest.mark.parametrize("messages", [3, 4, 10, 50])
def test_it_opens_when_several_fail_and_none_succeeds(messages: int) -> None:
    opened = Story().all_fail(range(messages), rounds=10)
    assert opened is not None
    assert opened * messages <= max(POLICY.failures, 2 * messages)


def test_not_before_a_moment_has_passed_because_successes_beside_it_may_not_be_recorded_yet() -> None:
    story = Story()
    assert story.all_fail(range(30), rounds=1, every=0) is None
    story.wait(LATELY.total_seconds())
    assert story.fails(31)


def test_one_that_always_fails_among_good_ones_never_opens_it() -> None:
    story = Story()
    for _ in range(100):
        assert not story.fails(1)
        story.succeeds()
        story.wait(1)


def test_those_that_always_fail_among_good_ones_open_it_never_also_when_nothing_else_is_left() -> None:
    story = Story()
    for _ in range(TRUSTED + 1):
        for message in range(60):
            assert not story.fails(message)
        for _ in range(10):
            story.succeeds()
        story.wait(0.3)
    assert story.all_fail(range(60), rounds=20) is None, "they have failed while others succeeded"


def test_it_opens_when_all_fail_that_did_well_before() -> None:
    story = Story()
    for _ in range(1000):
        story.succeeds()
        story.wait(0.01)
    assert story.all_fail(range(10), rounds=5, every=0.5) is not None


@pytest.mark.parametrize("pace", [0.001, 0.02])
def test_a_handler_that_fails_every_other_time_never_opens_it(pace: float) -> None:
    assert rate(0.5, pace) is None


def test_a_handler_that_nearly_always_fails_opens_it_although_some_calls_succeed() -> None:
    assert rate(0.97, 0.02) is not None


def rate(share: float, pace: float) -> int | None:
    """Calls for ever new messages, of which a share fails; returns which of them opens the circuit."""
    story, chance = Story(), random.Random(7)
    for message in range(3000):
        if chance.random() >= share:
            story.succeeds()
        elif story.fails(message):
            return message
        story.wait(pace)
    return None


def test_a_handler_that_was_not_reached_is_away_at_once() -> None:
    assert Story().fails(1, surely=True)


def test_unless_it_did_well_a_moment_ago() -> None:
    story = Story()
    story.succeeds()
    story.wait(LATELY.total_seconds() / 2)
    assert not story.fails(1, surely=True)
    story.wait(LATELY.total_seconds())
    assert story.fails(2, surely=True)


def test_it_opens_sooner_if_a_message_would_die() -> None:
    story = Story()
    assert not story.fails(1)
    assert not story.fails(2)
    assert story.fails(3, last=True), "three fail, and none succeeded"


def test_it_does_not_open_for_one_that_dies_while_others_succeed() -> None:
    story = Story()
    story.fails(1)
    story.fails(2)
    story.wait(0.1)
    story.succeeds()
    story.wait(0.1)
    assert not story.fails(3, last=True)


def test_one_that_failed_often_before_is_no_witness() -> None:
    story = Story()
    for message in range(3):
        assert not story.fails(message, attempts=TRUSTED + 2, last=True)


def test_what_failed_long_ago_is_forgotten() -> None:
    story = Story()
    for message in range(20):
        story.fails(message)
    story.wait(600)
    assert not story.fails(21)
    assert set(story.circuit.witnesses) == {UUID(int=21)}


# --- while it is open ---


def opened() -> Circuit:
    return Circuit().opened([Reported(UUID(int=1), 1, "HTTP 503")], POLICY, BEGIN)


def pauses(circuit: Circuit, later: timedelta | None = None) -> list[float]:
    """The pauses before the next probes, each of which fails."""
    found, now = [], BEGIN
    for _ in range(6):
        assert circuit.probe_at is not None
        found.append((circuit.probe_at - now).total_seconds())
        now = circuit.probe_at
        circuit = circuit.probe_failed([Reported(UUID(int=1), 1, "HTTP 503", later=later)], POLICY, now)
    return found


def test_probes_go_out_with_back_off() -> None:
    assert pauses(opened()) == [1, 2, 2, 2, 2, 2]


def test_the_handlers_own_word_makes_a_pause_longer_but_not_shorter() -> None:
    assert pauses(opened(), timedelta(seconds=5)) == [1, 5, 5, 5, 5, 5]


@pytest.mark.parametrize(
    ("after", "probes"), [(lambda: FLAPPING / 2, 4), (lambda: FLAPPING, 0)], ids=["flapping", "later"]
)
def test_a_circuit_that_opens_again_soon_goes_on_with_its_long_pauses(
    after: Callable[[], timedelta], probes: int
) -> None:
    circuit, reports = opened(), [Reported(UUID(int=1), 1, "HTTP 503")]
    for _ in range(3):
        circuit = circuit.probe_failed(reports, POLICY, BEGIN)
    closed = circuit.closed(BEGIN)
    assert not closed.is_open
    assert closed.opened(reports, POLICY, BEGIN + after()).probes == probes
