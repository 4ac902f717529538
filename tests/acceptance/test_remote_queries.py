"""Queries that real workers answer, behind a stream that keeps them (SR-MESSAGE-CONTRACTS §3.1)."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from relay import RemoteQueries
from relay.bus import Nothing, Some
from relay.bus.errors import NoResponder, QueryTimeout
from tests.acceptance.fleet import Fleet
from tests.acceptance.loop_queries import LoopView
from tests.waiting import wait_for

FIND, WAIT = "sea.queries.loop.find", "sea.queries.loop.wait"
QUERIES = """
[contexts.sea.queries]
module = "{module}"
[contexts.sea.streams.SEA_QUERIES]
subjects = ["sea.queries.>"]
no_ack = true
"""


@pytest.fixture
def asked(start_fleet: Callable[..., Fleet]) -> Fleet:
    return start_fleet(more=QUERIES.format(module="tests.acceptance.loop_queries"))


def ask(fleet: Fleet, subject: str, seconds: float = 20, **payload: Any) -> Any:
    async def once() -> Any:
        async with RemoteQueries(fleet.nats.url, timeout=seconds) as queries:
            return await queries.ask(subject, payload, answer=LoopView)

    return asyncio.run(once())


def answers(fleet: Fleet) -> bool:
    try:
        return bool(ask(fleet, FIND, seconds=2, loop_id="none") == Nothing())
    except (NoResponder, QueryTimeout):
        # A worker that begins to listen may do so a moment too late for this query.
        return False


def begun(fleet: Fleet, count: int) -> Callable[[], bool]:
    """Whether the stream holds this many queries: each was given to a worker, too."""
    return lambda: fleet.jetstream(lambda js: js.stream_info("SEA_QUERIES")).state.messages >= count


async def _in_flight(fleet: Fleet, then: Callable[[], None]) -> Any:
    """Ask a slow query, and do something meanwhile."""
    async with RemoteQueries(fleet.nats.url, timeout=60) as queries:
        before = await asyncio.to_thread(fleet.jetstream, lambda js: js.stream_info("SEA_QUERIES"))
        asking = asyncio.create_task(queries.ask(WAIT, {"loop_id": "loop_1", "pause": 4}, answer=LoopView))
        await asyncio.to_thread(wait_for, "it is asked", begun(fleet, before.state.messages + 1))
        await asyncio.to_thread(then)
        return await asking


def test_workers_answer_and_one_that_is_killed_in_the_middle_is_told_of_at_once(asked: Fleet) -> None:
    fleet = asked
    with pytest.raises(NoResponder):
        ask(fleet, FIND, loop_id="loop_1")
    worker = fleet.worker()
    wait_for("it answers", lambda: answers(fleet))
    match ask(fleet, FIND, loop_id="loop_1", pause=0.5):
        case Some(LoopView(loop_id="loop_1")):
            pass
        case other:
            raise AssertionError(other)
    with pytest.raises(NoResponder):
        asyncio.run(_in_flight(fleet, lambda: fleet.kill(worker)))
    fleet.worker()
    wait_for("another one answers", lambda: answers(fleet))


def test_a_worker_that_stops_answers_what_it_has_begun(asked: Fleet) -> None:
    fleet = asked
    worker: subprocess.Popen[bytes] = fleet.worker()
    wait_for("it answers", lambda: answers(fleet))
    found = asyncio.run(_in_flight(fleet, lambda: fleet.stop(worker) and None))
    assert found.unwrap().loop_id == "loop_1"
    assert not answers(fleet)


def test_a_worker_does_not_start_with_queries_it_cannot_answer(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(more=QUERIES.format(module="tests.acceptance.produce"))
    assert fleet.worker().wait(30) != 0
    assert "INVALID_HANDLER [queries]: tests.acceptance.produce answers no query" in fleet.log("worker")
