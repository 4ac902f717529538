"""The handler service answers by the plan, keeps each effect once, and outlives its database and its own end."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import UUID

import httpx2
import psycopg
import pytest

from chaos.evidence import read
from chaos.history import Plan, Receipt, Source
from chaos.plan import Answer, effects_of, failures_of, plan_of, slowness_of
from chaos.service import AWAY, HANGING
from chaos.tables import prepare
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import PostgresServer
from relay.devstack.configuration import base_environment
from relay.devstack.ports import free_port
from tests.acceptance.fleet import ROOT
from tests.waiting import wait_for

SEED = 3


@dataclass
class Client:
    """The service as the relay sees it."""

    port: int
    process: subprocess.Popen[bytes]

    def call(self, id: UUID, timeout: float = 5, event_type: str = "http") -> int | str:
        """The status, or the name of the error."""
        body = {
            "message_id": str(id),
            "subject": f"shop.event.{event_type}.v1",
            "event_type": event_type,
            "event_version": 1,
            "payload": {"key": "k"},
        }
        try:
            url = f"http://127.0.0.1:{self.port}/handle"
            return httpx2.post(url, json=body, timeout=timeout).status_code
        except httpx2.HTTPError as error:
            return type(error).__name__

    def answers(self) -> bool:
        with suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        return False


@pytest.fixture
def url(database_url: str) -> str:
    return prepared(database_url)


def prepared(url: str) -> str:
    prepare(dict.fromkeys(("shop", "sea", "cases"), url), SEED)
    return url


@contextmanager
def running(url: str, directory: Path) -> Iterator[Client]:
    port = free_port()
    where = ["--database", url, "--port", str(port), "--directory", str(directory), "--seed", str(SEED)]
    command = [sys.executable, "-m", "chaos.service", *where]
    with subprocess.Popen(command, cwd=ROOT, env=base_environment(inherit=False)) as process:
        client = Client(port, process)
        try:
            wait_for("the service answers", client.answers)
            yield client
        finally:
            process.kill()


@pytest.fixture
def service(url: str, tmp_path: Path) -> Iterator[Client]:
    with running(url, tmp_path) as client:
        yield client


def first_of(plan: Plan, failures: int | None = None) -> UUID:
    """The first id of a plan that fails so many times, if that matters."""
    chance = random.Random(2)
    while True:
        id = UUID(int=chance.getrandbits(128), version=4)
        if plan_of(id, SEED) is plan and failures in {None, failures_of(id, SEED)}:
            return id


def effects(url: str) -> Counter[UUID]:
    with psycopg.connect(url) as connection:
        return Counter(id for [id] in connection.execute("SELECT message_id FROM chaos_effects"))


def test_each_plan_is_answered_as_it_says_and_has_its_effects(service: Client, url: str, tmp_path: Path) -> None:
    failures = failures_of(first_of(Plan.FLAKY), SEED)
    expected: dict[Plan, list[int | str]] = {
        Plan.ACCEPT: [200, 409],
        Plan.REPEAT: [409, 409],
        Plan.POISON: [422, 422],
        Plan.FLAKY: [503] * failures + [200, 409],
        Plan.DROP: ["RemoteProtocolError", 409],
        Plan.NEVER: [400] * 5,
    }
    for plan, statuses in expected.items():
        assert [service.call(first_of(plan)) for _ in statuses] == statuses, plan
        assert effects(url)[first_of(plan)] == effects_of(plan), plan
    recorded = [(call.message_id, call.answer) for call in read(tmp_path).calls]
    dropped = [answer for id, answer in recorded if id == str(first_of(Plan.DROP))]
    assert dropped == [Answer.DROP, Answer.REPEAT]
    assert len(recorded) == sum(map(len, expected.values()))


def test_a_service_that_is_away_answers_503_and_writes_nothing(service: Client, url: str, tmp_path: Path) -> None:
    flag, id = tmp_path / AWAY, first_of(Plan.ACCEPT)
    flag.touch()
    assert [service.call(id) for _ in range(3)] == [503] * 3
    assert not effects(url)
    flag.unlink()
    assert service.call(id) == 200
    assert effects(url) == {id: 1}


def test_a_call_that_hangs_gives_the_message_free_when_its_caller_gives_up(service: Client, url: str) -> None:
    hanging = first_of(Plan.HANG)
    assert service.call(hanging, timeout=1) == "ReadTimeout"
    assert not effects(url)
    wait_for("the next call succeeds", lambda: service.call(hanging) == 200)
    assert effects(url) == {hanging: 1}


def test_a_call_ends_when_its_caller_hangs_up(service: Client, tmp_path: Path, url: str) -> None:
    slow = next(id for id in accepted() if slowness_of(id, SEED) > 8)
    assert service.call(slow, 1, "slow") == "ReadTimeout"
    [call] = wait_for("the call is recorded", lambda: read(tmp_path).calls)
    [begun] = read(tmp_path).begun
    assert (call.message_id, call.source, call.began) == (begun.message_id, Source.SLOW, begun.began)
    assert 0.5 < call.ended - call.began < slowness_of(slow, SEED)
    assert call.answer == Answer.ERROR
    assert not effects(url)


def test_the_slow_handler_hangs_while_it_is_told_to_and_the_other_does_not(
    service: Client, tmp_path: Path
) -> None:
    first, second, other = list(islice((id for id in accepted() if not slowness_of(id, SEED)), 3))
    assert service.call(first, event_type="slow") == 200
    (tmp_path / HANGING).touch()
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(service.call, second, 30, "slow")
        assert service.call(other) == 200
        wait_for("the slow call has begun", lambda: len(read(tmp_path).begun) == 3)
        assert not hanging.done()
        (tmp_path / HANGING).unlink()
        assert hanging.result(20) == 200


def accepted() -> Iterator[UUID]:
    chance = random.Random(4)
    while True:
        id = UUID(int=chance.getrandbits(128), version=4)
        if plan_of(id, SEED) is Plan.ACCEPT:
            yield id


def test_calls_at_once_have_one_effect(service: Client, url: str) -> None:
    id = first_of(Plan.ACCEPT)
    with ThreadPoolExecutor(8) as threads:
        statuses = Counter(threads.map(service.call, [id] * 24))
    assert statuses[200] == 1
    assert statuses.keys() <= {200, 409, 503}
    assert effects(url) == {id: 1}


def test_a_killed_service_remembers_its_calls(url: str, tmp_path: Path) -> None:
    id = first_of(Plan.FLAKY, failures=1)
    with running(url, tmp_path) as service:
        assert service.call(id) == 503
    with running(url, tmp_path) as service:
        assert service.call(id) == 200


def test_a_restart_of_the_database_is_an_outage_that_passes(own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = own_postgres.create_database("cases")
    upgrade(url)
    prepared(url)
    before, during = first_of(Plan.ACCEPT), first_of(Plan.DROP)
    with running(url, tmp_path) as service:
        assert service.call(before) == 200
        own_postgres.stop("immediate")
        assert service.call(during) == 503
        own_postgres.start()
        wait_for("the service works again", lambda: service.call(before) == 409)
    assert effects(url) == {before: 1}


def test_sigterm_ends_it_though_a_call_hangs(service: Client, url: str) -> None:
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(service.call, first_of(Plan.HANG), 30)
        wait_for("the call is counted", lambda: counted(url))
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(15) in {0, -signal.SIGTERM}
        assert isinstance(hanging.result(), str)
    assert not effects(url)


def counted(url: str) -> bool:
    with psycopg.connect(url) as connection:
        return bool(connection.execute("SELECT FROM chaos_calls").fetchall())


def test_each_third_alert_is_refused_and_all_are_recorded(service: Client, tmp_path: Path) -> None:
    alert = {"context": "sea", "class": "dead_letter", "count": 4}
    url = f"http://127.0.0.1:{service.port}/alerts"
    assert [httpx2.post(url, json=alert).status_code for _ in range(6)] == [200, 200, 503] * 2
    assert (
        read(tmp_path).receipts == [Receipt("sea", "dead_letter", 4, taken) for taken in (True, True, False)] * 2
    )
