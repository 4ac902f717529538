"""Messages that the event loop takes itself, so that none keeps a thread waiting.

A hop from a thread to the loop and back often costs more than the work of the message. So the loop takes its
messages directly, and one thread finishes those that are done: it runs the message's actor, as any worker thread
does, and the actor finds the outcome here. A place on the loop costs almost nothing. So each share has places of
its own, and a share whose calls hang takes none from the others.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from dramatiq.broker import MessageProxy
from dramatiq.worker import Worker, WorkerThread

from relay.adapters.shares import share_of

#: Returns the loop's result for a message, or raises the loop's error.
Outcome: TypeAlias = Callable[[], Any]
#: How many messages may be under way for each place. A message that has left its place may take a while to end.
_UNSETTLED: Final = 4

_outcome: ContextVar[Outcome | None] = ContextVar("outcome", default=None)


class LoopActor(Protocol):
    """Processes the messages of an actor on the loop."""

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a message with these arguments is for the loop. Called in any thread."""

    async def run(self, leave: Callable[[], None], *args: Any, **kwargs: Any) -> Any:
        """Process a message. It gives up its place at the end, or earlier by ``leave``."""


#: The queue of a message, and its share.
_Share: TypeAlias = tuple[str, str]


class OnLoop(WorkerThread):
    """Takes messages on the loop; the thread itself finishes them. It is stopped as any worker thread is.

    ``places``: how many messages of a share may run at once. The share with the fewest running is next. Then order
    is the stock worker's.
    """

    def __init__(
        self, worker: Worker, loop: asyncio.AbstractEventLoop, actors: Mapping[str, LoopActor], places: int
    ) -> None:
        super().__init__(
            broker=worker.broker,
            consumers=worker.consumers,
            work_queue=worker.work_queue,
            worker_timeout=worker.worker_timeout,
        )
        self._loop = loop
        self._actors = actors
        self._places = places
        self._waiting: dict[_Share, list[Any]] = {}
        self._lock = threading.Lock()
        self._running = Counter[_Share]()
        self._unsettled = Counter[_Share]()
        self._context = copy_context()
        self._called = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended: SimpleQueue[list[tuple[MessageProxy, Outcome]] | None] = SimpleQueue()
        self._gathered: list[tuple[MessageProxy, Outcome]] = []

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

    def rest(self) -> Any:
        """A message that was never taken. Raises Empty when there is none."""
        with self._lock:
            for share in self._waiting:
                return self._pop(share)
        raise Empty

    def _pop(self, share: _Share) -> Any:
        heap = self._waiting[share]
        item = heapq.heappop(heap)
        if not heap:
            del self._waiting[share]
        return item

    def _is_open(self, share: _Share) -> bool:
        """Whether a share has a place."""
        places = self._places
        return self._running[share] < places and self._unsettled[share] < places * _UNSETTLED

    def _wake(self) -> None:
        """Have the loop look into the queue."""
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._look)

    def stop(self) -> None:
        """Take no more. The thread ends once it has finished all that was taken."""
        super().stop()
        self._loop.call_soon_threadsafe(self._end)

    def pause(self) -> None:
        """Take no more for now."""
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
            for message, outcome in ended:
                _outcome.set(outcome)
                self.process_message(message)
        self.broker.emit_before("worker_thread_shutdown", self)

    # --- the loop ---

    def _look(self) -> None:
        # Reset first: a message that is added from now on calls again.
        self._called = False
        self._take()

    def _take(self) -> None:
        while not self.paused and self.running and (found := self._next()) is not None:
            share, message = found
            self._running[share] += 1
            self._unsettled[share] += 1
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
        places = [share]

        def leave() -> None:
            if places:
                self._running[places.pop()] -= 1
                self._take()

        try:
            result = await self._actors[message.actor_name].run(leave, *message.args, **message.kwargs)
        except BaseException as error:
            self._gather(message, _raising(error))
        else:
            self._gather(message, lambda: result)
        finally:
            self._tasks.discard(asyncio.current_task())
            self._unsettled[share] -= 1
            if places:
                leave()
            else:
                self._take()

    def _gather(self, message: MessageProxy, outcome: Outcome) -> None:
        """Hand over messages that end together in one go: waking the thread costs as much as its work."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append((message, outcome))

    def _hand_over(self) -> None:
        self._ended.put(self._gathered)
        self._gathered = []
        self._end()

    def _end(self) -> None:
        if not self.running and not self._tasks and not self._gathered:
            self._ended.put(None)


def outcome() -> Outcome | None:
    """The loop's outcome for the message of this thread; None if the message was not on the loop."""
    found = _outcome.get()
    _outcome.set(None)
    return found


def ended(*_: Any) -> Any:
    """Be the actor of messages that only the loop processes."""
    found = outcome()
    return None if found is None else found()


def _raising(error: BaseException) -> Outcome:
    def fail() -> Any:
        raise error

    return fail
