"""A supervisor with processes that stand for workers: signals, an outage of Redis, another one beside it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest

from relay import children
from relay.adapters.dramatiq.gates import Gates
from relay.adapters.members import Members
from relay.devstack import ValkeyServer
from relay.domain.members import Seen, State
from relay.domain.scaling import ScalingRules
from relay.fleet.supervisor import FleetOptions, Supervisor, SupervisorTimes
from relay.settings import Settings, load_settings
from tests.integration.crewing import DEAF, GENTLE
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


class Host(Supervisor):
    """A supervisor of one or more processes that run ``program``."""

    def __init__(self, settings: Settings, directory: Path, program: str, count: int = 1, **times: float) -> None:
        rules, options = ScalingRules(least=count, most=count), FleetOptions(every_s=0.2)
        super().__init__(settings, rules, options, SupervisorTimes(**times))
        self.output, self.program, self.refused = directory / f"output-{uuid4().hex}", program, 0

    def _start_worker(self) -> subprocess.Popen[bytes]:
        if self.refused:
            self.refused -= 1
            raise BlockingIOError(11, "Resource temporarily unavailable")
        with self.output.open("ab") as output:
            return children.start([sys.executable, "-I", "-S", "-c", self.program], environment={}, output=output)

    @property
    def pids(self) -> list[int]:
        return [it.pid for it in self._crew.workers]

    async def there(self) -> list[Seen]:
        """Itself, as others see it."""
        return [it for it in await self._application.members.all() if it.member.id == self._this.id]


@pytest.fixture
def settings(valkey: ValkeyServer) -> Settings:
    return settings_of(valkey)


def settings_of(valkey: ValkeyServer) -> Settings:
    return load_settings(
        environ={
            "REDIS_URL": valkey.url,
            "NATS_URL": "nats://127.0.0.1:1",
            "RELAY_REDIS_NAMESPACE": f"test-{uuid4().hex}",
        }
    )


@asynccontextmanager
async def supervised(host: Host) -> AsyncIterator[asyncio.Task[int]]:
    """Run a supervisor until its workers are there and it is seen; then to the end, whatever happens."""
    task = asyncio.create_task(host.run())
    try:
        await eventually("it is there", host.there)
        await eventually("its workers run", lambda: len(host.pids) == host._rules.least)
        yield task
        await asyncio.wait_for(task, 60)
    finally:
        host._crew.kill()
        task.cancel()


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


async def test_on_sigterm_the_workers_end_and_nobody_is_there_any_more(settings: Settings, tmp_path: Path) -> None:
    host = Host(settings, tmp_path, GENTLE, 2)
    async with supervised(host) as task:
        pids = host.pids
        os.kill(os.getpid(), signal.SIGTERM)
    assert task.result() == 0
    assert all(map(has_ended, pids))
    gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace)
    assert await Members(gates.client, settings.redis_namespace).all() == []
    await gates.aclose()


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_kills_unless_it_is_the_same_one_told_twice(
    settings: Settings, tmp_path: Path, again: signal.Signals
) -> None:
    """A service manager tells a process, and its whole group."""
    host = Host(settings, tmp_path, DEAF, same_signal=2.0)
    async with supervised(host) as task:
        await eventually("it is deaf", lambda: b"deaf" in host.output.read_bytes())
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually("others see that it ends", lambda: ends(host))
        [pid] = host.pids
        assert not has_ended(pid)
        assert not host._crew.killed
        ended = time.monotonic()
        if again == signal.SIGTERM:
            await eventually("a second one would be another one", lambda: time.monotonic() - ended > 2.0)
        os.kill(os.getpid(), again)
    assert task.result() == 1
    assert has_ended(pid)


async def ends(host: Host) -> bool:
    return [it.state for it in await host.there()] == [State.ENDING]


async def test_an_outage_of_redis_ends_no_worker(own_valkey: ValkeyServer, tmp_path: Path) -> None:
    host = Host(settings_of(own_valkey), tmp_path, GENTLE, 2)
    async with supervised(host):
        pids = host.pids
        own_valkey.kill()
        await eventually("nobody can say who is there", lambda: host._said() is None)
        own_valkey.start()
        await eventually("it is there again", host.there)
        await eventually("it sees itself", lambda: host._said() is not None)
        assert host.pids == pids
        os.kill(os.getpid(), signal.SIGTERM)


async def test_two_of_a_host_have_workers_of_their_own(settings: Settings, tmp_path: Path) -> None:
    one, two = Host(settings, tmp_path, GENTLE), Host(settings, tmp_path, GENTLE, 2)
    async with supervised(one):
        async with supervised(two):
            crews = [it.member.crew.running for it in await seen(one) if it.member.crew is not None]
            assert sorted(crews) == [1, 2]
            assert not set(one.pids) & set(two.pids)
            os.kill(os.getpid(), signal.SIGTERM)  # for the second: this process is both
        assert (len(one.pids), two.pids) == (1, [])
        assert [it.member.id for it in await seen(one)] == [one._this.id]
        one._end(signal.SIGTERM)


async def seen(host: Host) -> list[Seen]:
    return [*await host._application.members.all()]


async def test_a_host_that_can_start_no_process_is_asked_again(
    settings: Settings, tmp_path: Path, caplog: Any
) -> None:
    host = Host(settings, tmp_path, GENTLE, look_every=0.01)
    host.refused = 2
    async with supervised(host):
        os.kill(os.getpid(), signal.SIGTERM)
    assert caplog.text.count("cannot start a worker: Resource temporarily unavailable") == 2
