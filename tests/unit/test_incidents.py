"""Which incidents may be acted upon."""

from __future__ import annotations

import pytest

from relay.domain.errors import IncidentClosed, NotRequeueable, UnreadableMessage
from relay.domain.incidents import (
    Candidate,
    IncidentStatus,
    close_refusal,
    requeue_refusal,
)


def candidate(status: IncidentStatus, *, readable: bool = True, waiting: bool = True) -> Candidate:
    return Candidate(status, readable, waiting)


@pytest.mark.parametrize("status", [IncidentStatus.OPEN, IncidentStatus.DISCARDED, IncidentStatus.RESOLVED])
def test_an_operator_may_think_better_of_it(status: IncidentStatus) -> None:
    assert requeue_refusal(candidate(status)) is None


def test_what_must_not_be_requeued() -> None:
    open_ = IncidentStatus.OPEN
    assert isinstance(requeue_refusal(candidate(IncidentStatus.REQUEUED)), IncidentClosed)
    assert isinstance(requeue_refusal(candidate(open_, readable=False)), UnreadableMessage)
    assert isinstance(requeue_refusal(candidate(open_, waiting=False)), NotRequeueable)
    assert isinstance(requeue_refusal(Candidate(open_, True, True, confirmed=False)), NotRequeueable)


def test_only_an_open_incident_is_closed() -> None:
    assert close_refusal(candidate(IncidentStatus.OPEN, readable=False, waiting=False)) is None
    for status in (IncidentStatus.REQUEUED, IncidentStatus.DISCARDED, IncidentStatus.RESOLVED):
        assert isinstance(close_refusal(candidate(status)), IncidentClosed)
