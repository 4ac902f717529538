"""What work costs the servers, counted, not timed: statements, round trips, WAL, row versions, Redis commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
import redis

from relay.adapters.dramatiq.broker import FetchTimes, RelayBroker, create_broker
from relay.adapters.postgres.low_water import LowWaterMarks
from relay.adapters.postgres.migrations import upgrade
from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from tests.integration.wire import Wire, wire
from tests.waiting import eventually

TEMPLATE = "cost_template"
#: Nothing but what is measured writes to this server: no vacuum, and no checkpoint, after which pages would be
#: logged whole.
SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "10GB",
}
#: What a client says when it connects, and every other second to see whether the server lives.
GREETINGS = {
    "hello",
    "client|setinfo",
    "client|setname",
    "client|tracking",
    "info",
    "config|resetstat",
    "script|load",
    "ping",
}

TABLES = """
    SELECT sum(n_tup_ins)::int, sum(n_tup_upd)::int, sum(n_tup_hot_upd)::int, sum(n_dead_tup)::int
    FROM pg_stat_user_tables
"""
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"


@dataclass(frozen=True)
class Cost:
    """What some events cost. ``statements`` and ``redis_commands`` by kind; the rest are sums.

    ``dead_tuples``: row versions that are left for vacuum. ``hot_updates``: those of the updates that left the
    indexes alone.
    """

    events: int
    round_trips: int
    wal_bytes: int
    updates: int
    hot_updates: int
    dead_tuples: int
    statements: dict[str, int] = field(default_factory=dict)
    redis_commands: dict[str, int] = field(default_factory=dict)


class Meter:
    """Counts what one scenario does in a database of its own. ``url`` is counted, ``uncounted`` is not."""

    def __init__(self, url: str, way: Wire, valkey_url: str, control: psycopg.Connection[Any]) -> None:
        self.uncounted, self.url = url, way.through(url)
        self.database = url.rpartition("/")[2]
        self.broker: RelayBroker = _broker(valkey_url)
        self._wire = way
        self._control = control
        self._redis = redis.Redis.from_url(valkey_url)
        self._counted: dict[str, Any] = {}

    @contextmanager
    def counting(self, events: int) -> Iterator[None]:
        """Count what happens in the block."""
        self._redis.config_resetstat()
        wal, trips, statements = self._wal(), self._wire.round_trips, self._wire.statements.copy()
        yield
        self._counted = {
            "events": events,
            "round_trips": self._wire.round_trips - trips,
            "wal_bytes": self._wal() - wal,
            "statements": dict(sorted((self._wire.statements - statements).items())),
            "redis_commands": self._redis_commands(),
        }

    async def cost(self) -> Cost:
        """What was counted. To be asked when the scenario has closed its connections: they report at their end."""

        async def alone() -> bool:
            return self._number(OTHERS, [self.database]) == 0

        await eventually("the scenario's connections have ended", alone)
        with psycopg.connect(self.uncounted) as connection:
            row = connection.execute(TABLES).fetchone()
        assert row is not None
        return Cost(**self._counted, updates=row[1], hot_updates=row[2], dead_tuples=row[3])

    def _wal(self) -> int:
        return self._number("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def _number(self, sql: str, parameters: list[str] | None = None) -> int:
        row = self._control.execute(sql.encode(), parameters).fetchone()
        assert row is not None
        return int(row[0])

    def _redis_commands(self) -> dict[str, int]:
        stats: dict[str, Any] = self._redis.info("commandstats")
        # The first to use a script fails, and loads it for all.
        names = {name.removeprefix("cmdstat_"): it["calls"] - it["failed_calls"] for name, it in stats.items()}
        return {name: calls for name, calls in sorted(names.items()) if calls and name not in GREETINGS}


def _broker(url: str) -> RelayBroker:
    # How many messages are fetched at a time hangs on how quick they are.
    broker = create_broker(url, namespace="costs", middleware=[], times=FetchTimes(often=-1.0))
    broker.maintenance_chance = 0  # Dramatiq throws dice for it
    broker.flush("nothing")  # by now the server has its scripts
    return broker


@dataclass(frozen=True)
class Laboratory:
    """Servers that do nothing but what is measured."""

    postgres: PostgresServer
    nats: NatsServer
    valkey: ValkeyServer

    @contextmanager
    def meter(self, name: str) -> Iterator[Meter]:
        """A meter for a scenario, with a database of its own."""
        url = self.postgres.create_database(f"cost_{name}", template=TEMPLATE)
        with psycopg.connect(self.postgres.url, autocommit=True) as control, wire(self.postgres.port) as way:
            yield Meter(url, way, self.valkey.url, control)


Scenario = Callable[[Meter, Laboratory], Awaitable[None]]


@contextmanager
def laboratory(directory: Path) -> Iterator[Laboratory]:
    """Start the servers."""
    with (
        PostgresServer(directory / "postgres", settings=SETTINGS) as postgres,
        NatsServer(directory / "nats") as nats,
        ValkeyServer(directory / "valkey") as valkey,
        # On a busy machine claims may be as slow as under an old snapshot.
        patch.object(LowWaterMarks, "note", lambda *_: None),
    ):
        upgrade(postgres.create_database(TEMPLATE))
        yield Laboratory(postgres, nats, valkey)


def measured(lab: Laboratory, scenario: Scenario) -> Cost:
    """Carry a scenario out; what it cost."""

    async def carried_out(meter: Meter) -> Cost:
        await scenario(meter, lab)
        return await meter.cost()

    with lab.meter(scenario.__name__) as meter:
        return asyncio.run(carried_out(meter))
