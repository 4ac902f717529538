"""``python -m scheduler``: run any number of these; one is enough, two survive the loss of one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from typing import Any, Final

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.interval import IntervalTrigger

from relay.adapters.redis import create_broker
from relay.bootstrap import Application
from relay.domain.errors import RelayError
from relay.settings import Settings, load_settings
from relay.telemetry.logs import LogFacts, configure
from scheduler.jobs import Job, jobs

_TICK_LIMIT: Final = 5.0

_log = logging.getLogger("relay.scheduler")


def main() -> int:
    """Parse the command line, run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m scheduler",
        description="Enqueues the fleet's jobs: publish, pull, sweep. Reads relay.toml and RELAY_* variables.",
    )
    parser.add_argument("--list", action="store_true", help="print the jobs and their intervals, then exit")
    arguments = parser.parse_args()
    try:
        settings = load_settings()
    except RelayError as error:
        sys.stderr.write(f"error {error}\n")
        return 1
    configure(settings.log_level, settings.log_format)
    asyncio.run(_list(settings) if arguments.list else run(settings))
    return 0


async def _list(settings: Settings) -> None:
    for entry in _table(settings)[1]:
        sys.stdout.write(f"{entry.name:<50} every {entry.every.total_seconds():g} s\n")


async def run(settings: Settings) -> None:
    """Start the application and the ticks; stop both cleanly on a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    application, table = _table(settings)
    application.facts.listen(LogFacts())
    await application.start()
    scheduler = AsyncIOScheduler()
    running: set[asyncio.Task[Any]] = set()
    for entry in table:
        _add(scheduler, entry, running)
    scheduler.start()
    _log.info("scheduler started: %d jobs", len(table))
    await stop.wait()
    # Ticks under way come to their end; a shutdown by itself would cancel them in the middle of a query.
    scheduler.pause()
    while running:
        await asyncio.wait(running)
    scheduler.shutdown(wait=False)
    await application.stop()


def _table(settings: Settings) -> tuple[Application, list[Job]]:
    application = Application(settings, role="scheduler")
    broker = create_broker(
        settings.redis_url.get_secret_value(), namespace=settings.redis_namespace, middleware=[]
    )
    return application, list(jobs(application, broker))


def _add(scheduler: AsyncIOScheduler, entry: Job, running: set[asyncio.Task[Any]]) -> None:
    async def tick() -> None:
        if task := asyncio.current_task():
            running.add(task)
            task.add_done_callback(running.discard)
        # A tick that hangs on a silent server would keep every later one from running.
        try:
            async with asyncio.timeout(_TICK_LIMIT):
                await entry.tick()
        except TimeoutError:
            _log.warning("tick %s gave up after %g s", entry.name, _TICK_LIMIT)

    # A late tick runs at once and stands for all that were missed; a tick that hangs is not joined by others.
    scheduler.add_job(
        tick,
        IntervalTrigger(seconds=entry.every.total_seconds()),
        id=entry.name,
        misfire_grace_time=None,
        coalesce=True,
        max_instances=1,
    )


if __name__ == "__main__":
    sys.exit(main())
