"""The probes of workers and schedulers: whether a process turns, and whether what it needs answers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from relay.domain.members import Usage
from relay.telemetry.exposition import _paths, _serving
from relay.telemetry.gauges import UsageGauges
from relay.telemetry.liveness import PATIENCE_S, Heartbeat, stuck_in, stuck_loop
from relay.telemetry.probes import Probes, ServerAnswer
from tests.clock import Clock

WELL = ServerAnswer("nats", healthy=True, milliseconds=1.5, error=None)
AWAY = ServerAnswer("postgresql sea", healthy=False, milliseconds=4000.0, error="DATABASE_UNREACHABLE")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def get(path: str, probes: Probes, method: str = "GET") -> tuple[str, Any]:
    """The status and the body that a request gets."""
    told: list[str] = []

    def metrics(_environ: Any, start_response: Callable[..., Any]) -> list[bytes]:
        start_response("200 OK", [])
        return [b'"metrics"']

    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": ""}
    body = _serving(metrics, **_paths(probes))(environ, lambda status, _headers: told.append(status))
    return told[0], json.loads(b"".join(body))


def test_a_process_that_turns_is_healthy_and_one_that_does_not_says_what() -> None:
    assert get("/healthz", Probes(list, list)) == ("200 OK", {"status": "ok"})
    status, body = get("/healthz", Probes(lambda: ["event loop"], list))
    assert status == "503 Service Unavailable"
    assert body == {"status": "stuck", "stuck": ["event loop"]}


@pytest.mark.parametrize(("found", "status"), [([WELL], "200 OK"), ([WELL, AWAY], "503 Service Unavailable")])
def test_it_is_ready_when_every_server_answers_and_each_is_shown(found: list[ServerAnswer], status: str) -> None:
    shown = [it._asdict() for it in found]
    assert get("/readyz", Probes(list, lambda: found)) == (status, {"ready": found == [WELL], "servers": shown})


def test_the_servers_do_not_decide_whether_a_process_is_healthy() -> None:
    def examine() -> list[ServerAnswer]:
        raise AssertionError("nobody asks them")

    assert get("/healthz", Probes(list, examine))[0] == "200 OK"


def test_many_that_ask_at_once_cause_one_examination(clock: Clock) -> None:
    examined: list[int] = []

    def examine() -> list[ServerAnswer]:
        examined.append(1)
        return [WELL]

    probes = Probes(list, examine, clock)
    for _ in range(5):
        probes.readyz("")
    assert len(examined) == 1
    clock.now += 2.5
    probes.readyz("")
    assert len(examined) == 2


def test_other_paths_and_methods_are_none_of_theirs() -> None:
    for path, method in (("/metrics", "GET"), ("/", "GET"), ("/readyz", "POST")):
        assert get(path, Probes(list, list), method) == ("200 OK", "metrics")


# --- the pulse ---


def test_a_process_that_beats_is_well_until_it_has_not_for_a_minute(tmp_path: Path, clock: Clock) -> None:
    pulse = Heartbeat(tmp_path, clock)
    assert stuck_in(tmp_path, clock) == []
    clock.now += PATIENCE_S - 1
    assert stuck_in(tmp_path, clock) == []
    clock.now += 2
    [stuck] = stuck_in(tmp_path, clock)
    assert stuck.startswith("process ")
    pulse.beat()
    assert stuck_in(tmp_path, clock) == []


@pytest.mark.anyio
async def test_the_event_loop_beats_and_a_process_that_ends_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    pulse = Heartbeat(tmp_path, clock)
    clock.now += 2 * PATIENCE_S
    assert stuck_in(tmp_path, clock) != []
    await pulse.start()
    await asyncio.sleep(0)
    assert stuck_in(tmp_path, clock) == []
    await pulse.stop()
    assert [*tmp_path.iterdir()] == []  # noqa: ASYNC240 - at its end
    assert stuck_in(tmp_path, clock) == ["no worker process"]


def test_what_the_processes_do_is_added_up_and_one_that_ended_does_nothing(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    registry.register(UsageGauges(tmp_path))

    def shown() -> list[float | None]:
        names = ("worker_threads", "worker_threads_busy", "worker_jobs_waiting")
        return [registry.get_sample_value(f"jetrelay_{name}") for name in names]

    assert shown() == [0, 0, 0]
    first = Heartbeat(tmp_path, clock)
    monkeypatch.setattr(os, "getpid", lambda: 4711)
    second = Heartbeat(tmp_path, clock)
    first.usage = lambda: Usage(threads=8, busy=3, waiting=12_000)
    second.usage = lambda: Usage(threads=8, busy=8)
    first.beat()
    second.beat()
    assert shown() == [16, 11, 12_000]
    second.usage = lambda: None
    second.beat()
    assert shown() == [8, 3, 12_000]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_loop_that_has_ended_is_stuck() -> None:
    ended = asyncio.new_event_loop()
    ended.close()
    assert stuck_loop(ended, 30) == ["event loop"]


def test_a_loop_that_is_blocked_is_stuck_until_it_goes_on(loop: asyncio.AbstractEventLoop) -> None:
    assert stuck_loop(loop, 30) == []
    blocked, go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        go_on.wait()

    loop.call_soon_threadsafe(block)
    assert blocked.wait(30)
    try:
        assert stuck_loop(loop, 0.05) == ["event loop"]
    finally:
        go_on.set()
    assert stuck_loop(loop, 30) == []
