"""How the tests of the development stack look at servers and processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import nats
import psutil
import psycopg
import redis

from relay.devstack import NatsServer, PostgresServer, Server, ValkeyServer

KINDS = [PostgresServer, NatsServer, ValkeyServer]


def living(processes: Iterable[psutil.Process]) -> list[int]:
    """The pids of those that are there and no zombies, which only their new parent can reap."""

    def lives(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [process.pid for process in processes if lives(process)]


def works(server: Server, seconds: int = 2) -> bool:
    """Whether a new client gets an answer in time."""
    try:
        match server:
            case PostgresServer():
                with psycopg.connect(server.url, connect_timeout=seconds) as connection:
                    return connection.execute("SELECT 1").fetchone() == (1,)
            case NatsServer():
                return asyncio.run(_jetstream_works(server.url, seconds))
            case _:
                with redis.Redis.from_url(server.url, socket_timeout=seconds, retry=None) as client:
                    return bool(client.ping())
    except (psycopg.OperationalError, redis.ConnectionError, redis.TimeoutError, OSError, nats.errors.Error):
        return False


async def _jetstream_works(url: str, seconds: int) -> bool:
    async with asyncio.timeout(seconds):
        client = await nats.connect(url, error_cb=_ignore)
        try:
            await client.jetstream().account_info()
        finally:
            await client.close()
        return True


async def _ignore(_: Exception) -> None:
    """A client's complaints are the test's business, not the log's."""
