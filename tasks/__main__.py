"""``python -m tasks``: run the tasks of every context in this process, without Redis (Strategy A)."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import signal
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Final

from relay.adapters.postgres.alerts import PostgresAlerts
from relay.adapters.postgres.budget import Budgets
from relay.adapters.postgres.controls import KnownControls
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.adapters.postgres.tasks import PostgresTasks
from relay.adapters.postgres.transactions import HandlerTransactions
from relay.bootstrap import Facts, alert_sender, reading_personal
from relay.concurrency import LOOP_ENDED, end
from relay.domain.errors import ConfigurationError, RelayError
from relay.execution.runners import Completions, RunOnLoop
from relay.monitoring import tasks_metrics
from relay.settings import Settings, load_settings
from relay.telemetry.logs import LogFacts, configure
from relay.tracing import fleet_tracing
from tasks.registry import registry
from tasks.task_rows import TaskRows
from tasks.worker import Tasks, TaskWorker

#: Connections beyond those of the handlers: for claims, renewals and the poll.
_SPARE_CONNECTIONS: Final = 4

_log = logging.getLogger("relay.tasks")


def main() -> int:
    """Parse the command line, run until SIGINT or SIGTERM."""
    options = _arguments()
    try:
        settings = load_settings()
        configure(settings.log_level, settings.log_format)
        for module in settings.user_modules:
            importlib.import_module(module)
        if not registry.handlers:
            raise ConfigurationError(
                "no module registers a task",
                field="actor_modules",
                hint="name yours in RELAY_ACTOR_MODULES, or as actor_modules in relay.toml: myapp.tasks",
            )
        left = _run_to_the_end(settings, options)
    except RelayError as error:
        sys.stderr.write(f"error {error}\n")
        return 1
    return 0 if left == 0 else 3


def _run_to_the_end(settings: Settings, options: argparse.Namespace) -> int:
    """Run until a signal comes; returns how many tasks were cut short."""
    try:
        return asyncio.run(_run(settings, options))
    except (SystemExit, KeyboardInterrupt) as error:
        # No signal raises these here. So code of the application has, in a task of its own.
        _log.critical("a task of asyncio has ended the event loop: this process ends too", exc_info=error)
        raise SystemExit(LOOP_ENDED) from None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tasks",
        description="Runs background tasks in this process. Reads relay.toml and RELAY_* variables.",
    )
    parser.add_argument("--threads", "-t", type=int, default=8, help="tasks at once, per context and queue (8)")
    parser.add_argument("--queues", "-Q", nargs="*", help="serve these task queues only")
    parser.add_argument("--grace", type=float, default=30, help="seconds for tasks under way when stopped (30)")
    return parser.parse_args()


async def _run(settings: Settings, options: argparse.Namespace) -> int:
    """Run a worker for each context; returns how many tasks were cut short."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    facts = Facts([LogFacts(), *tasks_metrics(settings, list(registry.handlers))])
    async with AsyncExitStack() as stack:
        if (tracing := fleet_tracing(settings, "tasks")) is not None:
            facts.listen(tracing)
            await tracing.start()
            stack.push_async_callback(tracing.stop)
        budgets = Budgets(settings.max_connections)
        started = [await _start(settings, it, budgets, facts, options, stack) for it in settings.contexts]
        loops = [asyncio.create_task(worker.run(run)) for worker, run in started]
        for worker, _ in started:
            telling = asyncio.create_task(worker.tell())
            stack.push_async_callback(end, telling)
        tasks = ", ".join(sorted(registry.handlers))
        _log.info("ready: contexts %s; tasks %s", ", ".join(settings.contexts), tasks)
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait([waiting, *loops], return_when=asyncio.FIRST_COMPLETED)
        _log.info("tasks stopping")
        for worker, _ in started:
            worker.stop()
        await asyncio.gather(*loops)
        grace = timedelta(seconds=options.grace)
        left = sum(await asyncio.gather(*(worker.drain(grace) for worker, _ in started)))
    _log.info("tasks stopped: %d cut short", left)
    return left


async def _start(
    settings: Settings,
    named: str,
    budgets: Budgets,
    facts: Facts,
    options: argparse.Namespace,
    stack: AsyncExitStack,
) -> tuple[TaskWorker, Tasks]:
    context = settings.contexts[named]
    threads = max(1, options.threads)
    name = f"jetrelay-tasks-{context.name}"
    database, pooler = context.pooler or context.database, context.pooler is not None
    common: dict[str, Any] = {"application_name": name, "budget": budgets.of(database), "pooler": pooler}
    pool = Pool(database, max_size=threads + _SPARE_CONNECTIONS, **common)
    await stack.enter_async_context(pool)
    transactions = HandlerTransactions(
        context.pooler or context.handler_database, limit=timedelta(minutes=1), **common
    )
    stack.push_async_callback(transactions.close)
    tasks, controls = PostgresTasks(pool), KnownControls(pool.connection)
    alerts = alert_sender(context, PostgresAlerts(pool.connection), facts)
    worker = TaskWorker(
        context.name, tasks, facts, alerts.run, threads=threads, queues=options.queues, served=registry.queues
    )
    worker.controls = controls.now
    rows = TaskRows(
        context=context.name,
        tasks=tasks,
        registry=registry,
        transactions=transactions,
        wake=worker.put,
        facts=facts,
        size=threads,
        error_text=context.error_detail == "text",
        controls=controls,
        opens=reading_personal(settings, lambda _: PostgresSubjectKeys(pool.connection)),
    )
    completions = Completions(rows, asyncio.get_running_loop())
    stack.push_async_callback(completions.drain)
    return worker, RunOnLoop(rows, completions.settle)


if __name__ == "__main__":
    sys.exit(main())
