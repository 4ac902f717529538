"""How a Dramatiq worker process runs our actors: one event loop, and a thread budget per queue.

Actors are coroutines on the process's event loop; the worker thread that took a message only waits for
its coroutine. Long-polling jobs and slow handlers would therefore use up the threads, and a handler
service that hangs would stop publishing. So the threads of ``--threads`` serve the handlers, and every
long-running duty brings threads of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import threading
from collections.abc import Awaitable, Callable, Mapping
from queue import PriorityQueue
from typing import Any, Final

from dramatiq.asyncio import EventLoopThread, get_event_loop_thread
from dramatiq.broker import Broker
from dramatiq.middleware import AsyncIO
from dramatiq.worker import Worker

#: The budget of queues that have none of their own.
DEFAULT: Final = ""


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    Within what the budgets allow, order is the stock worker's: priority, then age. A message may carry a
    priority of its own.
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._running: dict[str, int] = dict.fromkeys(budgets, 0)
        self._taken = threading.local()
        super().__init__()

    def _init(self, maxsize: int) -> None:
        self._heaps: dict[str, list[Any]] = {name: [] for name in self._budgets}

    def _put(self, item: Any) -> None:
        name, priority = item.message.queue_name, item.message.options.get("task_priority")
        if priority is not None:
            item = dataclasses.replace(item, priority=priority)
        heapq.heappush(self._heaps[name if name in self._heaps else DEFAULT], item)

    def _qsize(self) -> int:
        """The messages that may be handed out now: `get` waits while there are none."""
        return sum(len(self._heaps[name]) for name in self._open())

    def _get(self) -> Any:
        name = min(self._open(), key=lambda name: self._heaps[name][0])
        self._running[name] += 1
        self._taken.name = name
        return heapq.heappop(self._heaps[name])

    def task_done(self) -> None:
        with self.mutex:
            name = getattr(self._taken, "name", None)
            if name is not None:
                self._running[name] -= 1
                self._taken.name = None
                self.not_empty.notify()
        super().task_done()

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

    def before_worker_boot(self, broker: Broker, worker: Worker) -> None:
        _use_uvloop()
        super().before_worker_boot(broker, worker)
        budgets = {
            name: worker.worker_threads if threads is None else threads
            for name, threads in self._budgets.items()
            if not worker.consumer_whitelist or name in worker.consumer_whitelist
        }
        worker.work_queue = BudgetedQueue({**budgets, DEFAULT: worker.worker_threads})
        worker.worker_threads += sum(budgets.values())
        event_loop().run_coroutine(self._start())

    def before_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        self._quiesce()

    def after_worker_shutdown(self, broker: Broker, worker: Worker) -> None:
        event_loop().run_coroutine(self._stop())
        super().after_worker_shutdown(broker, worker)


def event_loop() -> EventLoopThread:
    """The event loop of this worker. Raises RuntimeError while none is running."""
    thread = get_event_loop_thread()
    if thread is None:
        raise RuntimeError("the event loop of the worker is not running")
    return thread


def _use_uvloop() -> None:
    """Uvloop is an optional speed-up (``jetrelay[fast]``)."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
