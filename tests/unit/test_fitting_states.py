"""An action by a filter reaches each state whose rows its rule allows: no row is left out because of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from relay.domain import incidents, operators, tasks
from relay.domain.incidents import Candidate, IncidentStatus
from relay.domain.operators import EventState, MessageState
from relay.domain.tasks import TaskState
from relay.ops.kinds import KINDS


def incident(status: str) -> Candidate:
    return Candidate(status=IncidentStatus(status), readable=True, waiting=True)


#: Of each kind, how a row of a state is judged.
ROWS: Mapping[str, Callable[[str], Any]] = {
    "events": lambda status: EventState(
        published=status == "published",
        failed=status in ("failing", "dead"),
        discarded=status == "discarded",
        expired=status == "expired",
    ),
    "inbox": MessageState,
    "dead-letters": incident,
    "tasks": lambda status: TaskState(status, status == "running"),
}
RULES: Mapping[tuple[str, str], Callable[[Any], object]] = {
    ("events", "retry"): operators.retry_refusal,
    ("events", "replay"): operators.replay_refusal,
    ("events", "discard"): operators.discard_refusal,
    ("events", "reopen"): operators.reopen_refusal,
    ("inbox", "retry"): operators.message_refusal,
    ("inbox", "hold"): operators.hold_refusal,
    ("inbox", "release"): operators.release_refusal,
    ("inbox", "discard"): operators.message_discard_refusal,
    ("inbox", "reopen"): operators.message_reopen_refusal,
    ("dead-letters", "requeue"): incidents.requeue_refusal,
    ("dead-letters", "snooze"): incidents.close_refusal,
    ("dead-letters", "wake"): incidents.wake_refusal,
    ("dead-letters", "resolve"): incidents.close_refusal,
    ("dead-letters", "discard"): incidents.close_refusal,
    ("dead-letters", "reopen"): incidents.reopen_refusal,
    ("tasks", "retry"): tasks.retry_refusal,
    ("tasks", "cancel"): tasks.cancel_refusal,
    ("tasks", "reopen"): tasks.reopen_refusal,
}
#: Counted, and refused while it lasts: whoever stops messages is told of those in work.
IN_WORK = {("inbox", "hold"): {"running"}, ("inbox", "discard"): {"running"}}


def test_each_action_has_its_rule_here() -> None:
    assert {(path, it.name) for path, kind in KINDS.items() for it in kind.actions} == {*RULES}


@pytest.mark.parametrize(("path", "name"), RULES)
def test_the_rows_that_fit_are_those_that_the_rule_allows(path: str, name: str) -> None:
    kind = KINDS[path]
    [action] = [it for it in kind.actions if it.name == name]
    allowed = {it for it in kind.states if RULES[path, name](ROWS[path](it)) is None}
    assert {*action.fits} == allowed | IN_WORK.get((path, name), set())
    assert {*action.states} <= {*action.fits}
