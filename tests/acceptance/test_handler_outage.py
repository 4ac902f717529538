"""A handler that is away, with a whole fleet: no message is lost to it, and all go on when it is back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

#: With these, a message is tried for less than two seconds.
ATTEMPTS = 3
QUICK = 'backoff_initial = "100ms"\nbackoff_max = "400ms"\ncircuit_probe_max = "1s"\n'
MESSAGES = 12


def open_since(fleet: Fleet) -> Any:
    rows = fleet.query("sea", "SELECT opened_at FROM handler_circuits WHERE opened_at IS NOT NULL")
    return rows[0][0] if rows else None


def counted(fleet: Fleet, what: str) -> int:
    [(count,)] = fleet.query("sea", f"SELECT count({what}) FROM inbox_messages")
    return int(count)


@pytest.fixture
def quick(start_fleet: Callable[..., Fleet]) -> Fleet:
    fleet = start_fleet(max_attempts=ATTEMPTS, more=QUICK)
    fleet.scheduler()
    fleet.worker(processes=2)
    return fleet


@pytest.mark.parametrize("status", [500, 503])
def test_a_service_that_fails_for_longer_than_all_attempts_last_loses_nothing(
    quick: Fleet, handler: HandlerService, status: int
) -> None:
    handler.verdict = lambda _body, _n: status
    ids = [commit_one(quick.urls["vibespro"]) for _ in range(MESSAGES)]
    wait_for("the circuit opens", lambda: open_since(quick))
    wait_for("all are in the inbox", lambda: counted(quick, "*") == MESSAGES)
    probes = len(handler.calls)
    wait_for("single messages are tried", lambda: len(handler.calls) >= probes + 2)
    quick.flush()
    wait_for("still, when Redis has lost all", lambda: len(handler.calls) >= probes + 4)
    assert counted(quick, "dead_lettered_at") == 0
    handler.verdict = lambda _body, _n: 200
    wait_for("all are handled", lambda: counted(quick, "processed_at") == MESSAGES)
    assert open_since(quick) is None
    assert {handler.count(id) > 0 for id in ids} == {True}
    [(most,)] = quick.query("sea", "SELECT max(attempts) FROM inbox_messages")
    assert most <= 2, "what the outage has cost was given back"
    assert json.loads(quick.relay("dlq", "list", "--context", "sea", "--json")) == []
