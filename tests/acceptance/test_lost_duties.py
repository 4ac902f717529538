"""Duties that have an hour between two runs: one whose worker dies in the middle has its next run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import redis

from relay import jobs
from relay.adapters.dramatiq.broker import create_broker
from relay.adapters.dramatiq.gates import Gates
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

ARCHIVE = """
[contexts.sea.archive]
after = "90d"
directory = "{directory}"
"""
DUTIES = ["prune:sea", "archive:sea"]
PARTS = [
    "sweep_inbox",
    "record_dead_letters",
    "reconcile_inbox:from_vibespro",
    "keep_in_progress:from_vibespro",
    "rescue_exhausted:from_vibespro",
    "recover_deliveries:from_vibespro",
]
ALL = DUTIES + PARTS
PULL: Final = jobs.PULL.of("sea", "from_vibespro")


def test_a_duty_whose_worker_died_in_the_middle_is_sent_again_and_rests_when_it_is_done(
    start_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    begun, cold = tmp_path / "begun", tmp_path / "cold"
    begun.mkdir()
    cold.mkdir()
    fleet = start_fleet(
        more=ARCHIVE.format(directory=cold),
        variables={"STUCK": str(tmp_path), "RELAY_ACTOR_MODULES": "consumer.actors,tests.acceptance.stuck"},
    )

    def runs(duty: str) -> int:
        return len(list(begun.glob(f"{duty} *")))

    for duty in ALL:
        (tmp_path / duty).touch()
    fleet.scheduler()
    worker = fleet.worker()
    wait_for("all hang", lambda: not [duty for duty in ALL if (tmp_path / duty).exists()])
    fleet.kill(worker)
    fleet.worker()
    wait_for("all have begun again", lambda: min(map(runs, ALL)) == 2)
    wait_for("all rest", lambda: min(rests(fleet)) > 3_000)
    assert {duty: runs(duty) for duty in ALL} == dict.fromkeys(ALL, 2), "what is done is not sent again"

    fleet.flush()
    wait_for("what Redis lost is done again", lambda: min(rests(fleet)) > 3_000)


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


@pytest.mark.parametrize("redis", ["answers", "comes later"])
def test_what_a_killed_worker_had_in_hand_its_successor_begins_at_once(
    start_fleet: Callable[..., Fleet], redis: str
) -> None:
    """Without a scheduler nobody sends another job, and the queue itself would wait for a minute."""
    fleet = start_fleet()
    scheduler, worker = fleet.scheduler(), fleet.worker()
    wait_for("a pull runs", renewing(fleet, PULL.key))
    token, _ = gate(fleet, PULL.key)
    for process in (scheduler, worker):
        fleet.kill(process)
    if redis == "comes later":
        fleet.valkey.pause()
    fleet.worker()
    if redis == "comes later":
        wait_for("it misses Redis", lambda: "Timeout" in fleet.log("worker"))
        fleet.valkey.resume()
    wait_for("the gate is held again", renewing(fleet, PULL.key), 40)
    assert gate(fleet, PULL.key)[0] == token, "by the same job"


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


def rests(fleet: Fleet) -> list[float]:
    """For how long each duty counts as done, and each part rests, in seconds; nothing while it does not."""
    with redis.Redis.from_url(fleet.valkey.url) as client:
        keys = [f"relay:gate:{duty}" for duty in DUTIES]
        lives = [client.pttl(key) / 1000 if client.get(key) == b"done" else 0.0 for key in keys]  # type: ignore[operator]
        now = client.time()[0]  # type: ignore[index]
        until = client.hmget("relay:routines:look_after:sea", PARTS)
        return lives + [int(mark or 0) / 1000 - now for mark in until]  # type: ignore[union-attr]
