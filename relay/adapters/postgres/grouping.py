"""Group commit on our side: requests that arrive while a statement runs share the next statement."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_Waiting: TypeAlias = "tuple[Item, asyncio.Future[Answer]]"

#: How many items one statement takes at most.
_LIMIT: Final = 100


class Grouping(Generic[Item, Answer]):
    """Answers items. Items that are asked at the same time share one statement. For the callers of one event loop.

    ``together`` answers any number of items. It must not wait for a lock, because all items would wait with it. It
    decides itself what to answer for a locked row. If it fails, all its items fail. No item waits for others: if
    nothing is running, it starts at once.
    """

    def __init__(self, together: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._together = together
        self._waiting: list[_Waiting[Item, Answer]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """Return the answer to an item. Raises what ``together`` raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._running is None:
            # In a task of its own: a caller that is cancelled does not cancel the statement of others.
            self._running = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting[:_LIMIT], self._waiting[_LIMIT:]
                await self._answer([it for it in group if not it[1].done()])
        finally:
            self._running = None

    async def _answer(self, group: Sequence[_Waiting[Item, Answer]]) -> None:
        if not group:
            return
        try:
            answers = await self._together([item for item, _ in group])
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)
