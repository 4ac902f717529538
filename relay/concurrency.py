"""What asyncio and threads lack: whether a task is cancelled, threads that may hang, slots, and group commit."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from relay.domain.errors import Outage

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
_log = logging.getLogger("relay")

#: The exit status of a process whose event loop cannot go on: an internal error (EX_SOFTWARE).
LOOP_ENDED: Final = 70
#: How many items one statement takes at most.
_MAX_ITEMS: Final = 100
#: A task that is cancelled and does not end is cancelled again after this time, in seconds.
_CANCEL_AGAIN_S: Final = 0.5
#: A thread ends after this time without work, in seconds.
_IDLE_S: Final = 10.0


def is_cancelled() -> bool:
    """Whether the current task has been cancelled.

    The CancelledError alone does not show this. On Python 3.11, `asyncio.wait_for` loses a cancellation that
    arrives together with the result, and the clients of the servers use it. Also, a CancelledError may belong to
    another task.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_ours(error: BaseException) -> bool:
    """Whether an error that a user's code seems to have raised is meant for the current task itself.

    Such errors are our own cancellation, and the end of a coroutine that is thrown away. Anything else is a
    failure of that code, also SystemExit and KeyboardInterrupt: signals come to the main thread only. For these
    two asyncio would end the event loop.
    """
    # By its type: what an error says of its class is code of an application.
    kind = type(error)
    if issubclass(kind, asyncio.CancelledError):
        return is_cancelled()
    return issubclass(kind, GeneratorExit) and not _in_task()


def _in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop runs
        return False


async def apart(work: Awaitable[Result]) -> Result:
    """Await an application's coroutine in a task of its own, and raise what it raises.

    So it can cancel itself only, also by an `asyncio.timeout` that it never leaves.
    """

    async def run() -> tuple[Result | None, BaseException | None]:
        try:
            return await work, None
        # Of some errors asyncio would end the event loop.
        except BaseException as error:
            return None, error

    result, error = await asyncio.get_running_loop().create_task(run())
    if error is not None:
        try:
            raise error
        finally:
            del error
    return cast("Result", result)


async def end(task: asyncio.Task[Any], *, again_after: float = _CANCEL_AGAIN_S) -> None:
    """Cancel a task and wait until it has ended. Its errors are dropped.

    After ``again_after`` seconds it cancels again, because a task that lost the cancellation may wait for ever.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=again_after)
    if not task.cancelled():
        task.exception()


# --- threads for plain functions ---


class LoopThread(Protocol):
    """The event loop of the process, from other threads."""

    loop: asyncio.AbstractEventLoop

    def run_coroutine(self, coro: Coroutine[Any, Any, Result], /) -> Result:
        """Run a coroutine on the loop and wait for it."""


class Threads:
    """Daemon threads for plain functions. They are reused: a new thread for each call would block the event loop.

    A thread that hangs does not keep the process from stopping.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], None]) -> None:
        """Run ``work``, which must not raise, in a thread."""
        with self._lock:
            another = self._idle == 0
            if not another:
                self._idle -= 1
        if another:
            threading.Thread(target=self._serve, name="jetrelay-handler", daemon=True).start()
        self._work.put(work)

    def _serve(self) -> None:
        while True:
            try:
                work = self._work.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._idle:
                        self._idle -= 1
                        return
                continue
            work()
            with self._lock:
                self._idle += 1


class Slots:
    """Runs at most ``size`` plain functions in threads at once. Functions past their time-out count too."""

    def __init__(self, size: int) -> None:
        self.slots = asyncio.Semaphore(size)
        self._threads = Threads()

    async def in_thread(self, call: Callable[[], Result], failed: Callable[[BaseException], Result]) -> Result:
        """Run ``call`` in a thread. Its slot is free again when the call ends, even after its time-out."""
        await self.slots.acquire()
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()
        around = contextvars.copy_context()

        def finish(result: Result) -> None:
            self.slots.release()
            if not outcome.done():
                outcome.set_result(result)

        def run() -> None:
            try:
                result = around.run(call)
            except BaseException as error:
                result = failed(error)
            if not loop.is_closed():
                loop.call_soon_threadsafe(finish, result)

        try:
            self._threads.run(run)
        except RuntimeError:
            self.slots.release()
            raise
        return await outcome


# --- fair slots ---


class Slot:
    """A task's use of a slot: it waits for the slot, then has it. ``cost``: set it to the work that was done."""

    def __init__(self, name: str, level: int) -> None:
        self.name, self.level, self.cost = name, level, 0
        #: Whether it counts, so that others wait.
        self.counts = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class FairSlots:
    """At most ``size`` tasks of an event loop have a slot at once. Names share the costs evenly.

    This is start-time fair queuing: each name has an account of its costs. The lowest account, plus the cost of
    its last turn, is next. After a pause an account starts at the level of the last one served.

    A slot that is kept for longer than ``long_after`` seconds is no longer counted: its task waits for a server,
    and others may go on.
    """

    def __init__(self, size: int, *, long_after: float = 0.25) -> None:
        self._free, self.long_after = size, long_after
        self._waiting: list[Slot] = []
        self._paid: dict[str, int] = {}
        self._last: dict[str, int] = {}
        #: The account of the name that had the last turn, as it was before that turn.
        self._level = 0

    @asynccontextmanager
    async def slot(self, name: str) -> AsyncIterator[Slot]:
        """Wait for a slot on account of ``name``, and have it."""
        slot = Slot(name, self._level)
        self._waiting.append(slot)
        self._grant()
        long: asyncio.TimerHandle | None = None
        try:
            await slot.granted
            long = asyncio.get_running_loop().call_later(self.long_after, self._give_back, slot)
            yield slot
        finally:
            if long is not None:
                long.cancel()
                self._last[name] = slot.cost
                self._paid[name] = self._account(slot) + slot.cost
            self._give_back(slot)

    def _account(self, slot: Slot) -> int:
        return max(slot.level, self._paid.get(slot.name, 0))

    def _due(self, slot: Slot) -> int:
        return self._account(slot) + self._last.get(slot.name, 0)

    def _give_back(self, slot: Slot) -> None:
        self._free += slot.counts
        slot.counts = False
        self._grant()

    def _grant(self) -> None:
        # Some tasks may no longer wait.
        self._waiting = [it for it in self._waiting if not it.granted.done()]
        while self._free and self._waiting:
            # Of equal ones, the one that has waited longest.
            slot = min(self._waiting, key=self._due)
            self._waiting.remove(slot)
            self._level = max(self._level, self._account(slot))
            self._free -= 1
            slot.counts = True
            slot.granted.set_result(None)


# --- room in memory ---


class ByteBudget:
    """So many bytes may be in use at a time. Who waits longest is next, however much that is."""

    def __init__(self, most: int) -> None:
        self._free = self.most = most
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, size: int, patience: float) -> AsyncIterator[bool]:
        """Have ``size`` bytes, or all there are; False if they are not free within ``patience`` seconds."""
        size = min(size, self.most)
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, mine))
        self._grant()
        try:
            await asyncio.wait([mine], timeout=patience)
            granted = mine.done()
            if not granted:
                mine.cancel()
                self._grant()
            yield granted
        finally:
            if mine.done() and not mine.cancelled():
                self._free += size
            mine.cancel()
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            size, next_ = self._waiting[0]
            if not next_.done():
                if size > self._free:
                    return
                self._free -= size
                next_.set_result(None)
            self._waiting.popleft()


# --- group commit ---


class Batcher(Generic[Item, Answer]):
    """Gives items to ``together``, one batch after the other. Items that arrive meanwhile share the next batch.

    ``together`` answers any number of items. It must not wait for a lock, because all items would wait with it. It
    decides itself what to answer for a locked row. If it fails, all its items fail. ``pause``: how long, in
    seconds, the first item waits for more. Use it only if no caller waits for the answer. ``busy``: the same after
    a batch of several items, if that is longer. ``wait`` does the waiting.
    """

    def __init__(
        self,
        together: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        pause: float = 0.0,
        busy: float = 0.0,
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._together, self._wait = together, wait
        self._loop = loop
        self._pause, self._busy = pause, max(pause, busy)
        self._last = 0
        self._waiting: deque[tuple[Item, asyncio.Future[Answer] | None]] = deque()
        self._called = False
        self._running: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """Return the answer to an item, on the event loop. Raises what ``together`` raises."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._begin()
        return await future

    def tell(self, item: Item) -> None:
        """Take an item without returning an answer, from any thread. Errors are logged, except for outages."""
        self._waiting.append((item, None))
        if not self._called:
            self._called = True
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._begin)

    async def drain(self) -> None:
        """Wait until every item is answered. No thread may tell any more."""
        while self._waiting or self._running is not None:
            self._begin()
            await asyncio.gather(self._running or asyncio.sleep(0), return_exceptions=True)

    def _begin(self) -> None:
        if self._running is None:
            # In a task of its own: a caller that is cancelled does not cancel the statement of others.
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._more():
                if self._pause and len(self._waiting) < _MAX_ITEMS:
                    await self._wait(self._busy if self._last > 1 else self._pause)
                self._last = min(_MAX_ITEMS, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(self._last)]
                await self._answer(
                    [(item, future) for item, future in batch if future is None or not future.done()]
                )
        finally:
            self._called = False
            self._running = None

    def _more(self) -> bool:
        """Whether any item waits. While one does, nobody who tells another need call the loop."""
        self._called = bool(self._waiting)
        # Asked again: an item that came before the answer was no has called nobody.
        return self._called or bool(self._waiting)

    async def _answer(self, batch: Sequence[tuple[Item, asyncio.Future[Answer] | None]]) -> None:
        if not batch:
            return
        try:
            answers = await self._together([item for item, _ in batch])
        except BaseException as error:
            self._fail([future for _, future in batch], error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if future is not None and not future.done():
                future.set_result(answer)

    def _fail(self, futures: Sequence[asyncio.Future[Answer] | None], error: BaseException) -> None:
        if None in futures and isinstance(error, Exception) and not isinstance(error, Outage):
            _log.error("rows that are finished cannot be settled", exc_info=error)
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(error)
