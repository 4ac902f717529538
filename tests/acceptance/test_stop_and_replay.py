"""An operator stops what waits behind a handler that is away, and replays into one inbox, with a whole fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import commit_one
from tests.waiting import wait_for

SEA = ("--context", "sea")


def replay(fleet: Fleet) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fleet.relay("inbox", "replays", *SEA, "--json"))[0]
    return found


def test_what_is_held_waits_and_what_was_handled_is_handled_again(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet()
    fleet.scheduler()
    first = fleet.worker()
    done = [commit_one(fleet.urls["vibespro"]) for _ in range(3)]
    wait_for("they are handled", lambda: all(handler.count(id) == 1 for id in done))

    handler.verdict = lambda _body, _n: 503
    wrong = commit_one(fleet.urls["vibespro"])
    wait_for("it fails", lambda: handler.count(wrong) > 0)

    def held() -> bool:
        """A message in work is not held. It fails, and then it is."""
        with suppress(AssertionError):
            fleet.relay("inbox", "hold", "--all", "--note", "wrong price", "--yes", *SEA)
        return bool(json.loads(fleet.relay("inbox", "list", "--status", "held", "--json", *SEA)))

    wait_for("it is held", held)
    calls = handler.count(wrong)
    handler.verdict = lambda _body, _n: 200
    fleet.relay("inbox", "replay", "--subscription", "from_vibespro", "--handled", "again", "--rate", "1", *SEA)
    wait_for("the replay moves", lambda: replay(fleet)["repeated"] > 0)
    fleet.kill(first)
    fleet.worker()
    wait_for("it goes on and ends", lambda: replay(fleet)["state"] == "finished", 90)
    wait_for("they are handled again", lambda: all(handler.count(id) >= 2 for id in done))
    assert handler.count(wrong) == calls
    assert (replay(fleet)["repeated"], replay(fleet)["skipped"]) == (3, 1)

    fleet.relay("inbox", "release", "--all", "--yes", *SEA)
    wait_for("it is handled", lambda: handler.count(wrong) == calls + 1)
