"""`relay fleet` with real processes: it follows the load, restarts what crashes, replaces workers at no cost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.members import Members
from relay.domain.members import CrewReport, Seen, State
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.acceptance.produce import OUTBOX, Producers, vibe
from tests.waiting import wait_for

KEYS = [f"key-{number}" for number in range(50)]
#: Small lags and short times, where a fleet of weight has thousands of rows and tens of seconds.
QUICK = ["--rows", "100", "--age", "1000", "--every", "0.3"]
QUICK += ["--grow-after", "0.3", "--shrink-after", "0.6", "--pause", "0.3", "--threads", "4"]


class Supervised(Fleet):
    """Servers, a scheduler, and the workers of `relay fleet`."""

    def supervise(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run `relay fleet`."""
        return self._start("fleet", "-c", "from relay.cli import main; main()", "fleet", *arguments)

    def members(self) -> Sequence[Seen]:
        async def ask() -> Sequence[Seen]:
            gates = Gates(self.valkey.url, "relay")
            try:
                return await Members(gates.client, "relay").all()
            finally:
                await gates.aclose()

        return asyncio.run(ask())

    def publishing(self) -> int:
        return sum(it.member.publishes for it in self.members() if it.state is State.WORKING)

    def crew(self) -> CrewReport:
        [found] = [it.member.crew for it in self.members() if it.member.kind == "fleet"]
        assert found is not None
        return found

    def working(self) -> dict[Any, int]:
        """The workers that work: the process of each by that of its command."""
        found = [it.member for it in self.members() if it.member.kind == "worker" and it.state is State.WORKING]
        return {it.command: it.pid for it in found}

    def until_working(self, count: int) -> dict[Any, int]:
        def there() -> dict[Any, int]:
            found = self.working()
            return found if len(found) == count else {}

        return wait_for(f"{count} workers", there)

    def handled(self) -> int:
        return int(self.query("sea", "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL")[0][0])


@pytest.fixture
def fleet(server_directory: Path, handler: HandlerService) -> Iterator[Supervised]:
    with Supervised(server_directory, handler.url, handler_timeout="60s") as fleet:
        fleet.scheduler()
        yield fleet


def test_a_fleet_follows_the_load_up_and_down_and_restarts_what_crashes(
    fleet: Supervised, handler: HandlerService
) -> None:
    free = threading.Event()
    handler.verdict = lambda _body, _n: 200 if free.wait(60) else 500
    process = fleet.supervise("--min", "1", "--max", "3", *QUICK)
    fleet.until_working(1)
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        OUTBOX.add_many(connection, [vibe(f"key-{number}") for number in range(300)])
    fleet.until_working(3)
    wait_for("its heartbeat tells of three", lambda: (fleet.crew().wanted, fleet.crew().most) == (3, 3))
    wait_for("three publish", lambda: fleet.publishing() == 3)
    free.set()
    wait_for("all are handled", lambda: fleet.handled() == 300)
    [(command, worker)] = fleet.until_working(1).items()
    os.kill(worker, signal.SIGKILL)
    wait_for("another works in its place", lambda: set(fleet.working()) - {command})
    wait_for("its next heartbeat tells of the crash", lambda: fleet.crew().crashes == 1)
    assert "ended by itself with status 1 (a worker process was killed)" in fleet.log("fleet")
    [crew] = [it["crew"] for it in json.loads(fleet.relay("fleet", "status", "--json")) if "crew" in it]
    assert (crew["crashes"], crew["least"], crew["most"]) == (1, 1, 3)
    assert fleet.query("sea", "SELECT max(attempts) FROM inbox_messages") == [(1,)]
    # A supervisor that is killed can tell nobody. Its workers end all the same.
    [left] = set(fleet.working().values()) - {worker}
    process.kill()
    process.wait()
    wait_for("its worker has ended", lambda: not _runs(left))


def test_a_rolling_restart_under_load_loses_nothing_and_spends_no_attempt(
    fleet: Supervised, handler: HandlerService
) -> None:
    process = fleet.supervise("--min", "2", *QUICK)
    old = fleet.until_working(2)
    producers = Producers(fleet.urls["vibespro"], KEYS, threads=2, transactions=60).start()
    wait_for("it is under load", lambda: fleet.handled() > 50)
    process.send_signal(signal.SIGHUP)
    wait_for("all workers are new", lambda: len(new := fleet.working()) == 2 and not set(new) & set(old))
    producers.join()
    wait_for("all are handled", lambda: fleet.handled() == len(producers.committed))
    assert {it for it in producers.committed if handler.count(it) != 1} == set()
    assert fleet.query("sea", "SELECT max(attempts) FROM inbox_messages") == [(1,)]
    spent = "SELECT count(*) FROM outbox_events WHERE publish_attempts > 1 OR publish_error IS NOT NULL"
    assert fleet.query("vibespro", spent) == [(0,)]
    assert fleet.stop(process, 60) == 0, fleet.log("fleet")
    assert fleet.members() == []


def _runs(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
