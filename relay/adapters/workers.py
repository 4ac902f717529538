"""How a Dramatiq worker process runs our actors: one event loop, and a thread budget per queue.

Actors are coroutines on the process's event loop; the worker thread that took a message only waits for
its coroutine. Long-polling jobs and slow handlers would therefore use up the threads, and a handler
service that hangs would stop publishing. So the threads of ``--threads`` serve the handlers, and every
long-running duty brings threads of its own. What comes by the thousand the loop takes without a thread: see
`relay.adapters.onloop`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import heapq
import threading
from collections.abc import Awaitable, Callable, Mapping
from queue import Empty, PriorityQueue
from typing import Any, Final, NoReturn, cast

from dramatiq.asyncio import EventLoopThread, get_event_loop_thread
from dramatiq.broker import Broker
from dramatiq.middleware import AsyncIO
from dramatiq.worker import Worker, WorkerThread

from relay.adapters.onloop import LoopActor, OnLoop

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: How long an idle thread waits for a message, in seconds: dramatiq's own second wakes all of them every second.
_PATIENCE: Final = 15.0
#: The same once the worker shuts down, when its threads should look whether they are still wanted.
_HASTE: Final = 0.05
#: How many threads may hang at once and have others in their place. A process with more has a fault to be mended.
MOST_HANGING: Final = 32


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    Within what the budgets allow, order is the stock worker's: priority, then age. A message may carry a
    priority of its own. A thread is woken only for what it may have: of the many that serve all queues each would
    otherwise look, and find the budget spent, for every message.

    ``loop`` takes some of the messages to the event loop, with `take`, within the same budgets and the same order.
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._running: dict[str, int] = dict.fromkeys(budgets, 0)
        self._taken: dict[int, str] = {}
        self._patience = _PATIENCE
        self.loop: OnLoop | None = None
        super().__init__()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for a message, longer than a dramatiq worker asks for. Raises Empty, at once on `hurry`."""
        with self.not_empty:
            if block and not self._qsize():
                self.not_empty.wait(self._patience)
            if self._patience == _HASTE:
                if block:
                    self._end()
                return self._rest()
            if not self._qsize():
                raise Empty
            return self._get()

    def _end(self) -> NoReturn:
        """End the thread. One that is added in this moment says that it runs after it was told to stop."""
        thread = threading.current_thread()
        if isinstance(thread, WorkerThread):
            thread.stop()
        raise Empty

    def _rest(self) -> Any:
        """What nobody has taken. The worker gives it back to the broker, whatever the budgets."""
        for heap in (*self._heaps.values(), *self._for_loop.values()):
            if heap:
                return heapq.heappop(heap)
        raise Empty

    def hurry(self) -> None:
        """Hand out nothing any more, and wake the threads that wait: they are about to be stopped."""
        with self.mutex:
            self._patience = _HASTE
            self.not_empty.notify_all()

    def _init(self, maxsize: int) -> None:
        self._heaps: dict[str, list[Any]] = {name: [] for name in self._budgets}
        self._for_loop: dict[str, list[Any]] = {name: [] for name in self._budgets}

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add a message. It is never too many: each consumer fetches so many ahead."""
        with self.mutex:
            heaps = self._for_loop if self.loop is not None and self.loop.wants(item.message) else self._heaps
            name = self._add(heaps, item)
            self.unfinished_tasks += 1
            if heaps is self._for_loop:
                self._wake_loop()
            elif self._running[name] < self._budgets[name]:
                self.not_empty.notify()

    def _add(self, heaps: dict[str, list[Any]], item: Any) -> str:
        name, priority = item.message.queue_name, item.message.options.get("task_priority")
        if priority is not None:
            item = dataclasses.replace(item, priority=priority)
        name = name if name in heaps else DEFAULT
        heapq.heappush(heaps[name], item)
        return name

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
        self._wake_loop()
        return item

    def take(self, most: int) -> list[tuple[str, Any]]:
        """Take messages for the loop, as many as there is room for, and which budget each belongs to."""
        with self.mutex:
            taken: list[tuple[str, Any]] = []
            while len(taken) < most and (names := self._open_to_loop()):
                name = min(names, key=lambda name: self._for_loop[name][0])
                self._running[name] += 1
                taken.append((name, heapq.heappop(self._for_loop[name]).message))
            if self._open():
                self.not_empty.notify()
            return taken

    def leave(self, name: str) -> None:
        """Give up the place of a message that the loop has taken. Nobody is woken: the loop is about to `take`."""
        with self.mutex:
            self._running[name] -= 1

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
            self._wake_loop()

    def _wake_loop(self) -> None:
        if self.loop is not None and self._open_to_loop():
            self.loop.wake()

    def _open(self) -> list[str]:
        return self._which(self._heaps, self._for_loop)

    def _open_to_loop(self) -> list[str]:
        return self._which(self._for_loop, self._heaps)

    def _which(self, heaps: dict[str, list[Any]], others: dict[str, list[Any]]) -> list[str]:
        """The budgets that are not spent and whose next message is one of ``heaps``."""
        return [
            name
            for name, heap in heaps.items()
            if heap
            and self._running[name] < self._budgets[name]
            and not (others[name] and others[name][0] < heap[0])
        ]


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
        #: The actors whose messages the event loop takes, by their names.
        self.on_loop: dict[str, LoopActor] = {}
        self._worker: Any = None
        self._hanging: list[threading.Thread] = []
        self._relieving = threading.Lock()

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        use_uvloop()
        super().before_worker_boot(broker, worker)
        budgets = {
            name: worker.worker_threads if threads is None else threads
            for name, threads in self._budgets.items()
            if not worker.consumer_whitelist or name in worker.consumer_whitelist
        }
        self._worker = worker
        worker.work_queue = queue = BudgetedQueue({**budgets, DEFAULT: worker.worker_threads})
        event_loop().run_coroutine(self._start())
        if self.on_loop:
            queue.loop = OnLoop(worker, event_loop().loop, self.on_loop, worker.worker_threads)
            queue.loop.start()
            worker.workers.append(queue.loop)
        worker.worker_threads += sum(budgets.values())
        # What is there by now stays. The collector need not look at it time and again.
        gc.collect()
        gc.freeze()

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


def event_loop() -> EventLoopThread:
    """The event loop of this worker. Raises RuntimeError while none is running."""
    thread = get_event_loop_thread()
    if thread is None:
        raise RuntimeError("the event loop of the worker is not running")
    return thread


def use_uvloop() -> None:
    """Uvloop is an optional speed-up (``jetrelay[fast]``)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
