"""How a Dramatiq worker process runs our actors: one event loop, and a thread budget per queue.

Actors are coroutines on the process's event loop; the worker thread that took a message only waits for
its coroutine. Long-polling jobs and slow handlers would therefore use up the threads, and a handler
service that hangs would stop publishing. So the threads of ``--threads`` serve the handlers, and every
long-running duty brings threads of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import heapq
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from queue import Empty, PriorityQueue
from types import FrameType
from typing import Any, Final, cast

from dramatiq.asyncio import EventLoopThread, get_event_loop_thread
from dramatiq.broker import Broker
from dramatiq.message import Message
from dramatiq.middleware import AsyncIO
from dramatiq.worker import Worker, WorkerThread

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: How long an idle thread waits for a message, in seconds: dramatiq's own second wakes all of them every second.
_PATIENCE: Final = 15.0
#: The same once the worker shuts down, when its threads should look whether they are still wanted.
_HASTE: Final = 0.05
#: For how long SIGTERM is the one that was heard already, in seconds.
_ECHO: Final = 5.0
#: How many threads may hang at once and have others in their place. A process with more has a fault to be mended.
MOST_HANGING: Final = 32

#: So many objects come to be before Python looks for cycles among them. A batch of messages is thousands, none
#: in a cycle; Python's own 700 have it look at a batch several times while that is in use.
_YOUNG: Final = 10_000


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    Within what the budgets allow, order is the stock worker's: priority, then age. A message may carry a
    priority of its own. A thread is woken only for what it may have: of the many that serve all queues each would
    otherwise look, and find the budget spent, for every message.
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._running: dict[str, int] = dict.fromkeys(budgets, 0)
        self._taken: dict[int, str] = {}
        self._patience = _PATIENCE
        super().__init__()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for a message, longer than a dramatiq worker asks for. Raises Empty, at once on `hurry`."""
        with self.not_empty:
            if block and not self._qsize():
                self.not_empty.wait(self._patience)
            if not self._qsize():
                raise Empty
            return self._get()

    def ahead(self, queue: str, fits: Callable[[Message[Any]], bool], limit: int) -> list[Message[Any]]:
        """Up to so many messages of a queue that wait to be handed out, roughly in that order."""
        with self.mutex:
            nearest = self._heaps[self._heap(queue)][: 2 * limit]
        return [item.message for item in nearest if fits(item.message)][:limit]

    def hurry(self) -> None:
        """Wake the threads that wait, now and from now on: they are about to be stopped."""
        with self.mutex:
            self._patience = _HASTE
            self.not_empty.notify_all()

    def _init(self, maxsize: int) -> None:
        self._heaps: dict[str, list[Any]] = {name: [] for name in self._budgets}

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add a message. It is never too many: each consumer fetches so many ahead."""
        with self.mutex:
            name = self._add(item)
            self.unfinished_tasks += 1
            if self._running[name] < self._budgets[name]:
                self.not_empty.notify()

    def _add(self, item: Any) -> str:
        name, priority = self._heap(item.message.queue_name), item.message.options.get("task_priority")
        if priority is not None:
            item = dataclasses.replace(item, priority=priority)
        heapq.heappush(self._heaps[name], item)
        return name

    def _heap(self, queue: str) -> str:
        return queue if queue in self._heaps else DEFAULT

    def _qsize(self) -> int:
        """The messages that may be handed out now: `get` waits while there are none."""
        return sum(len(self._heaps[name]) for name in self._open())

    def _get(self) -> Any:
        name = min(self._open(), key=lambda name: self._heaps[name][0])
        self._running[name] += 1
        self._taken[threading.get_ident()] = name
        item = heapq.heappop(self._heaps[name])
        if self._open():
            # Whoever was woken wakes the next one, who may have been held up by a budget before.
            self.not_empty.notify()
        return item

    def task_done(self) -> None:
        # Nobody is woken: this thread is about to ask for the next one itself.
        with self.mutex:
            self._pass_over(threading.get_ident())
        super().task_done()

    def pass_over(self, thread: int) -> None:
        """Count what a thread is at no longer."""
        with self.mutex:
            self._pass_over(thread)
            self.not_empty.notify()

    def _pass_over(self, thread: int) -> None:
        name = self._taken.pop(thread, None)
        if name is not None:
            self._running[name] -= 1

    def _open(self) -> list[str]:
        return [name for name, heap in self._heaps.items() if heap and self._running[name] < self._budgets[name]]


class WorkerRuntime(AsyncIO):
    """Runs ``start`` on the event loop when a worker boots and ``stop`` when it shuts down.

    ``budgets``: threads per queue name, None for as many as ``--threads``, on top of those, which serve all
    other queues. Read at boot; a worker with ``-Q`` takes on no threads for queues that it does not serve.
    ``quiesce`` is called, from another thread, when the shutdown begins: long jobs should end.
    """

    def __init__(
        self,
        *,
        start: Callable[[], Awaitable[None]],
        quiesce: Callable[[], None],
        stop: Callable[[], Awaitable[None]],
        budgets: Mapping[str, int | None],
    ) -> None:
        super().__init__()
        self._start, self._quiesce, self._stop = start, quiesce, stop
        self._budgets = budgets
        self._worker: Any = None
        self._hanging: list[threading.Thread] = []
        self._relieving = threading.Lock()

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        use_uvloop()
        heed_termination_once()
        super().before_worker_boot(broker, worker)
        budgets = {
            name: worker.worker_threads if threads is None else threads
            for name, threads in self._budgets.items()
            if not worker.consumer_whitelist or name in worker.consumer_whitelist
        }
        self._worker = worker
        worker.work_queue = BudgetedQueue({**budgets, DEFAULT: worker.worker_threads})
        worker.worker_threads += sum(budgets.values())
        event_loop().run_coroutine(self._start())
        look_less_for_cycles()

    def relieve(self, thread: threading.Thread) -> bool:
        """Put another thread in the place of one that hangs, which ends with what it is at. False: too many do."""
        worker = self._worker
        with self._relieving:
            self._hanging = [other for other in self._hanging if other.is_alive()]
            if worker is None or thread not in worker.workers or len(self._hanging) >= MOST_HANGING:
                return False
            self._hanging.append(thread)
            worker.workers.remove(thread)
            cast("WorkerThread", thread).stop()
            worker.work_queue.pass_over(thread.ident)
            worker._add_worker()  # noqa: SLF001 - as it does for each thread when it starts
            return True

    def ahead(self, queue: str, fits: Callable[[Message[Any]], bool], limit: int) -> list[Message[Any]]:
        """Messages of a queue that this process has fetched and not begun; see `BudgetedQueue.ahead`."""
        return [] if self._worker is None else self._worker.work_queue.ahead(queue, fits, limit)

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        with self._relieving:
            # A thread that is added from now on would never be told to end.
            self._worker = None
        self._quiesce()
        if isinstance(worker.work_queue, BudgetedQueue):
            worker.work_queue.hurry()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        event_loop().run_coroutine(self._stop())
        super().after_worker_shutdown(broker, worker)


def heed_termination_once() -> None:
    """Hear SIGTERM once where it comes twice: a service manager tells all processes, dramatiq its workers.

    The second would end the main thread of a worker and leave the others running for ever. One that comes later is
    meant: it ends all of them.
    """
    heed, heard = signal.getsignal(signal.SIGTERM), -_ECHO
    if threading.current_thread() is not threading.main_thread() or not callable(heed):
        return

    def once(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if time.monotonic() - heard > _ECHO:
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
    """Spare what is loaded now, as it stays, and let more objects come to be before the next look for cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def use_uvloop() -> None:
    """Uvloop is an optional speed-up (``jetrelay[fast]``)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
