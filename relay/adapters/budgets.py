"""A worker's queue of fetched messages. It keeps a thread budget per queue and divides it fairly among shares."""

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
from relay.domain.members import Usage

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: So many queues and shares are named in what a worker does, the busiest.
_NAMED: Final = 20
#: A share may have this part of a budget even when the budget is spent: a quarter, but at least one thread.
_LEAST_PART: Final = 4
#: A share with this many functions past their time-out begins nothing more. Their fault must be mended first.
MAX_HANGING_CALLS: Final = 16
#: How long an idle thread waits for a message, in seconds. With dramatiq's own value all wake every second.
_IDLE_WAIT_S: Final = 15.0
#: The same while the worker shuts down: its threads must soon see that they are told to stop.
_SHUTDOWN_WAIT_S: Final = 0.05

#: The budget of a message, and its share.
_Share: TypeAlias = tuple[str, str]


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    The share (`relay.adapters.shares`) with the fewest threads is next. Then order is the stock worker's:
    priority, then age. A message may carry a priority of its own. When the budget is spent, a share may still have
    a quarter of it: so a share goes on even when many others hang. A thread is woken only when a message may
    begin. Otherwise every message would wake threads that only find the budget spent.

    ``loop`` takes some of the messages to the event loop. ``more`` adds a thread. It is called, without any lock,
    when all of ``threads`` are busy and a message may begin.
    """

    def __init__(self, budgets: Mapping[str, int]) -> None:
        self._budgets = dict(budgets)
        self._running = Counter[_Share]()
        self._hanging = Counter[_Share]()
        self._spent = Counter[str]()
        #: The share that each thread works for, and the same for threads past their time-out.
        self._taken: dict[int, _Share] = {}
        self._late: dict[int, _Share] = {}
        self._patience = _IDLE_WAIT_S
        self.loop: OnLoop | None = None
        self.threads = 0
        self.more: Callable[[], None] | None = None
        super().__init__()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for a message, longer than a dramatiq worker asks for. Raises Empty; after `hurry` at once."""
        with self.not_empty:
            if block and not self._qsize():
                self.not_empty.wait(self._patience)
            if self._patience == _SHUTDOWN_WAIT_S:
                if block:
                    self._end()
                return self._unbegun()
            if not self._qsize():
                raise Empty
            item, short = self._get(), self._short()
        self._add_thread(short)
        return item

    def ahead(
        self, queue: str, share: str, fits: Callable[[Message[Any]], bool], limit: int
    ) -> list[Message[Any]]:
        """Up to ``limit`` messages of a queue and share that wait for a thread, roughly in their order."""
        with self.mutex:
            nearest = self._heaps.get((self._budget(queue), share), [])[: 2 * limit]
        return [item.message for item in nearest if fits(item.message)][:limit]

    def usage(self) -> Usage:
        """What runs and what waits, in the threads of ``--threads`` and on the loop."""
        with self.mutex:
            running, waiting = Counter(self._running), sum(map(len, self._heaps.values()))
            threads, busy = self._budgets[DEFAULT], self._spent[DEFAULT]
        nothing = Counter[_Share](), Counter[str](), 0
        calls, doing, waits = self.loop.usage() if self.loop is not None else nothing
        for (queue, share), count in [*running.items(), *calls.items()]:
            doing[share or queue or "other"] += count
        busy = max(busy, *calls.values(), 0)
        named = dict((+doing).most_common(_NAMED))
        if rest := doing.total() - sum(named.values()):
            named["others"] = rest
        return Usage(threads=threads, busy=min(busy, threads), waiting=waiting + waits, doing=named)

    def _end(self) -> NoReturn:
        """End this thread. Needed because a thread that starts just now overwrites the order to stop."""
        thread = threading.current_thread()
        if isinstance(thread, WorkerThread):
            thread.stop()
        raise Empty

    def _unbegun(self) -> Any:
        """A message that no thread has taken. The worker gives it back to the broker; budgets do not count."""
        for heap in self._heaps.values():
            if heap:
                return heapq.heappop(heap)
        if self.loop is not None:
            return self.loop.unbegun()
        raise Empty

    def hurry(self) -> None:
        """Hand out nothing more, and wake the waiting threads: they are about to be stopped."""
        with self.mutex:
            self._patience = _SHUTDOWN_WAIT_S
            self.not_empty.notify_all()

    def _init(self, maxsize: int) -> None:
        self._heaps: dict[_Share, list[Any]] = {}

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add a message. The queue needs no size limit: each consumer's prefetch is limited."""
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
        """Whether a message may begin and no thread is free for it. If so, counts a thread that is to be added."""
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
        if self._hanging[share] >= MAX_HANGING_CALLS:
            return False
        budget = self._budgets[share[0]]
        return self._spent[share[0]] < budget or self._running[share] < max(1, budget // _LEAST_PART)

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
            # Each woken thread wakes the next: a budget may have held back a message that may begin now.
            self.not_empty.notify()
        return item

    def task_done(self) -> None:
        # No thread is woken: this one asks for the next message itself.
        with self.mutex:
            self._release(threading.get_ident())
            if (share := self._late.pop(threading.get_ident(), None)) is not None:
                self._hanging[share] -= 1
                self.not_empty.notify()
        super().task_done()

    def pass_over(self, thread: int) -> None:
        """Count a thread's message as hanging. It no longer uses the budget."""
        with self.mutex:
            if (share := self._release(thread)) is not None:
                self._late[thread] = share
                self._hanging[share] += 1
            self.not_empty.notify()

    def _release(self, thread: int) -> _Share | None:
        share = self._taken.pop(thread, None)
        if share is not None:
            self._running[share] -= 1
            self._spent[share[0]] -= 1
        return share
