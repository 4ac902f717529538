"""The crew of a host: how many workers there are, and what becomes of those that crash, hang or are to end."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from relay import children
from relay.domain.members import State
from relay.fleet.crew import Crew
from tests.integration.crewing import CRASHES, DEAF, DRAIN, GENTLE, READY, Host, a_host, values


@pytest.fixture
def host(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Host]:
    caplog.set_level(logging.INFO, "relay.fleet")
    with a_host(tmp_path) as host:
        yield host


# --- how many ---


def test_it_keeps_as_many_as_are_wanted_and_ends_the_youngest(host: Host) -> None:
    first, second = host.hire(2)
    host.now += 1
    third, fourth = host.hire(4)[2:]
    host.crew.wanted = 2
    host.tick()
    assert host.crew.active == [first, second]
    host.gone(third)
    host.gone(fourth)
    assert (host.crew.crashes, host.crew.killed) == (0, 0)


# --- crashes ---


def test_one_that_crashes_is_replaced_after_a_while_that_grows(host: Host, caplog: Any) -> None:
    host.program = CRASHES
    host.crew.wanted = 1
    for number, pause in enumerate((1, 2, 4, 8, 16, 30, 30), 1):
        host.tick()
        [worker] = host.crew.workers
        host.gone(worker)
        assert host.crew.crashes == number
        crash = values(caplog)[-1 if number < 5 else -2]
        assert crash == (worker.pid, "status 3", " (the broker could not be reached)", pause)
        host.tick(pause - 0.1)
        assert host.crew.workers == []
        host.now += 0.2
    assert (
        "crash loop: 7 workers one after the other did not work for 60 s; the last ended with status 3"
        in caplog.text
    )


def test_a_crash_loop_may_last_for_days(tmp_path: Path, caplog: Any) -> None:
    host = Host(tmp_path, CRASHES)
    ended = host.start()
    ended.wait(60)
    host.crew = Crew(lambda: ended, drain_s=DRAIN, ready_s=READY)
    host.crew.wanted = 1
    while host.crew.crashes < 1_100:
        host.tick(31)
    assert values(caplog)[-1] == (1_100, 60, "status 3")


def test_one_that_ran_for_long_begins_no_loop(host: Host, caplog: Any) -> None:
    for _ in range(7):
        [worker] = host.hire(1)
        host.now += 61
        worker.process.kill()
        host.gone(worker)
        assert values(caplog)[-1] == (worker.pid, "signal SIGKILL", "", 1)
        host.now += 1.1
    assert not [record for record in caplog.records if record.levelno == logging.CRITICAL]


def test_what_a_killed_command_leaves_behind_is_killed(host: Host, tmp_path: Path) -> None:
    """As the worker process of a `dramatiq` command that was killed alone."""
    deaf = tmp_path / "deaf.py"
    deaf.write_text(DEAF)
    host.program = f"import subprocess, sys; subprocess.run([sys.executable, {str(deaf)!r}])"
    [worker] = host.hire(1)
    host.until("its child is there", lambda: b"deaf" in (tmp_path / "output").read_bytes())
    [left] = psutil.Process(worker.pid).children()
    worker.process.kill()
    host.gone(worker)
    host.until("its child has ended", lambda: not left.is_running() or left.status() == psutil.STATUS_ZOMBIE)


def test_one_that_never_says_that_it_is_there_is_killed_and_counts_as_crashed(host: Host, caplog: Any) -> None:
    host.crew.wanted = 1
    for pause in (1, 2, 4):
        host.tick()
        [worker] = host.crew.workers
        host.tick(READY - 1)
        assert worker.process.poll() is None
        host.tick(1)
        host.gone(worker)
        assert values(caplog)[-2] == (worker.pid, READY)
        assert values(caplog)[-1] == (worker.pid, "signal SIGKILL", "", pause)
        host.now += pause + 0.1
    assert host.crew.crashes == 3


def test_one_that_falls_silent_is_replaced(host: Host, caplog: Any) -> None:
    """As a `dramatiq` command whose master waits for a process that died in the moment it was ready."""
    silent, other = host.hire(2)
    host.said = {other.pid: State.WORKING}
    host.tick(READY - 1)
    host.works(silent)
    host.tick()
    host.said = {other.pid: State.WORKING}
    host.tick(READY - 1)
    assert (silent.pid, READY) not in values(caplog)
    host.tick(1)
    host.gone(silent)
    assert f"worker {silent.pid} sent no heartbeat for {READY:g} s: it is killed" in caplog.messages
    host.tick(2)
    assert len(host.crew.active) == 2
    assert other in host.crew.active


def test_when_the_whole_host_stood_still_nobody_is_killed_for_its_silence(host: Host, caplog: Any) -> None:
    workers = host.hire(2)
    host.said = {}
    host.now += 10 * READY
    host.tick()
    assert host.crew.workers == workers
    assert values(caplog) == []


def test_while_redis_is_away_nobody_is_killed_for_its_silence(host: Host) -> None:
    host.crew.wanted = 1
    host.said = None
    host.tick()
    [worker] = host.crew.workers
    for _ in range(5):
        host.tick(READY)
    assert host.crew.workers == [worker]
    assert worker.process.poll() is None


# --- the end ---


def test_all_end_when_they_are_asked_to(host: Host) -> None:
    host.hire(2)
    host.crew.end(host.now)
    host.until("all have ended", lambda: not host.crew.workers)
    assert (host.crew.crashes, host.crew.killed) == (0, 0)


def test_one_that_does_not_end_in_time_is_killed(host: Host, caplog: Any) -> None:
    host.program = DEAF
    [worker] = host.hire(1)
    host.until("it is deaf", lambda: b"deaf" in (host.directory / "output").read_bytes())
    host.crew.end(host.now)
    host.tick(DRAIN - 0.1)
    assert worker.process.poll() is None
    assert host.crew.killed == 0
    host.tick(0.2)
    host.gone(worker)
    assert (host.crew.crashes, host.crew.killed) == (0, 1)
    assert (worker.pid, DRAIN) in values(caplog)


def test_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Killed, it can tell nobody: Linux does."""
    script = tmp_path / "supervisor.py"
    script.write_text(
        "import sys, time\nfrom relay import children\n"
        f"p = children.start([sys.executable, '-c', {GENTLE!r}], environment={{}})\n"
        "print(p.pid, flush=True)\ntime.sleep(600)\n"
    )
    with (tmp_path / "out").open("wb") as output:
        root = {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = children.start([sys.executable, script], environment=root, output=output)
    host = Host(tmp_path)
    host.until("it has a worker", lambda: (tmp_path / "out").read_text().strip())
    worker = psutil.Process(int((tmp_path / "out").read_text()))
    process.kill()
    process.wait(60)
    host.until("its worker has ended", lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_how_a_child_ended_is_said() -> None:
    assert [children.ended_by(it) for it in (0, 3, -signal.SIGSEGV, -250)] == [
        "status 0",
        "status 3",
        "signal SIGSEGV",
        "signal 250",
    ]
