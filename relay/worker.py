"""What the actors of a worker process share: the application, the broker, and the way to run a job.

Importing this module reads the settings and makes the broker. Modules with actors import it; ``relay.actors``
loads them all.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final, TypeVar
from uuid import uuid4

import dramatiq
from dramatiq.errors import Retry

from relay import failpoints, jobs
from relay.adapters.dramatiq.gates import LONGEST_BACKOFF, Hold
from relay.adapters.dramatiq.retries import BACKOFF, BackoffRetries, RetryJob
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.work_queue import LoopActor
from relay.adapters.members import Heart, this_process, up_seconds
from relay.bootstrap import Application, job_broker
from relay.commands.reconcile import EVERY as RECONCILE_EVERY
from relay.concurrency import is_cancelled
from relay.domain.archive import ArchiveBusy
from relay.domain.errors import Outage, QueueUnreachable, RelayError
from relay.domain.facts import OutageSeen
from relay.domain.members import Member, State, digest_of
from relay.domain.retry import Backoff
from relay.hints import PublishOnHint
from relay.jobs import Duty, DutyKind
from relay.monitoring import Exposition, worker_heartbeat, worker_metrics
from relay.settings import load_settings
from relay.telemetry.logs import LogFacts, configure
from relay.tracing import fleet_tracing


@contextmanager
def exit_on_error() -> Iterator[None]:
    """End this process with one line if an error has a code. Dramatiq would print a traceback."""
    try:
        yield
    except RelayError as error:
        sys.stderr.write(f"error {error}\n")
        raise SystemExit(1) from None


with exit_on_error():
    settings = load_settings()
configure(settings.log_level, settings.log_format)
failpoints.enable(settings.failpoints)
application = Application(settings, role="worker")
application.facts.listen(LogFacts())
metrics = worker_metrics(settings)
if metrics is not None:
    application.facts.listen(metrics)
heartbeat = worker_heartbeat(settings)
if heartbeat is not None:
    application.on_start.append(heartbeat.start)
    application.on_stop.append(heartbeat.stop)
with exit_on_error():
    tracing = fleet_tracing(settings, "worker")
if tracing is not None:
    application.facts.listen(tracing)
    application.on_start.append(tracing.start)

#: For jobs that wait for a server: a back-off of 1 s to 4 s, without a limit of retries.
OUTAGE_RETRIES: Final[dict[str, Any]] = {"max_retries": None, BACKOFF: Backoff(maximum=LONGEST_BACKOFF)}

#: The pause before Redis is asked again which jobs a killed worker had.
_TAKE_OVER_PAUSE_S: Final = 1.0

Function = TypeVar("Function", bound=Callable[..., Any])

_log = logging.getLogger(__name__)
_background: set[asyncio.Task[None]] = set()
_connected = False


async def _start() -> None:
    application.nats.on_up.append(_nats_is_up)
    spawn(_take_over())
    await application.start()


async def _take_over() -> None:
    """Begin at once the jobs of killed workers of this host. Otherwise queues would wait a minute.

    The same cause may have stopped Redis, so this waits for Redis.
    """
    while not is_cancelled():
        with suppress(QueueUnreachable):
            for member in await application.members.gone():
                await asyncio.to_thread(broker.take_over, member.id)
            return
        await asyncio.sleep(_TAKE_OVER_PAUSE_S)


def _nats_is_up() -> None:
    global _connected  # noqa: PLW0603 - of the process, as its connection
    spawn(_go_on(again=_connected))
    _connected = True


async def _go_on(*, again: bool) -> None:
    """NATS is back, or this worker is new: publish and pull at once, even if a job is in back-off.

    After a loss also check for lost messages: the server may have been restored from a backup meanwhile. A job
    that already runs has checked it before, or waits for the lost connection. One step at a time: Redis has few
    connections, and there may be many contexts.
    """
    contexts = settings.contexts.items()
    pulls = [jobs.PULL.of(name, it).key for name, context in contexts for it in context.subscriptions]
    publishes = [jobs.PUBLISH.of(name, it) for name, context in contexts for it in range(context.publish.shards)]
    # A running pull continues. The next tick replaces a waiting one, and publishes if no job is outstanding.
    await application.gates.wake(pulls)
    free = await application.gates.lost([it.key for it in publishes])
    for work in publishes:
        if work.key not in free:
            await _force(work)
    for name in settings.contexts if again else ():
        await _force(jobs.RECONCILE_STREAM.of(name), 0, interval=RECONCILE_EVERY)


async def _force(work: Duty, *more: int, interval: timedelta = timedelta()) -> None:
    """Send a job that replaces the outstanding one."""
    try:
        await application.gates.open(
            work.key, force=True, interval=interval, send=lambda token: broker.entry(work.message(token, *more))
        )
    except Outage as error:
        application.facts(OutageSeen(context=work.context, server="redis", error=error.explanation))


def spawn(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the background. A reference keeps it alive until it ends."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _background.add(task)
    task.add_done_callback(_background.discard)


@asynccontextmanager
async def long_running(work: Duty, token: str) -> AsyncIterator[Hold]:
    """Run a job that must be outstanding only once. Its hold is false when another job has taken over.

    The job checks its hold again and again, and ends when it is false.

    An outage becomes Dramatiq's Retry, and its middleware supplies the back-off (OUTAGE_RETRIES). Meanwhile the
    gate stays closed; otherwise each tick would add a job. The gate opens by itself if the job does not return.
    """
    async with application.gates.hold(work.key, token) as ours:
        try:
            yield ours
        except Outage as error:
            application.facts(OutageSeen(context=work.context, server=error.server, error=error.explanation))
            await application.gates.back_off(work.key, token)
            raise Retry(error.code) from None
    if ours:
        await application.gates.close(work.key, token)


@asynccontextmanager
async def periodic(work: Duty, token: str) -> AsyncIterator[Hold]:
    """Run a periodic job. Its hold is false when another job has taken over.

    An outage ends the job without an error: the scheduler sends another. Any other error counts as a run;
    otherwise the job would be sent again every few seconds. A run does not count as complete if the worker stops.
    """
    well = True
    try:
        async with application.gates.hold(work.key, token) as ours:
            yield ours
    except Outage as error:
        well = False
        application.facts(OutageSeen(context=work.context, server=error.server, error=error.explanation))
    except ArchiveBusy:
        well = False
    except Exception:
        await application.gates.close(work.key, token)
        raise
    await application.gates.close(work.key, token, well=well and not application.stopping)


#: Threads for each queue; None means as many as ``--threads``. Modules with actors may add their queues.
#: The archive job runs for minutes when many rows are old enough.
budgets: dict[str, int | None] = {jobs.ARCHIVE_QUEUE: 1}
runtime = WorkerRuntime(start=_start, quiesce=application.quiesce, stop=application.stop, budgets=budgets)
if heartbeat is not None:
    heartbeat.usage = runtime.usage
broker = job_broker(settings, [BackoffRetries(), runtime, Exposition(settings)])
dramatiq.set_broker(broker)


def _describe() -> Member:
    state = State.WORKING if application.nats.is_up else State.WAITING
    if application.stopping:
        state = State.ENDING
    elif not runtime.booted:
        state = State.STARTING
    publishes, usage = runtime.takes(jobs.PUBLISH_QUEUE), runtime.usage()
    listens = [name for name, it in _listeners.items() if it.listening]
    return replace(
        _this,
        state=state,
        up_seconds=up_seconds(),
        publishes=publishes,
        listens=listens,
        handles=_handles(),
        usage=usage,
    )


_listeners: dict[str, PublishOnHint] = {}


async def _listen() -> None:
    for name in settings.contexts:
        parts = application.context(name)
        _listeners[name] = PublishOnHint(parts.wakeup, parts.publish, partial(_hears, name), _heart.tell)
        await _listeners[name].start()


async def _listen_no_more() -> None:
    await asyncio.gather(*(it.stop() for it in _listeners.values()))


def _hears(context: str) -> bool:
    """Whether this is the worker that publishes when it hears a hint of a context."""
    can = runtime.takes(jobs.PUBLISH_QUEUE) and application.nats.is_up and not application.stopping
    return can and application.members.listens(_this.id, context) and application.may_listen(context)


#: What this process serves, by kind. Modules with actors add theirs.
serves: dict[str, Callable[[], Iterable[str]]] = {
    "contexts": lambda: settings.contexts,
    "subscriptions": lambda: (
        f"{name}.{sub}" for name, it in settings.contexts.items() for sub in it.subscriptions
    ),
}


#: Which versions the functions of this process handle. Modules with actors add theirs.
handled: set[str] = set()


@cache
def _handles() -> str:
    """What others may know of that. All modules are loaded when the first heart beats."""
    return digest_of(handled)


#: What must hold when all modules with actors are loaded. Each raises a RelayError.
checks: list[Callable[[], None]] = []


def _say_ready() -> None:
    """Say in one line what this process serves, whenever the broker is there."""
    _log.info("ready: %s", "; ".join(f"{kind} {', '.join(names()) or 'none'}" for kind, names in serves.items()))


_this = this_process("worker", uuid4().hex, settings.fleet, settings.release)
# So others know what a member has fetched.
broker.broker_id = _this.id
_heart = Heart(application.members, _describe)
application.on_start.append(_heart.start)
application.on_start.append(application.tallies.start)
application.on_quiesce.append(_heart.tell)
application.on_start.append(_listen)
application.on_stop.append(_listen_no_more)
application.on_stop.append(application.tallies.stop)
application.on_stop.append(_heart.stop)
if tracing is not None:
    application.on_stop.append(tracing.stop)
application.nats.on_up.append(_heart.tell)
application.nats.on_up.append(_say_ready)


def actor(kind: DutyKind, **options: Any) -> Callable[[Function], Any]:
    """Register a coroutine as the actor for the jobs of a kind. ``options``: Dramatiq's.

    The event loop runs jobs that mostly wait, without a thread (`relay.adapters.dramatiq.work_queue`).
    """

    def register(function: Function) -> Any:
        if kind.waits:
            runtime.on_loop[kind.actor] = LoopActor(function, waits=True)
        return dramatiq.actor(actor_name=kind.actor, queue_name=kind.queue, **options)(function)

    return register


def row_actor(name: str, queue: str, **options: Any) -> Callable[[Function], Any]:
    """Register a function as the actor for rows. The row decides about an attempt; `BackoffRetries` delays it.

    The event loop runs a coroutine itself, without a thread that waits (`relay.adapters.dramatiq.work_queue`).
    """

    def register(function: Function) -> Any:
        if asyncio.iscoroutinefunction(function):
            runtime.on_loop[name] = LoopActor(function)
        if options.setdefault("max_retries", None) is None:
            options[BACKOFF] = Backoff()
        return dramatiq.actor(actor_name=name, queue_name=queue, **options)(function)

    return register


def on_loop(name: str, *, unless: Callable[..., bool]) -> Callable[[Function], Function]:
    """Let the event loop run some messages of an actor by a coroutine.

    ``unless``: whether a message is for the actor itself; it gets all arguments but the last, a row's id.
    """

    def register(function: Function) -> Function:
        runtime.on_loop[name] = LoopActor(function, lambda *args: not unless(*args[:-1]))
        return function

    return register


def try_again(delay: timedelta | None) -> None:
    """End an actor; with a delay, its row is tried again after that."""
    if delay is not None:
        raise RetryJob(delay)
