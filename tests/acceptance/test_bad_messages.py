"""Good messages beside ever so many that always fail as if their handler were away: the circuit holds none back.

Nothing but failures looks like an outage, so the circuit opens. Its probes find the good ones.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.test_window import commit, handled
from tests.waiting import wait_for

FAILING = 200
GOOD = 2
PLAIN, COROUTINE = "python:tests.acceptance.failing_plain", "python:tests.acceptance.failing_coroutine"


def is_open(fleet: Fleet) -> bool:
    return bool(fleet.query("sea", "SELECT 1 FROM handler_circuits WHERE opened_at IS NOT NULL"))


@pytest.mark.parametrize("status", [500, 503, 429])
@pytest.mark.parametrize("order", ["", 'order = "key"\n'], ids=["unordered", "ordered"])
def test_good_messages_behind_bad_ones_close_the_circuit(
    start_fleet: Callable[..., Fleet], handler: HandlerService, status: int, order: str
) -> None:
    fleet = start_fleet(max_ack_pending=50, more=order)
    handler.verdict = lambda body, _n: status if body["event_type"] == "away" else 200
    behind_bad_ones(fleet)


@pytest.mark.parametrize("module", [PLAIN, COROUTINE])
def test_so_they_do_behind_functions_that_say_outage(start_fleet: Callable[..., Fleet], module: str) -> None:
    behind_bad_ones(start_fleet(max_ack_pending=50, handler=module))


def behind_bad_ones(fleet: Fleet) -> None:
    """Wait until good messages are handled, though many bad ones hold the circuit open and came first."""
    fleet.scheduler()
    fleet.worker()
    commit(fleet, "away", FAILING)
    wait_for("the circuit opens", lambda: is_open(fleet))
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)
    assert fleet.query("sea", "SELECT 1 FROM inbox_messages WHERE dead_lettered_at IS NOT NULL") == []
