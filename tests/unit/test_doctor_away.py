"""What `relay health` says of a handler that is away."""

from __future__ import annotations

import pytest

from relay.domain.backlogs import AwayHandler
from relay.domain.findings import Severity
from relay.ops.doctor import backlogs


@pytest.mark.parametrize(
    ("seconds", "severity"), [(1.0, Severity.WARNING), (59.0, Severity.WARNING), (60.0, Severity.ERROR)]
)
def test_a_handler_that_is_away_is_a_warning_and_soon_an_error(seconds: float, severity: Severity) -> None:
    [found] = backlogs.away("sea", [AwayHandler("from_up", "HTTP 503", seconds)])
    assert (found.code, found.severity, found.subject) == ("HANDLER_AWAY", severity, "subscription sea.from_up")
    assert "HTTP 503" in found.text


def test_it_is_named_as_the_cause_of_what_stands_still() -> None:
    around = backlogs.Surroundings(
        away=[AwayHandler("from_up", "HTTP 503", 90.0)], subscriptions=["from_up", "other"], workers=1
    )
    found = [cause for name in ("from_up", "other") for cause, _ in backlogs.causes(movement(name), around)]
    assert found == ["its handler is away: HTTP 503"]


def movement(subscription: str) -> backlogs.Movement:
    return backlogs.Movement(
        kind=backlogs.BacklogKind.MESSAGES,
        part=subscription,
        due=3,
        due_seconds=100.0,
        head="x",
        moved_seconds=None,
    )
