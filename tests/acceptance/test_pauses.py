"""A subscription is paused under load, with a whole fleet: nothing is lost, no attempt spent, the order kept."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

MESSAGES = 60


def counted(fleet: Fleet, which: str = "true") -> int:
    [(count,)] = fleet.query("sea", f"SELECT count(*) FROM inbox_messages WHERE {which}")
    return int(count)


def test_a_pause_under_load_loses_nothing_and_resume_drains_it(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(max_ack_pending=20, more='order = "key"\n')
    fleet.scheduler()
    fleet.worker(processes=2)
    sea = ("from_vibespro", "--context", "sea")
    ids = [commit_one(fleet.urls["vibespro"]) for _ in range(MESSAGES // 2)]
    wait_for("some are handled", lambda: len(handler.calls) >= 5)
    fleet.relay("subscriptions", "pause", *sea, "--note", "charges twice", "--for", "2h")
    # No message is claimed from the commit on; what ran ends.
    wait_for("what ran ends", lambda: counted(fleet, "claimed_until > now()") == 0)
    calls = len(handler.calls)
    ids += [commit_one(fleet.urls["vibespro"]) for _ in range(MESSAGES // 2)]
    wait_for(
        "all are in the stream",
        lambda: (
            fleet.query("vibespro", "SELECT count(*) FROM outbox_events WHERE published_at IS NULL")[0][0] == 0
        ),
    )
    fleet.flush()
    [listed] = json.loads(fleet.relay("controls", "list", "--context", "sea", "--json"))
    assert (listed["name"], listed["reason"]) == ("from_vibespro", "charges twice")
    assert len(handler.calls) == calls
    fleet.relay("subscriptions", "resume", *sea)
    wait_for("all are handled", lambda: counted(fleet, "processed_at IS NOT NULL") == MESSAGES)
    assert {handler.count(id) for id in ids} == {1}
    [(most,)] = fleet.query("sea", "SELECT max(attempts) FROM inbox_messages")
    assert most == 1, "no attempt was spent"
    assert [it.message_id for it in handler.calls] == [str(id) for id in ids], "in the order of their key"


def test_a_configured_limit_holds_until_an_operator_sets_another(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(more='rate = "1/1h"\n')
    fleet.scheduler()
    fleet.worker(processes=2)
    sea = ("from_vibespro", "--context", "sea")
    ids = {str(commit_one(fleet.urls["vibespro"])) for _ in range(3)}

    held = "attempts = 0 AND enqueued_at > now() + interval '5 min'"
    wait_for("one is handled", lambda: counted(fleet, "processed_at IS NOT NULL") == 1)
    wait_for("the others are held", lambda: counted(fleet, held) == 2)
    [shown] = json.loads(fleet.relay("subscriptions", "list", "--context", "sea", "--json"))
    assert (shown["limit"], shown["configured_limit"]) == (None, "1/1h")
    assert "1/1h" in fleet.relay("subscriptions", "list", "--context", "sea")
    fleet.relay("subscriptions", "limit", *sea, "--rate", "1000/1s", "--note", "the partner can take it")
    wait_for("all are handled", lambda: counted(fleet, "processed_at IS NOT NULL") == 3)
    assert sorted(it.message_id for it in handler.calls) == sorted(ids)
