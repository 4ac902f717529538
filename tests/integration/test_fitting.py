"""The connections of a process fit the server, and give way to the user's own service when it is full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from relay.adapters.postgres.budget import Budget, Budgets
from relay.adapters.postgres.failures import NO_ROOM
from relay.adapters.postgres.fitting import FitConnections
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.bootstrap import Application
from relay.devstack import PostgresServer
from relay.domain.errors import ConnectionsBusy, DatabaseUnreachable
from relay.domain.members import Member, Seen
from relay.execution.calls import answer
from relay.settings import load_settings

pytestmark = pytest.mark.anyio

NAME = "fitting"


class Workers:
    """A fleet of so many workers that beat, and one that is lost."""

    def __init__(self, number: int) -> None:
        self.number = number

    async def all(self) -> Sequence[Seen]:
        lost = Seen(member=Member(id="lost", kind="worker", host="h", pid=1), silent_seconds=99)
        supervisor = Seen(member=Member(id="crew", kind="fleet", host="h", pid=2), silent_seconds=1)
        live = [Member(id=str(it), kind="worker", host="h", pid=9 + it) for it in range(self.number)]
        return [lost, supervisor, *(Seen(member=it, silent_seconds=1) for it in live)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server with room for 57 sessions, and roles that may have all, five and one of them."""
    directory: Path = tmp_path_factory.mktemp("small") / "postgres"
    with PostgresServer(directory, settings={"max_connections": "60"}) as server:
        with psycopg.connect(server.url, autocommit=True) as conn:
            for role, limit in (("app", -1), ("five", 5), ("one", 1)):
                made = f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {limit} PASSWORD '{server.password}'"
                conn.execute(made.encode())
        yield server


def url_of(server: PostgresServer, role: str) -> str:
    return psycopg.conninfo.make_conninfo(server.url, user=role)


@pytest.mark.parametrize(
    ("role", "workers", "contexts", "setting", "most"),
    [
        ("app", 1, 1, None, 8),  # (57 // 3 - 2) // 2
        ("app", 2, 5, None, 3),
        ("app", 0, 1, None, 8),  # before the first heartbeat
        ("app", 50, 5, None, 2),
        ("five", 2, 1, None, 2),
        ("app", 2, 5, 40, 40),
    ],
)
async def test_all_processes_together_take_a_third_unless_a_number_is_set(
    small: PostgresServer, role: str, workers: int, contexts: int, setting: int | None, most: int
) -> None:
    budget = Budgets(setting).of(small.url)
    fitting = FitConnections(setting, Workers(workers))
    pools = [Pool(url_of(small, role), max_size=16, application_name=NAME, budget=budget) for _ in range(contexts)]
    for pool in pools:
        fitting.add(budget, pool)
    await fitting.look()
    assert budget.most == most
    for pool in pools:
        await pool.close()


@pytest.mark.parametrize(
    ("role", "contexts", "pooled", "heard"),
    [
        ("app", 3, False, 3),
        ("app", 4, False, 3),  # 57 // 3, without two for each context and four for each process
        ("app", 30, False, 0),
        ("five", 3, False, 0),
        ("app", 30, True, 8),  # what the server allows is hidden
    ],
)
async def test_workers_listen_to_as_many_contexts_as_the_share_of_the_fleet_has_room_for(
    small: PostgresServer, role: str, contexts: int, pooled: bool, heard: int
) -> None:
    """The others are polled by the scheduler, which listens to all."""
    budget, url = Budget(8), url_of(small, role)
    fitting = FitConnections(None, Workers(1))
    pools = [Pool(url, max_size=16, application_name=NAME, budget=budget) for _ in range(contexts)]
    for pool in pools:
        fitting.add(budget, pool, pooled=pooled)
    assert [pool for pool in pools if fitting.may_listen(pool)] == (pools[:heard] if pooled else [])
    await fitting.look()
    assert [pool for pool in pools if fitting.may_listen(pool)] == pools[:heard]
    with ExitStack() as service:
        for _ in range(52 if role == "app" and not pooled else 0):
            service.enter_context(psycopg.connect(url))
        await fitting.look()
        assert not any(map(fitting.may_listen, pools)) or pooled
    await fitting.look()
    assert [pool for pool in pools if fitting.may_listen(pool)] == pools[:heard]
    for pool in pools:
        await pool.close()


async def test_a_full_server_gets_unused_connections_back_and_they_return_later(small: PostgresServer) -> None:
    budget, url = Budget(16), url_of(small, "app")
    fitting = FitConnections(None, Workers(1))
    async with Pool(url, max_size=16, application_name=NAME, budget=budget) as pool:
        fitting.add(budget, pool)
        await fitting.look()
        async with pool.connection(), pool.connection(), pool.connection():
            pass
        assert budget.open == 3
        with ExitStack() as service:
            for _ in range(54):
                service.enter_context(psycopg.connect(url))
            await fitting.look()
            assert budget.open == 0, "few places are free"
            for _ in range(2):  # the service gets what the fleet had
                service.enter_context(psycopg.connect(url))
            await fitting.look()
            assert budget.most == 2
        for most in (4, 8, 8):
            await fitting.look()
            assert budget.most == most


async def test_a_refusal_spends_no_attempt_and_makes_the_process_give_way(small: PostgresServer) -> None:
    budget, url = Budget(16), url_of(small, "one")
    functions = HandlerTransactions(url, limit=timedelta(seconds=5), application_name=NAME, budget=budget)
    with psycopg.connect(url):
        with pytest.raises(ConnectionsBusy) as caught:
            functions._connections.borrow()
        assert not answer(caught.value).counts
        with pytest.raises(ConnectionsBusy):
            async with functions._connections.lending_async():
                pass
        assert (budget.most, budget.open) == (2, 0)
        async with Pool(url, max_size=4, application_name=NAME, budget=budget) as pool:
            pool.timeout = 0.01
            with pytest.raises(DatabaseUnreachable, match=NO_ROOM):
                async with pool.connection():
                    pass
    for most in (2, 4, 8, 16, 16):
        budget.fit(16)
        assert budget.most == most
    await functions.close()


async def test_subscriptions_of_a_context_share_the_connections_of_their_functions(
    small: PostgresServer, tmp_path: Path
) -> None:
    """With connections of its own, each subscription would close those of another as soon as there are few."""
    config = tmp_path / "relay.toml"
    config.write_text(f'[contexts.sea]\ndatabase_url = "{small.url}"\n')
    application = Application(load_settings(config, {}))
    limits = [timedelta(seconds=5), timedelta(seconds=9)]
    found = [application.transactions("sea", "handler", limit) for limit in limits]
    apart = application.transactions("sea", "tasks", limits[0])
    for transactions, limit in zip(found, limits, strict=True):
        settlement = Settlement("session/process", {})
        with transactions.for_row().settle(settlement) as transaction:
            [told] = transaction.connection.execute("SHOW idle_in_transaction_session_timeout").fetchone() or ()
        assert told == f"{limit.seconds}s"
        assert [it.idle for it in (*found, apart)] == [1, 1, 0]
    await found[0].close()
