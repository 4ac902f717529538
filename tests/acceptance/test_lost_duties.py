"""Duties that have an hour between two runs: one whose worker dies in the middle has its next run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import redis

from relay import jobs
from relay.adapters.gate import Gates
from relay.adapters.redis import create_broker
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
PULL: Final = jobs.PULL.of("sea", "from_vibespro")


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


def test_a_pull_that_lost_its_gate_makes_room_for_the_one_that_has_it(start_fleet: Callable[..., Fleet]) -> None:
    """A gate can expire while Redis is frozen. The next pull waits for the thread of the one that still runs."""
    fleet = start_fleet()
    scheduler = fleet.scheduler()
    fleet.worker()
    wait_for("a pull runs", renewing(fleet, PULL.key))
    fleet.kill(scheduler)
    broker = create_broker(fleet.valkey.url, namespace="relay", middleware=[])

    async def replace() -> str | None:
        gates = Gates(fleet.valkey.url, "relay")
        token = await gates.open(PULL.key, force=True, send=lambda token: broker.entry(PULL.message(token)))
        await gates.aclose()
        return token

    token = asyncio.run(replace())
    renewed = renewing(fleet, PULL.key)

    def runs() -> bool:
        assert gate(fleet, PULL.key)[0] == token, "the gate ran out while its job waited for a thread"
        return renewed()

    wait_for("the other pull runs", runs)


def gate(fleet: Fleet, duty: str) -> tuple[str | None, int]:
    """Who has a gate, and for how long, in milliseconds."""
    with redis.Redis.from_url(fleet.valkey.url, decode_responses=True) as client:
        key = f"relay:gate:{duty}"
        holder, life = client.get(key), client.pttl(key)
        return holder, life  # type: ignore[return-value]


def renewing(fleet: Fleet, duty: str) -> Callable[[], bool]:
    """Whether the holder of a gate has renewed it since the last look: only a job that runs does."""
    seen = gate(fleet, duty)

    def renewed() -> bool:
        nonlocal seen
        (holder, life), seen = seen, gate(fleet, duty)
        return holder is not None and holder == seen[0] and seen[1] > life

    return renewed


def rest(fleet: Fleet, duty: str) -> float:
    """For how long a duty counts as done, in seconds; nothing while it is not."""
    with redis.Redis.from_url(fleet.valkey.url) as client:
        key = f"relay:gate:{duty}"
        if client.get(key) != b"done":
            return 0
        return int(client.pttl(key)) / 1000  # type: ignore[arg-type]
