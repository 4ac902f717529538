"""A PostgreSQL that demands TLS, a client's certificate and a password: everything that connects brings them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay import Event, Outbox
from relay.adapters.postgres import migrations
from relay.adapters.postgres.pool import Pool, connected
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.adapters.postgres.wakeup import Wakeup
from relay.devstack import PostgresServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.ordering import Shard
from tests.integration.publishing import open_backlog_reader
from tests.secured import Authority, TlsFront, guarded_database, guarded_postgres

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def guarded(server_root: Path, authority: Authority) -> Iterator[tuple[PostgresServer, TlsFront]]:
    with guarded_postgres(server_root / "guarded", authority.demanding()) as both:
        yield both


@pytest.fixture(scope="module")
def url(guarded: tuple[PostgresServer, TlsFront], authority: Authority) -> str:
    return guarded_database(*guarded, "sea", authority.libpq())


async def migrate(url: str) -> None:
    await asyncio.to_thread(migrations.upgrade, url)
    assert not (await asyncio.to_thread(migrations.status, url)).pending


async def pool(url: str) -> None:
    pool = Pool(url, max_size=2, application_name="test")
    await pool.open()
    try:
        async with pool.connection() as conn:
            assert (await (await conn.execute("SELECT current_user")).fetchone()) == ("relay",)
    finally:
        await pool.close()


async def command(url: str) -> None:
    async with connected(url, "test") as lend, lend() as conn:
        await conn.execute("SELECT 1")


async def backlog(url: str) -> None:
    async with open_backlog_reader(url) as reader:
        assert (await reader.outbox_backlog()).count == 0


async def notified(url: str) -> None:
    """The connection that listens, which takes its answers from the socket by itself."""
    pool = Pool(url, max_size=2, application_name="test")
    await pool.open()
    wakeup, woken = Wakeup(pool, url), asyncio.Event()
    try:
        wakeup.listen("outbox", woken.set)
        assert not await wakeup.tasks_due()
        await wakeup.set_sleeping(True)
        async with await psycopg.AsyncConnection.connect(url) as producer:
            await Outbox("sea").add(
                producer, Event(event_type="x", aggregate_type="a", aggregate_id="1", payload={})
            )
        await asyncio.wait_for(woken.wait(), 60)
        assert (await wakeup.due(100)).concerns(Shard(0, 1))
    finally:
        await wakeup.close()
        await pool.close()


async def handlers(url: str) -> None:
    """The transactions in threads, and those on the loop."""
    transactions = HandlerTransactions(url, limit=timedelta(seconds=5), application_name="test")
    try:
        with transactions.share():
            pass
        async with transactions.share_async():
            pass
        transactions.end_session(0)
    finally:
        await transactions.close()


OPENERS: list[Callable[[str], Awaitable[None]]] = [migrate, pool, command, backlog, notified, handlers]


@pytest.mark.parametrize("opener", OPENERS, ids=lambda opener: opener.__name__)
async def test_everything_that_connects_proves_itself(
    guarded: tuple[PostgresServer, TlsFront], url: str, opener: Callable[[str], Awaitable[None]]
) -> None:
    await asyncio.to_thread(migrations.upgrade, url)
    front = guarded[1]
    before, away = front.served, front.turned_away
    await opener(url)
    assert front.served > before
    assert front.turned_away == away


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sslmode": "disable"}, "does not allow this connection"),
        ({"sslrootcert": "{stranger}"}, "no authority that we trust has issued"),
        ({"sslrootcert": "/nowhere/ca.pem"}, "the file of sslrootcert cannot be read"),
        ({"sslcert": "/nowhere/client.pem", "sslkey": "/nowhere/client.key"}, "wants a certificate of ours"),
        ({"sslkey": "{ca}"}, "TLS"),
        ({"host": "elsewhere.example", "hostaddr": "127.0.0.1"}, "another host"),
        ({"password": "wrong"}, "user or password was not accepted"),
    ],
    ids=["no TLS", "stranger", "no such CA", "no certificate", "no key", "another host", "password"],
)
@pytest.mark.parametrize("opener", [migrate, pool, command], ids=lambda opener: opener.__name__)
async def test_what_is_wrong_is_said_without_the_url(
    guarded: Any, authority: Authority, url: str, change: dict[str, str], expected: str, opener: Any
) -> None:
    changed = {key: value.format(stranger=authority.stranger, ca=authority.ca) for key, value in change.items()}
    plain = url.partition("?")[0]
    with pytest.raises(DatabaseUnreachable) as caught:
        await opener(f"{plain}?{authority.libpq(**changed)}")
    assert expected in str(caught.value)
    assert "w/rd" not in str(caught.value)
    assert caught.value.__cause__ is None or "w/rd" not in str(caught.value.__cause__)
