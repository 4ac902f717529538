"""Messages that the event loop takes itself, so that none keeps a thread waiting.

A hop from a thread to the loop and back often costs more than the work of the message. So the loop runs the actors
that are coroutines itself, middleware included, and one thread ends the messages that are done, as any worker
thread does: retries, acknowledgement, bookkeeping. A slot on the loop costs almost nothing. So each share has
slots of its own, and a share whose calls hang takes none from the others.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeAlias, cast

from dramatiq.broker import Broker, MessageProxy
from dramatiq.middleware import Middleware, ShutdownNotifications, TimeLimit
from dramatiq.worker import Worker, WorkerThread

from relay.adapters.shares import share_of

#: These interrupt the thread of a message that takes too long. Nobody may interrupt the event loop.
_INTERRUPTING: Final = (TimeLimit, ShutdownNotifications)


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


#: The queue of a message, and its share.
_Share: TypeAlias = tuple[str, str]


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

    def wants(self, message: MessageProxy) -> bool:
        """Whether a message is for the loop."""
        if (actor := self._actors.get(message.actor_name)) is None:
            return False
        try:
            return actor.takes(*message.args, **message.kwargs)
        except Exception:
            return False

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
        self._take()

    def _take(self) -> None:
        while not self.paused and self.running and (found := self._next()) is not None:
            share, message = found
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
            self._take()

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
        """Hand over messages that end together in one go: waking the thread costs as much as its work."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(ended)

    def _hand_over(self) -> None:
        self._ended.put(self._gathered)
        self._gathered = []
        self._end()

    def _end(self) -> None:
        if not self.running and not self._tasks and not self._gathered:
            self._ended.put(None)
