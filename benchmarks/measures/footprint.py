"""What an idle fleet holds and asks for, by contexts, worker processes and subscriptions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psutil
import psycopg
import redis

from benchmarks.figures import Row
from benchmarks.fleet import Fleet
from benchmarks.layouts import crowd
from benchmarks.stage import Stage
from relay import jobs
from relay.bootstrap import job_broker

#: What PostgreSQL was asked, and who is connected, this question left out.
_ASKED: Final = "SELECT sum(xact_commit + xact_rollback)::bigint FROM pg_stat_database"
_CONNECTED: Final = """
SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a fleet costs: connections, commands a second, percent of a core; jobs of upkeep and their wait."""

    connections: int
    statements: float
    commands: float
    clients: int
    scheduler: float
    fleet: float
    waiting: int
    waited: float

    def rows(self, name: str) -> Iterator[Row]:
        """Yield the lines of the table."""
        yield Row(measure=f"{name}: PostgreSQL connections", unit="", runs=[self.connections])
        yield Row(measure=f"{name}: PostgreSQL transactions", unit="a second", runs=[self.statements])
        yield Row(measure=f"{name}: Redis commands", unit="a second", runs=[self.commands])
        yield Row(measure=f"{name}: Redis clients", unit="", runs=[self.clients])
        yield Row(measure=f"{name}: scheduler", unit="% of a core", runs=[self.scheduler])
        yield Row(measure=f"{name}: fleet", unit="% of a core", runs=[self.fleet])
        yield Row(measure=f"{name}: upkeep jobs that wait", unit="jobs", runs=[self.waiting])
        yield Row(measure=f"{name}: the first of them waits", unit="s", runs=[self.waited])


def run(stage: Stage) -> Iterator[Row]:
    """Measure each crowd once, as most of it are counts."""
    for contexts, workers, subscriptions in stage.sizes.crowds:
        name = f"{contexts} contexts × {workers} processes, {subscriptions} subscriptions each"
        layout = crowd(contexts, subscriptions)
        fleet = stage.fleet(layout, workers=workers)
        stage.say(f"footprint: {name}: begun")
        time.sleep(stage.sizes.settle)  # what processes do when they start is not idleness
        found = _watch(stage, fleet)
        stage.say(f"footprint: {name}: {found}")
        yield from found.rows(name)


def _watch(stage: Stage, fleet: Fleet) -> Footprint:
    client: Any = redis.Redis.from_url(stage.stack.valkey.url)
    broker = job_broker(fleet.settings)
    with psycopg.connect(stage.stack.postgres.url, autocommit=True) as postgres:

        def asked() -> int:
            return int(postgres.execute(_ASKED).fetchone()[0])  # type: ignore[index]

        def commanded() -> int:
            return int(client.info("stats")["total_commands_processed"])

        everyone, schedulers = fleet.processes, fleet.schedulers
        begun = time.perf_counter()
        before = asked(), commanded(), _spent(schedulers), _spent(everyone)
        time.sleep(stage.sizes.idle)
        after = asked(), commanded(), _spent(schedulers), _spent(everyone)
        seconds = time.perf_counter() - begun
        statements, commands, scheduler, spent = (
            (late - early) / seconds for early, late in zip(before, after, strict=True)
        )
        return Footprint(
            connections=int(postgres.execute(_CONNECTED).fetchone()[0]),  # type: ignore[index]
            statements=statements,
            commands=commands,
            clients=int(client.info("clients")["connected_clients"]) - 1,
            scheduler=100 * scheduler,
            fleet=100 * spent,
            waiting=broker.backlog(jobs.UPKEEP_QUEUE),
            waited=broker.head_waits(jobs.UPKEEP_QUEUE, "").total_seconds(),
        )


def _spent(processes: list[psutil.Process]) -> float:
    """Seconds of processor time."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)
