"""What a process tells Prometheus and the probes of Kubernetes. Nothing, unless an address is configured.

The processes of one ``dramatiq`` command count in files of one directory. Dramatiq forks one more process. It adds
up the files and answers for all workers. The counts of a worker remain after it ends, so that no sum decreases.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dramatiq.middleware import Middleware

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.postgres.pool import connected
from relay.credentials import jetstream, redis_options
from relay.domain.errors import ConfigurationError, MissingExtraError, RelayError
from relay.domain.facts import FactSink
from relay.settings import ContextSettings, Settings, count_in_files, load_settings
from relay.telemetry.liveness import Heartbeat, stuck_in, stuck_loop
from relay.telemetry.probes import Probes, ServerAnswer

if TYPE_CHECKING:
    from relay.telemetry.metrics import Labels, MetricFacts
    from relay.telemetry.scale import Ask

#: How long a server may take to answer, in seconds.
_PATIENCE_S: Final = 4.0
#: How many servers are asked at the same time.
_AT_ONCE: Final = 8
#: How often to check whether the command still runs, in seconds.
_LOOK_INTERVAL_S: Final = 1.0

#: Labels whose values come from the application's code: cron jobs, types of tasks.
Names = Mapping[str, Sequence[str]]


def initial_labels(settings: Settings, *, jobs: Names | None = None, types: Sequence[str] = ()) -> Labels:
    """The labels that are known at the start. ``jobs``: the cron jobs of each context."""
    return {
        name: {
            "subscription": list(context.subscriptions),
            "stream": list(context.routing.streams),
            "job": (jobs or {}).get(name, ()),
            "type": types,
        }
        for name, context in settings.contexts.items()
    }


def scheduler_metrics(settings: Settings, jobs: Names, ask: Ask) -> Sequence[FactSink]:
    """The listeners of a scheduler: counters, gauges of what is sampled, and GET /scale.

    ``ask``: starts to read the lag of a context. Raises MissingExtraError.
    """
    if settings.metrics.scheduler is None:
        return []
    with _client():
        from relay.telemetry.exposition import listen_to_samples  # noqa: PLC0415 - optional
    interval, labels = settings.metrics.interval.total_seconds(), initial_labels(settings, jobs=jobs)
    return listen_to_samples(labels, settings.metrics.scheduler, interval, ask, _probes(settings))


def tasks_metrics(settings: Settings, types: Sequence[str]) -> Sequence[FactSink]:
    """The listeners of ``python -m tasks``. Raises MissingExtraError."""
    if settings.metrics.tasks is None:
        return []
    with _client():
        from relay.telemetry.exposition import listen  # noqa: PLC0415 - optional
    return listen(initial_labels(settings, types=types), settings.metrics.tasks, _probes(settings))


def worker_metrics(settings: Settings) -> MetricFacts | None:
    """The listener of a worker process; None if no address is configured.

    Call it before the application's modules are loaded. Then their counters are added up together with ours.
    Raises MissingExtraError, and ConfigurationError when the directory cannot be written.
    """
    if (directory := _directory(settings)) is None:
        return None
    count_in_files(directory)
    with _client():
        from relay.telemetry.exposition import listen_in_files  # noqa: PLC0415 - optional
    try:
        return listen_in_files(initial_labels(settings), directory)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written: {error.strerror}",
            field="metrics.directory",
            hint="name a directory of the account that runs the workers, with 3 MB for each of them",
        ) from error


class Exposition(Middleware):
    """Makes Dramatiq fork the process that answers for the workers."""

    def __init__(self, settings: Settings) -> None:
        self._forks = [] if settings.metrics.worker is None else [answer_for_workers]

    @property
    def forks(self) -> list[Callable[[], int]]:
        """The functions that Dramatiq runs beside the workers, each in its own process."""
        return self._forks


def answer_for_workers() -> int:
    """Answer for the workers of the command that forked this process, until the command ends."""
    settings, parent = load_settings(), multiprocessing.parent_process()
    directory = _directory(settings)
    if settings.metrics.worker is not None and settings.metrics.directory is not None and directory is not None:
        from relay.telemetry.exposition import answer_for, forget_ended  # noqa: PLC0415 - optional

        forget_ended(settings.metrics.directory)
        probes = Probes(partial(stuck_in, directory), partial(examine, settings))
        answer_for(directory, settings.metrics.worker, probes)
    # A killed command cannot stop this process. The next command needs the address, so end when the parent ends.
    while parent is not None and parent.is_alive():
        time.sleep(_LOOK_INTERVAL_S)
    return 0


def worker_heartbeat(settings: Settings) -> Heartbeat | None:
    """The beat of a worker process, for the probe; None without an address. Start and stop it with the process.

    Call it after `worker_metrics`, which makes the directory.
    """
    directory = _directory(settings)
    return None if directory is None else Heartbeat(directory)


def _probes(settings: Settings) -> Probes:
    """The probes of a process that answers itself. Call it on the event loop that the probes watch."""
    return Probes(partial(stuck_loop, asyncio.get_running_loop()), partial(examine, settings))


def _directory(settings: Settings) -> Path | None:
    """The directory where the workers of this command count. The command is always their parent process.

    The commands of a `relay fleet` share a directory: whichever has the address answers for all of them.
    """
    if settings.metrics.worker is None or settings.metrics.directory is None:
        return None
    if settings.fleet is not None:
        return settings.metrics.directory / f"workers-{settings.fleet}"
    command = multiprocessing.parent_process()
    number = os.getpid() if command is None else command.pid
    return settings.metrics.directory / f"workers-{number}"


@contextmanager
def _client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "prometheus_client":
            raise
        raise MissingExtraError(
            "metrics are configured and prometheus-client is not installed", hint="pip install 'jetrelay[metrics]'"
        ) from None


# --- whether the servers answer, for the probe /readyz ---


def examine(settings: Settings) -> Sequence[ServerAnswer]:
    """Ask NATS, Redis and the database of each context. Waits for them; call it outside of event loops."""
    return asyncio.run(_examine(settings))


async def _examine(settings: Settings) -> Sequence[ServerAnswer]:
    checks: dict[str, Callable[[], Awaitable[None]]] = {
        "nats": partial(_nats, settings),
        "redis": partial(_redis, settings),
        **{f"postgresql {name}": partial(_postgresql, it) for name, it in settings.contexts.items()},
    }
    slots = asyncio.Semaphore(_AT_ONCE)

    async def one(server: str, ask: Callable[[], Awaitable[None]]) -> ServerAnswer:
        async with slots:
            return await _examined(server, ask)

    return await asyncio.gather(*(one(server, ask) for server, ask in checks.items()))


async def _examined(server: str, ask: Callable[[], Awaitable[None]]) -> ServerAnswer:
    begun, error = time.perf_counter(), None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await ask()
    except TimeoutError:
        error = "TIMEOUT"
    except RelayError as failed:
        error = failed.code
    except Exception as failed:  # its text may hold an address or a password
        error = type(failed).__name__
    return ServerAnswer(server, error is None, round((time.perf_counter() - begun) * 1_000, 1), error)


async def _nats(settings: Settings) -> None:
    async with jetstream(settings):
        """It answers."""


async def _redis(settings: Settings) -> None:
    gates = Gates(settings.redis_url.get_secret_value(), settings.redis_namespace, **redis_options(settings))
    try:
        await gates.client.ping()
    finally:
        await gates.aclose()


async def _postgresql(context: ContextSettings) -> None:
    async with connected(context.database, "probe"):
        """It answers."""
