"""Messages that the event loop takes itself, so that none keeps a thread waiting.

To cross over to the loop and back costs a message more than much of what it does there. So the loop takes what is
for it, within the budget of its queue, and one thread brings to an end what is done: it runs the message's actor,
as any worker thread would, and the actor finds the outcome here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from queue import SimpleQueue
from typing import Any, Final, Protocol, TypeAlias

from dramatiq.broker import MessageProxy
from dramatiq.worker import Worker, WorkerThread

#: Returns what the loop has returned for a message, or raises what it has raised.
Outcome: TypeAlias = Callable[[], Any]
#: How many messages may be under way for each place: who has given up its place may take a while to end.
_UNSETTLED: Final = 4

_outcome: ContextVar[Outcome | None] = ContextVar("outcome", default=None)


class LoopActor(Protocol):
    """What the messages of an actor are on the loop."""

    def takes(self, *args: Any, **kwargs: Any) -> bool:
        """Whether a message with these arguments is for the loop. Called in any thread."""

    async def run(self, leave: Callable[[], None], *args: Any, **kwargs: Any) -> Any:
        """Process a message. It gives up its place at the end, or earlier by ``leave``."""


class LoopQueue(Protocol):
    """The work queue of a worker, as the loop sees it."""

    def take(self, most: int) -> list[tuple[str, MessageProxy]]:
        """Take messages for the loop, as many as have a place, and which budget each belongs to."""

    def leave(self, name: str) -> None:
        """Give up a place."""


class OnLoop(WorkerThread):
    """Takes messages on the loop; the thread itself ends them. It is stopped as any worker thread is.

    ``places``: how many may be taken at once at most.
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
        self._queue: LoopQueue = worker.work_queue  # type: ignore[assignment]
        self._loop = loop
        self._actors = actors
        self._most = places * _UNSETTLED
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

    def wake(self) -> None:
        """Have the loop look into the queue."""
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._look)

    def stop(self) -> None:
        """Take no more. The thread ends once it has ended what was taken."""
        super().stop()
        self._loop.call_soon_threadsafe(self._end)

    def pause(self) -> None:
        """Take no more for now."""
        super().pause()
        self.paused_event.set()

    def resume(self) -> None:
        """Take messages again."""
        super().resume()
        self.wake()

    # --- the thread ---

    def run(self) -> None:
        """End what the loop is done with."""
        self.running = True
        self.broker.emit_after("worker_thread_boot", self)
        while (ended := self._ended.get()) is not None:
            for message, outcome in ended:
                _outcome.set(outcome)
                self.process_message(message)
        self.broker.emit_before("worker_thread_shutdown", self)

    # --- the loop ---

    def _look(self) -> None:
        # First: who comes from now on calls again.
        self._called = False
        self._take()

    def _take(self) -> None:
        if self.paused or not self.running:
            return
        for name, message in self._queue.take(self._most - len(self._tasks)):
            # Not in the context of the message whose end has led here.
            task = self._loop.create_task(self._process(name, message), context=self._context.copy())
            self._tasks.add(task)

    async def _process(self, name: str, message: MessageProxy) -> None:
        places = [name]

        def leave() -> None:
            if places:
                self._queue.leave(places.pop())
                self._take()

        try:
            result = await self._actors[message.actor_name].run(leave, *message.args, **message.kwargs)
        except BaseException as error:
            self._gather(message, _raising(error))
        else:
            self._gather(message, lambda: result)
        finally:
            self._tasks.discard(asyncio.current_task())
            if places:
                leave()
            else:
                self._take()

    def _gather(self, message: MessageProxy, outcome: Outcome) -> None:
        """Hand over together what ends together: to wake the thread costs as much as what it does."""
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
    """What the loop has found for the message that this thread is at; None if it has not been there."""
    found = _outcome.get()
    _outcome.set(None)
    return found


def _raising(error: BaseException) -> Outcome:
    def fail() -> Any:
        raise error

    return fail
