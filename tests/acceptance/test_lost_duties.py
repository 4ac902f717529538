"""Duties that have an hour between two runs: one whose worker dies in the middle has its next run at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import redis

from tests.acceptance.fleet import Fleet, wait_for

ARCHIVE = """
[contexts.sea.archive]
after = "90d"
directory = "{directory}"
"""
#: As many at once as have a thread. A worker that starts sends ``reconcile_stream`` of itself.
FIRST = ["prune:sea", "archive:sea", "reconcile_inbox:sea:from_vibespro", "keep_in_progress:sea:from_vibespro"]
SECOND = ["rescue_exhausted:sea:from_vibespro", "recover_deliveries:sea:from_vibespro"]
ALL = FIRST + SECOND


def test_a_duty_whose_worker_died_in_the_middle_is_sent_again_and_rests_when_it_is_done(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    begun, cold = tmp_path / "begun", tmp_path / "cold"
    begun.mkdir()
    cold.mkdir()
    fleet = start_fleet(
        ack_wait="4h",  # a quarter of which is how often messages are said to be in progress
        more=ARCHIVE.format(directory=cold),
        variables={"STUCK": str(tmp_path), "RELAY_ACTOR_MODULES": "consumer.actors,tests.acceptance.stuck"},
    )

    def runs(duty: str) -> int:
        return len(list(begun.glob(f"{duty} *")))

    def stuck(duties: list[str]) -> None:
        wait_for("all hang", lambda: not [duty for duty in duties if (tmp_path / duty).exists()])

    def arm(duties: list[str]) -> None:
        for duty in duties:
            (tmp_path / duty).touch()

    arm(FIRST)
    fleet.scheduler()
    worker = fleet.worker()
    stuck(FIRST)
    fleet.kill(worker)
    worker = fleet.worker()
    wait_for("all have begun again", lambda: min(runs(duty) for duty in FIRST) == 2)
    wait_for("all rest", lambda: min(rest(fleet, duty) for duty in ALL) > 3_000)

    arm(SECOND)
    with redis.Redis.from_url(fleet.valkey.url) as client:
        client.delete(*(f"relay:gate:{duty}" for duty in SECOND))
    stuck(SECOND)
    fleet.kill(worker)
    fleet.worker()
    wait_for("those have begun again", lambda: min(runs(duty) for duty in SECOND) == 3)
    wait_for("all rest again", lambda: min(rest(fleet, duty) for duty in ALL) > 3_000)
    assert [runs(duty) for duty in FIRST] == [2, 2, 2, 2], "what is done is not sent again"

    fleet.flush()
    wait_for("what Redis lost is done again", lambda: min(rest(fleet, duty) for duty in ALL) > 3_000)


def rest(fleet: Fleet, duty: str) -> float:
    """For how long a duty counts as done, in seconds; nothing while it is not."""
    with redis.Redis.from_url(fleet.valkey.url) as client:
        key = f"relay:gate:{duty}"
        if client.get(key) != b"done":
            return 0
        return int(client.pttl(key)) / 1000  # type: ignore[arg-type]
