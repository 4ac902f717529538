"""The queue of a worker process: so many messages of each Dramatiq queue at once, in threads and on the loop."""

from __future__ import annotations

import dataclasses
import heapq
import threading
from collections.abc import Callable, Mapping
from queue import Empty, PriorityQueue
from typing import Any, Final, NoReturn

from dramatiq import Message
from dramatiq.worker import WorkerThread

from relay.adapters.onloop import OnLoop

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: How long an idle thread waits for a message, in seconds: dramatiq's own second wakes all of them every second.
_PATIENCE: Final = 15.0
#: The same once the worker shuts down, when its threads should look whether they are still wanted.
_HASTE: Final = 0.05


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

    def ahead(self, queue: str, fits: Callable[[Message[Any]], bool], limit: int) -> list[Message[Any]]:
        """Up to so many messages of a queue that wait to be handed out, roughly in that order."""
        with self.mutex:
            nearest = self._heaps[self._heap(queue)][: 2 * limit]
        return [item.message for item in nearest if fits(item.message)][:limit]

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
        name, priority = self._heap(item.message.queue_name), item.message.options.get("task_priority")
        if priority is not None:
            item = dataclasses.replace(item, priority=priority)
        heapq.heappush(heaps[name], item)
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
