"""A judge that acquits everybody is worth nothing: each planted bug is found guilty, of the promise it breaks."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.history import Source
from chaos.judgement import Judgement
from chaos.run import RunOptions
from chaos.run import run as run_chaos
from relay.failpoints import FailpointAction, arm, reached
from relay.ops.doctor import streams
from tests.chaos.bugs import BUGS, VARIABLE
from tests.chaos.crashing import PYTHON_HANDLER, CrashFleet, killed
from tests.chaos.story import Story, broken
from tests.waiting import wait_for

#: Recovery takes ten seconds at most; what has not moved for so long is not coming.
PATIENCE = 20.0


@dataclass
class BuggyFleet(CrashFleet):
    """Workers that load the bugs before anything else."""

    bug: str = "none"

    @property
    def environment(self) -> dict[str, str]:
        modules = "tests.chaos.bugs,consumer.actors"
        return {**super().environment, "RELAY_ACTOR_MODULES": modules, VARIABLE: self.bug}


def run(directory: Path, bug: str, fault: tuple[str, FailpointAction] | None = None) -> dict[int, tuple[str, ...]]:
    """Commit events while the bug is there, with a fault if it needs one; returns the broken promises."""
    points = directory / "points"
    points.mkdir(parents=True)
    story = Story(Source.PYTHON)
    with BuggyFleet(directory, handler=PYTHON_HANDLER, failpoints=points, story=story, bug=bug) as fleet:
        fleet.hire()
        if fault is not None:
            arm(points, *fault)
        # Before there is a scheduler nobody works, so the first batch has several events of each key.
        story.tell(fleet.urls["vibespro"])
        fleet.scheduler()
        if fault is not None:
            wait_for("the fault has happened", lambda: reached(points, fault[0]))
            if fault[1] is FailpointAction.KILL:
                fleet.replace(killed(fleet))
        story.tell(fleet.urls["vibespro"])
        return broken(fleet, story, PATIENCE)


#: The promise that each bug breaks, the sentence that says so, and the fault that brings it to light.
GUILTY = {
    "ack_before_commit": (
        1,
        "is in the stream and not in the inbox",
        ("after_fetch_before_insert", FailpointAction.KILL),
    ),
    "skip_mark": (6, "is waiting in the outbox", None),
    "drop_one_retry": (
        6,
        "is open in the inbox",
        ("after_mark_before_handler_commit", FailpointAction.LOST_REPLY),
    ),
    "publish_outside_lane_lock": (4, "comes before it in the stream", None),
    "settle_twice": (3, "has 2 effects, not 1", None),
    "store_twice": (10, "apart: within the duplicate window", None),
    "swallow_dead_letter": (5, "is dead-lettered and has no incident", None),
}


#: Bugs that only the records of the handlers show, the fault that brings each to light, and how long it takes.
AT_ONCE = {"ask_twice": ("valkey-flush", 6.0), "believe_in_the_lease": ("handler-hang", 18.0)}


#: Promises that nothing can keep in a run that is not at rest when it ends.
NOT_AT_REST = {1, 5, 6, 8, 13, 15}

#: Bugs that one kind of fault brings to light: how long the run takes, the promise, the sentence, and which other
#: promises cannot be kept beside it.
UNDER_A_FAULT = {
    "trust_old_marks": ("producer-adopted", 15.0, 6, "is waiting in the outbox", {4, 8}),
    "ignore_refusals": ("poison-rows", 10.0, 15, "and the webhook has got", set[int]()),
    "count_outages": ("handler-away", 18.0, 5, "has an incident of class exhausted", {1}),
    "one_view": ("same-ids", 10.0, 13, "was not handled by", {1, 6, 8}),
    "letters_of_letters": ("failing-messages", 10.0, 5, "they multiply", {1, 6, 8, 15}),
    "confused_deputy": ("hostile-rows", 8.0, 16, "of a stranger was published", NOT_AT_REST),
    "believe_any_answer": ("foreign-answers", 10.0, 1, "where the stream has", NOT_AT_REST),
    "sessions_as_they_come": ("odd-sessions", 20.0, 16, "stood still for more than 10 s", NOT_AT_REST),
    "sessions_as_they_were": ("leftovers", 8.0, 16, "found what another call has left", {3, *NOT_AT_REST}),
    "only_exceptions": ("base-exceptions", 15.0, 16, "an exception of a handler ended", NOT_AT_REST),
    "never_mend": ("broken-keys", 15.0, 6, "is waiting in the outbox", {14, 16, *NOT_AT_REST}),
}


def test_every_bug_is_tried() -> None:
    assert {"none", *GUILTY, *AT_ONCE, *UNDER_A_FAULT} == set(BUGS)


#: What `make test` runs: a bug for each way in which a fault brings one to light (none, a kill, a reply that is
#: lost), an acquittal beside a kill, and two calls at once. `make soak` runs all of them.
SAMPLE = {"settle_twice", "ack_before_commit", "drop_one_retry", "ask_twice"}


def sampled(bugs: Iterable[str], sample: Container[str] = SAMPLE) -> list[object]:
    return [pytest.param(bug, marks=() if bug in sample else pytest.mark.soak) for bug in bugs]


@pytest.mark.parametrize("bug", sampled(GUILTY))
def test_a_planted_bug_is_found_guilty_of_the_promise_it_breaks(server_directory: Path, bug: str) -> None:
    promise, sentence, fault = GUILTY[bug]
    found = run(server_directory, bug, fault)
    assert sentence in "\n".join(found[promise]), found
    # What is not the bug's doing is not laid at its door. A bug that stops an event on its way leaves it stuck.
    assert found.keys() <= {promise, 6}, found


@pytest.mark.parametrize(
    "bug", sampled(["skip_mark", "ack_before_commit", "drop_one_retry"], ["ack_before_commit"])
)
def test_the_same_run_without_the_bug_is_acquitted(server_directory: Path, bug: str) -> None:
    """One of those that need no fault, and those that do."""
    _, _, fault = GUILTY[bug]
    assert run(server_directory, "none", fault) == {}


def judged(directory: Path, bug: str, kind: str, seconds: float) -> dict[int, Judgement]:
    """Run with the bug under one kind of fault, and judge."""
    options = RunOptions(
        directory=directory / "run",
        seconds=seconds,
        seed=1,
        every=(1, 2),
        kinds=[kind],
        hanging=5,  # so few that threads are left to take over what the others have lost
        max_attempts=5,
        rest=20,
        environment={"RELAY_ACTOR_MODULES": "tests.chaos.bugs,consumer.actors", VARIABLE: bug},
    )
    return {it.number: it for it in run_chaos(options, "this test", lambda _: None).judgements}


@pytest.mark.parametrize("bug", sampled(AT_ONCE))
def test_two_calls_at_once_are_found(server_directory: Path, bug: str) -> None:
    found = judged(server_directory, bug, *AT_ONCE[bug])
    assert "at once" in found[10].violations[0]
    # The service knows a message again: nothing is done twice.
    assert found[3].kept


@pytest.mark.soak
@pytest.mark.parametrize("bug", UNDER_A_FAULT)
def test_a_bug_that_one_kind_of_fault_brings_to_light_is_found(server_directory: Path, bug: str) -> None:
    kind, seconds, promise, sentence, beside = UNDER_A_FAULT[bug]
    found = judged(server_directory, bug, kind, seconds)
    assert sentence in "\n".join(found[promise].violations), found
    assert {number for number, it in found.items() if not it.kept} <= {promise, 7, *beside}, found


@pytest.mark.soak
def test_a_doctor_that_is_blind_is_found(server_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees that a backlog stands still, and not why."""
    monkeypatch.setattr(streams, "CHECKS", [])
    found = judged(server_directory, "none", "still-pause", 55.0)
    assert {number for number, it in found.items() if not it.kept} == {7, 14}
    assert "consumer_paused was not named, only: STREAM_STALLED" in found[14].violations[0]
