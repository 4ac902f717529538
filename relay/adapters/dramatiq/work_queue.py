"""Which of the messages that a worker has fetched runs next, and where: in a thread, or on the event loop.

A queue has a budget of threads, and divides it fairly among its shares. The event loop takes messages itself, so
that none keeps a thread waiting: a hop from a thread to the loop and back often costs more than the work of the
message. It runs the actors that are coroutines, middleware included, and one thread ends the messages that are
done, as any worker thread does: retries, acknowledgement, bookkeeping. A slot on the loop costs almost nothing.
So each share has slots of its own, and a share whose calls hang takes none from the others.
"""

from __future__ import annotations

import asyncio
import dataclasses
import heapq
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, PriorityQueue, SimpleQueue
from typing import Any, Final, NoReturn, TypeAlias, cast

from dramatiq.broker import Broker, MessageProxy
from dramatiq.message import Message
from dramatiq.middleware import Middleware, ShutdownNotifications, TimeLimit
from dramatiq.worker import Worker, WorkerThread

from relay.adapters.dramatiq.shares import share_of
from relay.domain.members import Usage

#: The budget of queues that have none of their own.
DEFAULT: Final = ""
#: How many queues and shares a worker names when it says what it does: the busiest.
_NAMED: Final = 20
#: Even when a budget is spent, a share may have a quarter of it, and at least one thread.
_LEAST_PART: Final = 4
#: A share with this many functions past their time-out begins nothing more. Their fault must be mended first.
MAX_HANGING_CALLS: Final = 16
#: How long an idle thread waits for a message, in seconds. With dramatiq's own value all wake every second.
_IDLE_WAIT_S: Final = 15.0
#: The same while the worker shuts down: its threads must soon see that they are told to stop.
_SHUTDOWN_WAIT_S: Final = 0.05
#: How long a message that has ended on the loop waits for others while more are to begin, in seconds.
_GATHER_S: Final = 0.005
#: These interrupt the thread of a message that takes too long. Nobody may interrupt the event loop.
_INTERRUPTING: Final = (TimeLimit, ShutdownNotifications)

#: The queue of a message, or the budget that it counts for; and its share.
_Share: TypeAlias = tuple[str, str]


class BudgetedQueue(PriorityQueue[Any]):
    """A worker's queue of fetched messages that hands out at most ``budgets[queue]`` of a queue at once.

    The share (`relay.adapters.dramatiq.shares`) with the fewest threads is next. Then order is the stock worker's:
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
        self._thread_shares: dict[int, _Share] = {}
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
            item = self._get()
            more = bool(self._qsize())
            if more:
                # Each woken thread wakes the next: a budget may have held back a message that may begin now.
                self.not_empty.notify()
            short = self._short(lambda: more)
        self._add_thread(short)
        return item

    def ahead(
        self, queue: str, share: str, fits: Callable[[Message[Any]], bool], limit: int
    ) -> list[Message[Any]]:
        """Up to ``limit`` messages of a queue and share that wait for their turn, roughly in their order."""
        with self.mutex:
            nearest = self._heaps.get((self._budget(queue), share), [])[: 2 * limit]
        if not nearest and self.loop is not None:
            nearest = self.loop.nearest((queue, share), 2 * limit)
        return [item.message for item in nearest if fits(item.message)][:limit]

    def room(self, message: Message[Any]) -> int:
        """How many messages like this one would begin at once; 0 while any waits here."""
        if self.loop is not None and self.loop.wants(message):
            return self.loop.room((message.queue_name, share_of(message)))
        budget = self._budget(message.queue_name)
        with self.mutex:
            waiting = any(queue == budget for queue, _ in self._heaps)
            return (
                0 if waiting or self._patience == _SHUTDOWN_WAIT_S else self._budgets[budget] - self._spent[budget]
            )

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
            short = self._short(self._qsize)
        self._add_thread(short)

    def _budget(self, queue: str) -> str:
        return queue if queue in self._budgets else DEFAULT

    def _short(self, ready: Callable[[], int]) -> bool:
        """Whether a message is ``ready`` and no thread is free. If so, counts a thread that is to be added."""
        short = self.more is not None and len(self._thread_shares) >= self.threads and bool(ready())
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
        self._thread_shares[threading.get_ident()] = share
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
        share = self._thread_shares.pop(thread, None)
        if share is not None:
            self._running[share] -= 1
            self._spent[share[0]] -= 1
        return share


# --- on the event loop ---


@dataclass(frozen=True, slots=True)
class LoopActor:
    """A coroutine that processes the messages of an actor on the loop.

    ``takes`` says whether a message with these arguments is for the loop. It is called in any thread. ``waits``:
    its messages mostly wait, so many at the same time are no load.
    """

    run: Callable[..., Awaitable[Any]]
    takes: Callable[..., bool] = lambda *_: True
    waits: bool = False


@dataclass(frozen=True, slots=True)
class _Ended:
    """The end of a message: its result, or the error of a middleware or of the actor."""

    message: MessageProxy
    result: Any = None
    refused: BaseException | None = None
    failed: BaseException | None = None


class _LoopBroker:
    """The broker as the stock worker thread sees it, for messages whose actor has run on the loop already."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.ended: _Ended | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    @property
    def middleware(self) -> list[Middleware]:
        return [it for it in self._broker.middleware if not isinstance(it, _INTERRUPTING)]

    def begin(self, message: MessageProxy) -> None:
        """Do what middleware does before a message, on the loop. Raises MiddlewareError."""
        Broker.emit_before(self, "process_message", message)  # type: ignore[arg-type]

    def emit_before(self, signal: str, *args: Any, **options: Any) -> None:
        if self.ended is None:
            self._broker.emit_before(signal, *args, **options)
        elif self.ended.refused is not None:
            raise self.ended.refused

    def get_actor(self, name: str) -> Any:
        actor = self._broker.get_actor(name)
        return actor if self.ended is None else _EndedActor(actor, self.ended)


class _EndedActor:
    """An actor that has run: a call returns its result, or raises its error."""

    def __init__(self, actor: Any, ended: _Ended) -> None:
        self._actor, self._ended = actor, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        if self._ended.failed is not None:
            raise self._ended.failed
        return self._ended.result


class OnLoop(WorkerThread):
    """Takes messages on the loop; its thread finishes them. It is stopped like any worker thread.

    ``slots``: how many messages of a share may run at the same time. The share with the fewest running is next.
    Within a share the order is the stock worker's.
    """

    def __init__(
        self, worker: Worker, loop: asyncio.AbstractEventLoop, actors: Mapping[str, LoopActor], slots: int
    ) -> None:
        self._broker = _LoopBroker(worker.broker)
        super().__init__(
            broker=cast("Broker", self._broker),
            consumers=worker.consumers,
            work_queue=worker.work_queue,
            worker_timeout=worker.worker_timeout,
        )
        self._loop = loop
        self._actors = actors
        self._duties = {worker.broker.get_actor(name).queue_name for name, it in actors.items() if it.waits}
        self._slots = slots
        self._waiting: dict[_Share, list[Any]] = {}
        self._lock = threading.Lock()
        self._running = Counter[_Share]()
        self._context = copy_context()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: SimpleQueue[list[_Ended] | None] = SimpleQueue()
        self._gathered: list[_Ended] = []

    # --- any thread ---

    def wants(self, message: MessageProxy | Message[Any]) -> bool:
        """Whether a message is for the loop."""
        if (actor := self._actors.get(message.actor_name)) is None:
            return False
        try:
            return actor.takes(*message.args, **message.kwargs)
        except Exception:
            return False

    def room(self, share: _Share) -> int:
        """How many more messages of a share would begin at once; 0 while any waits."""
        with self._lock:
            waits = share in self._waiting or self.paused or not self.running
            return 0 if waits else self._slots - self._running[share]

    def nearest(self, share: _Share, limit: int) -> list[Any]:
        """Up to ``limit`` messages of a share that wait for a slot, roughly in their order."""
        with self._lock:
            return self._waiting.get(share, [])[:limit]

    def put(self, item: Any) -> None:
        """Add a message, as a worker queues it."""
        share = item.message.queue_name, share_of(item.message)
        with self._lock:
            heapq.heappush(self._waiting.setdefault(share, []), item)
        if self._is_open(share):
            self._wake()

    def unbegun(self) -> Any:
        """A message that was never taken. Raises Empty when there is none."""
        with self._lock:
            for share in self._waiting:
                return self._pop(share)
        raise Empty

    def usage(self) -> tuple[Counter[_Share], Counter[str], int]:
        """What runs: calls of each share, mostly waiting messages of each queue; and how many have not begun."""
        calls, duties = Counter[_Share](), Counter[str]()
        with self._lock:
            for share, count in self._running.copy().items():
                if share[0] in self._duties:
                    duties[share[0]] += count
                else:
                    calls[share] = count
            return calls, duties, sum(map(len, self._waiting.values()))

    def _pop(self, share: _Share) -> Any:
        heap = self._waiting[share]
        item = heapq.heappop(heap)
        if not heap:
            del self._waiting[share]
        return item

    def _is_open(self, share: _Share) -> bool:
        """Whether a share has a free slot."""
        return self._running[share] < self._slots

    def _wake(self) -> None:
        """Make the loop look into the queue."""
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._look)

    def stop(self) -> None:
        """Take no more messages. The thread ends when it has finished all that were taken."""
        super().stop()
        self._loop.call_soon_threadsafe(self._end)

    def pause(self) -> None:
        """Take no more messages for now."""
        super().pause()
        self.paused_event.set()

    def resume(self) -> None:
        """Take messages again."""
        super().resume()
        self._wake()

    # --- the thread ---

    def run(self) -> None:
        """Finish the messages that the loop is done with."""
        self.running = True
        self.broker.emit_after("worker_thread_boot", self)
        while (ended := self._ended.get()) is not None:
            for one in ended:
                self._broker.ended = one
                self.process_message(one.message)
        self._broker.ended = None
        self.broker.emit_before("worker_thread_shutdown", self)

    # --- the loop ---

    def _look(self) -> None:
        # Reset first: a message that is added from now on wakes the loop again.
        self._called = False
        self._begin()

    def _begin(self) -> None:
        while not self.paused and self.running and (ready := self._next()) is not None:
            share, message = ready
            self._running[share] += 1
            # A context of its own: this may run in the context of another message that has just ended.
            task = self._loop.create_task(self._process(share, message), context=self._context.copy())
            self._tasks.add(task)

    def _next(self) -> tuple[_Share, MessageProxy] | None:
        with self._lock:
            waiting = self._waiting
            shares = [share for share in waiting if self._is_open(share)]
            if not shares:
                return None
            share = min(shares, key=lambda it: (self._running[it], waiting[it][0]))
            return share, self._pop(share).message

    async def _process(self, share: _Share, message: MessageProxy) -> None:
        try:
            self._gather(await self._run(message))
        finally:
            self._tasks.discard(asyncio.current_task())
            self._running[share] -= 1
            self._begin()

    async def _run(self, message: MessageProxy) -> _Ended:
        """Do what the stock worker thread does before a message ends."""
        try:
            self._broker.begin(message)
        except BaseException as error:
            return _Ended(message, refused=error)
        if message.failed:
            return _Ended(message)
        try:
            return _Ended(message, await self._actors[message.actor_name].run(*message.args, **message.kwargs))
        except BaseException as error:
            return _Ended(message, failed=error)

    def _gather(self, ended: _Ended) -> None:
        """Hand over messages that end together in one go: waking the thread costs as much as its work.

        While others wait for a slot, nothing hurries.
        """
        if not self._gathered:
            if self._waiting:
                self._loop.call_later(_GATHER_S, self._hand_over)
            else:
                self._loop.call_soon(self._hand_over)
        self._gathered.append(ended)

    def _hand_over(self) -> None:
        self._ended.put(self._gathered)
        self._gathered = []
        self._end()

    def _end(self) -> None:
        if not self.running and not self._tasks and not self._gathered:
            self._ended.put(None)
