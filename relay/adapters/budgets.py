"""A worker's queue of fetched messages, which keeps to a thread budget per queue and shares it out fairly."""

from __future__ import annotations

import dataclasses
import heapq
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from queue import Empty, PriorityQueue
from typing import Any, Final, NoReturn, TypeAlias

from dramatiq.message import Message
from dramatiq.worker import WorkerThread

from relay.adapters.onloop import OnLoop
from relay.adapters.shares import share_of

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: The part of a budget that a share may have though the budget is spent: a quarter of it, or one thread.
_LEAST: Final = 4
#: With so many functions that outlived their time a share begins nothing. They have a fault to be mended.
MOST_HANGING: Final = 16
#: How long an idle thread waits for a message, in seconds: dramatiq's own second wakes all of them every second.
_PATIENCE: Final = 15.0
#: The same once the worker shuts down, when its threads should look whether they are still wanted.
_HASTE: Final = 0.05

#: A budget, and of its messages whose they are.
_Share: TypeAlias = tuple[str, str]


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    Of a queue's shares (`relay.adapters.shares`) whoever has fewest threads is next, then order is the stock
    worker's: priority, then age. A message may carry a priority of its own. A share that has come too late for the
    budget gets a quarter of it all the same: however many others hang, it goes on. A thread is woken only for what
    it may have: of the many that serve all queues each would otherwise look, and find the budget spent, for every
    message.

    ``loop`` takes some of the messages to the event loop. ``more`` adds a thread; it is called, without any lock,
    when all of ``threads`` are busy though a message may begin.
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._running = Counter[_Share]()
        self._hanging = Counter[_Share]()
        self._spent = Counter[str]()
        #: What each thread is at, and each that has outlived its time.
        self._taken: dict[int, _Share] = {}
        self._late: dict[int, _Share] = {}
        self._patience = _PATIENCE
        self.loop: OnLoop | None = None
        self.threads = 0
        self.more: Callable[[], None] | None = None
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
            item, short = self._get(), self._short()
        self._add_thread(short)
        return item

    def ahead(
        self, queue: str, share: str, fits: Callable[[Message[Any]], bool], limit: int
    ) -> list[Message[Any]]:
        """Up to so many messages of a queue and share that wait for a thread, roughly in that order."""
        with self.mutex:
            nearest = self._heaps.get((self._budget(queue), share), [])[: 2 * limit]
        return [item.message for item in nearest if fits(item.message)][:limit]

    def _end(self) -> NoReturn:
        """End the thread. One that is added in this moment says that it runs after it was told to stop."""
        thread = threading.current_thread()
        if isinstance(thread, WorkerThread):
            thread.stop()
        raise Empty

    def _rest(self) -> Any:
        """What nobody has taken. The worker gives it back to the broker, whatever the budgets."""
        for heap in self._heaps.values():
            if heap:
                return heapq.heappop(heap)
        if self.loop is not None:
            return self.loop.rest()
        raise Empty

    def hurry(self) -> None:
        """Hand out nothing any more, and wake the threads that wait: they are about to be stopped."""
        with self.mutex:
            self._patience = _HASTE
            self.not_empty.notify_all()

    def _init(self, maxsize: int) -> None:
        self._heaps: dict[_Share, list[Any]] = {}

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add a message. It is never too many: each consumer fetches so many ahead."""
        priority, loop = item.message.options.get("task_priority"), self.loop
        if priority is not None:
            item = dataclasses.replace(item, priority=priority)
        if loop is not None and loop.wants(item.message):
            with self.mutex:
                self.unfinished_tasks += 1
            loop.put(item)
            return
        share = self._budget(item.message.queue_name), share_of(item.message)
        with self.mutex:
            heapq.heappush(self._heaps.setdefault(share, []), item)
            self.unfinished_tasks += 1
            if self._is_open(share):
                self.not_empty.notify()
            short = self._short()
        self._add_thread(short)

    def _budget(self, queue: str) -> str:
        return queue if queue in self._budgets else DEFAULT

    def _short(self) -> bool:
        """Whether a message may begin and no thread is free for it. Then one more is counted, to be added."""
        short = self.more is not None and len(self._taken) >= self.threads and bool(self._qsize())
        self.threads += short
        return short

    def _add_thread(self, short: bool) -> None:
        if short and self.more is not None:
            self.more()

    def _qsize(self) -> int:
        """Whether a message may be handed out now: `get` waits while there is none."""
        return any(map(self._is_open, self._heaps))

    def _is_open(self, share: _Share) -> bool:
        """Whether a share may have another thread."""
        if self._hanging[share] >= MOST_HANGING:
            return False
        budget = self._budgets[share[0]]
        least = max(1, budget // _LEAST) if share[1] else 0
        return self._spent[share[0]] < budget or self._running[share] < least

    def _get(self) -> Any:
        share = min(filter(self._is_open, self._heaps), key=lambda it: (self._running[it], self._heaps[it][0]))
        heap = self._heaps[share]
        item = heapq.heappop(heap)
        if not heap:
            del self._heaps[share]
        self._running[share] += 1
        self._spent[share[0]] += 1
        self._taken[threading.get_ident()] = share
        if self._qsize():
            # Whoever was woken wakes the next one, who may have been held up by a budget before.
            self.not_empty.notify()
        return item

    def task_done(self) -> None:
        # Nobody is woken: this thread is about to ask for the next one itself.
        with self.mutex:
            self._leave(threading.get_ident())
            if (share := self._late.pop(threading.get_ident(), None)) is not None:
                self._hanging[share] -= 1
                self.not_empty.notify()
        super().task_done()

    def pass_over(self, thread: int) -> None:
        """Count what a thread is at as hanging: it has no place of the budget any longer."""
        with self.mutex:
            if (share := self._leave(thread)) is not None:
                self._late[thread] = share
                self._hanging[share] += 1
            self.not_empty.notify()

    def _leave(self, thread: int) -> _Share | None:
        share = self._taken.pop(thread, None)
        if share is not None:
            self._running[share] -= 1
            self._spent[share[0]] -= 1
        return share
