"""How a Dramatiq worker process runs our actors: one event loop, and a thread budget per queue.

Actors are coroutines on the process's event loop. The worker thread that took a message only waits for its
coroutine. Without further rules, long-polling jobs and slow handlers would use up the threads, and a handler
service that hangs would stop publishing. So the threads of ``--threads`` are for handlers, and every long duty has
threads of its own. Messages that are many, or may hang, run on the loop without a thread. Functions that need a
thread divide the threads among them (`relay.adapters.dramatiq.work_queue`).
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Final, cast

import redis.exceptions
from dramatiq.asyncio import EventLoopThread, get_event_loop_thread, set_event_loop_thread
from dramatiq.broker import Broker, MessageProxy
from dramatiq.common import iter_queue
from dramatiq.message import Message
from dramatiq.middleware import AsyncIO
from dramatiq.worker import Worker, WorkerThread

from relay.adapters.dramatiq.broker import RelayBroker
from relay.adapters.dramatiq.loop_thread import LastingLoopThread
from relay.adapters.dramatiq.shares import share_of
from relay.adapters.dramatiq.work_queue import DEFAULT, BudgetedQueue, LoopActor, OnLoop
from relay.domain.members import Usage

#: A second SIGTERM within this time, in seconds, counts as the same one.
SIGTERM_DEDUP_WINDOW_S: Final = 5.0
#: How long the event loop may take to start, in seconds.
_LOOP_START_S: Final = 10.0
#: A process takes no more messages without a detour than this part of what it could begin: others are for others.
_LEFT_FREE: Final = 4
#: Python looks for cycles after this many new objects. A batch of messages has thousands of objects, none in a
#: cycle; with Python's own 700 it would search each batch several times.
_GC_THRESHOLD_OBJECTS: Final = 10_000


class WorkerRuntime(AsyncIO):
    """Runs ``start`` on the event loop when a worker boots and ``stop`` when it shuts down.

    ``budgets``: threads per queue name; None means as many as ``--threads``. They are added to ``--threads``,
    which serve all other queues. Read at boot. A worker with ``-Q`` adds no threads for queues that it does not
    serve. ``quiesce`` is called, from another thread, when the shutdown begins: long jobs should end.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Awaitable[None]],
        quiesce: Callable[[], None],
        stop: Callable[[], Awaitable[None]],
        budgets: Mapping[str, int | None],
        uvloop: bool = True,
    ) -> None:
        """``uvloop``: use it if it is installed. It stays on for the whole process."""
        super().__init__()
        self._uvloop = uvloop
        self._start, self._quiesce, self._stop = start, quiesce, stop
        self._budgets = budgets
        #: The actors whose messages the event loop takes, by their names.
        self.on_loop: dict[str, LoopActor] = {}
        self._worker: Any = None
        self._queue: BudgetedQueue | None = None
        #: Whether the worker has started.
        self.booted = False
        self._replacing = threading.Lock()

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        if self._uvloop:
            use_uvloop()
        heed_termination_once()
        thread = LastingLoopThread(self.logger)
        thread.start(timeout=_LOOP_START_S)
        set_event_loop_thread(thread)
        budgets = {
            name: worker.worker_threads if threads is None else threads
            for name, threads in self._budgets.items()
            if self._serves(worker, name)
        }
        self._worker = worker
        worker.work_queue = self._queue = queue = BudgetedQueue({**budgets, DEFAULT: worker.worker_threads})
        event_loop().run_coroutine(self._start())
        if self.on_loop:
            queue.loop = OnLoop(worker, event_loop().loop, self.on_loop, worker.worker_threads)
            queue.loop.start()
            worker.workers.append(queue.loop)
        worker.worker_threads += sum(budgets.values())
        queue.threads, queue.more = worker.worker_threads, self._add_thread
        if isinstance(broker, RelayBroker):
            broker.here = self
        look_less_for_cycles()

    def after_worker_boot(self, broker: Broker, worker: Worker) -> None:
        self.booted = True

    def takes(self, queue: str) -> bool:
        """Whether this worker takes jobs of a queue now: it has started, and its shutdown has not begun."""
        worker = self._worker
        return self.booted and worker is not None and self._serves(worker, queue)

    @staticmethod
    def _serves(worker: Any, queue: str) -> bool:
        return not worker.consumer_whitelist or queue in worker.consumer_whitelist

    def usage(self) -> Usage | None:
        """What this worker does now; None if it has not started yet."""
        return None if self._queue is None else self._queue.usage()

    def replace_thread(self, thread: threading.Thread) -> bool:
        """Replace a thread that hangs by a new one. The old thread ends when its message ends."""
        with self._replacing:
            worker = self._worker
            if worker is None or thread not in worker.workers:
                return False
            worker.workers.remove(thread)
            cast("WorkerThread", thread).stop()
            worker.work_queue.pass_over(thread.ident)
            worker._add_worker()  # noqa: SLF001 - as it does for each thread when it starts
            return True

    def _add_thread(self) -> None:
        """Add a thread: all are busy, and a message may begin."""
        with self._replacing:
            if self._worker is not None:
                self._worker._add_worker()  # noqa: SLF001 - as above

    def ahead(
        self, queue: str, share: str, fits: Callable[[Message[Any]], bool], limit: int
    ) -> list[Message[Any]]:
        """Messages of a queue that this process has fetched but not begun; see `BudgetedQueue.ahead`."""
        return [] if self._worker is None else self._worker.work_queue.ahead(queue, share, fits, limit)

    def has_room(self, messages: Sequence[Message[Any]]) -> bool:
        """Whether this process would begin all of these at once, and stay mostly free: see `RelayBroker.here`."""
        worker, queue, first = self._worker, self._queue, messages[0]
        if worker is None or queue is None or any("eta" in it.options for it in messages):
            return False
        thread = worker.consumers.get(first.queue_name)
        ready = thread is not None and thread.running and not thread.paused and thread.consumer is not None
        alike = {(it.queue_name, share_of(it)) for it in messages}
        return ready and len(alike) == 1 and _LEFT_FREE * len(messages) <= queue.room(first)

    def begin(self, messages: Sequence[Message[Any]]) -> None:
        """Begin messages as if this process had fetched them."""
        if (worker := self._worker) is not None:
            for message in messages:
                thread, proxy = worker.consumers[message.queue_name], MessageProxy(message)
                thread.consumer.adopt(proxy)
                thread.handle_message(proxy)

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        with self._replacing:
            # A thread that is added from now on would never be stopped.
            self._worker = None
        self._quiesce()
        if isinstance(broker, RelayBroker):
            broker.here = None
            broker.ending.set()
        if isinstance(worker.work_queue, BudgetedQueue):
            worker.work_queue.hurry()
            _give_back(worker)

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        event_loop().run_coroutine(self._stop())
        super().after_worker_shutdown(broker, worker)


def _give_back(worker: Worker) -> None:
    """Give back at once what no thread has begun, because this process may take seconds to end."""
    left: dict[str, list[MessageProxy]] = {}
    for item in iter_queue(worker.work_queue):
        left.setdefault(item.message.queue_name, []).append(item.message)
    for queue, messages in left.items():
        # Dramatiq gives the rest to others when the heartbeats of this process have run out.
        with suppress(redis.exceptions.RedisError):
            worker.consumers[queue].requeue_messages(messages)


def heed_termination_once() -> None:
    """Treat two SIGTERMs in short succession as one: the service manager and dramatiq both send it to a worker.

    The second would end the main thread of a worker and leave its other threads running for ever. A SIGTERM that
    comes later is meant: it ends the whole process.
    """
    heed, heard = signal.getsignal(signal.SIGTERM), -SIGTERM_DEDUP_WINDOW_S
    if threading.current_thread() is not threading.main_thread() or not callable(heed):
        return

    def once(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if time.monotonic() - heard > SIGTERM_DEDUP_WINDOW_S:
            heard = time.monotonic()
            try:
                heed(number, frame)
            except SystemExit as end:
                os._exit(end.code if isinstance(end.code, int) else 1)

    signal.signal(signal.SIGTERM, once)


def event_loop() -> EventLoopThread:
    """The event loop of this worker. Raises RuntimeError while none is running."""
    thread = get_event_loop_thread()
    if thread is None:
        raise RuntimeError("the event loop of the worker is not running")
    return thread


def look_less_for_cycles() -> None:
    """Exclude the objects loaded so far from the search for cycles, because they stay, and search less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD_OBJECTS, *gc.get_threshold()[1:])


def use_uvloop() -> None:
    """Use uvloop if it is installed, an optional speed-up (``jetrelay[fast]``)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
