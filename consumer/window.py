"""The window of a subscription: the messages that JetStream has delivered and that nobody has acknowledged.

JetStream delivers no more than ``max_ack_pending`` of them. A message that fails keeps its place during its
back-off, so as many failing messages as there are places would stop the subscription. Their rows own the retries,
and are committed. So messages that wait for something other than a worker hold at most a part of the window
(`places`). The oldest above that are *let go*: acknowledged before they are handled (docs/decisions/0036).

The bound follows what the server says. All processes share it, because the rows know who holds a place.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from relay.domain.errors import RelayError
from relay.domain.facts import FactSink, MessagesLetGo
from relay.ports import ConsumerState, InboxWindow, JetStreamConsumer

#: However large a window is, messages that wait hold no more places: each is kept alive by signals of its own.
MOST_PLACES: Final = 500


def places(window: int | None) -> int:
    """Return how many places of a window messages may hold while no worker is all they wait for: half of them."""
    return MOST_PLACES if window is None else min(window // 2, MOST_PLACES)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowTimes:
    """How often the window is looked at, in seconds.

    ``pause``: between two looks, however many messages fail meanwhile. ``known``: for so long the size of the
    window is not asked for again. ``hangs``: a message that runs for longer counts as one that waits, while the
    window is full.
    """

    pause: float = 0.05
    known: float = 5.0
    hangs: timedelta = timedelta(seconds=1)


@dataclass(slots=True, kw_only=True)
class Window:
    """Keeps room in the window of one subscription. Use it on one event loop.

    ``kept``: whether everything keeps its place for now, because nothing new is to be delivered.
    """

    context: str
    subscription: str
    inbox: InboxWindow
    consumer: JetStreamConsumer
    facts: FactSink
    kept: Callable[[], bool] = lambda: False
    times: WindowTimes = WindowTimes()
    batch: int = 1_000
    _places: int = field(init=False, default=0)
    _read_at: float = field(init=False, default=-float("inf"))
    _wanted: bool = field(init=False, default=False)
    _open: bool = field(init=False, default=True)
    _relieved: bool = field(init=False, default=False)
    _looking: asyncio.Task[None] | None = field(init=False, default=None)

    def wait_begins(self) -> None:
        """Note that a message begins to wait: for its next attempt, or behind the failed head of its key.

        Soon after, the rows are looked at, once for all messages that were noted meanwhile.
        """
        self._wanted = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._wanted:
            self._wanted = False
            # In an outage, or without its consumer, the next run of recovery does this.
            with suppress(RelayError):
                await self.relieve()
            await asyncio.sleep(self.times.pause)

    async def end(self) -> None:
        """Wait for a look that is under way."""
        if self._looking is not None:
            await self._looking

    async def relieve(self) -> int:
        """Let the oldest waiting messages go that hold more places than they may; returns how many.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        if time.monotonic() - self._read_at > self.times.known:
            self.read(await self.consumer.state())
        return await self._let_go(None)

    async def nothing_came(self) -> None:
        """Do the same after a fetch without messages: maybe there is no place left, because calls hang.

        Raises BrokerUnreachable and DatabaseUnreachable.
        """
        if self._open:
            await self.seen(await self.consumer.state())

    def came(self) -> None:
        """Note that messages were delivered, and are in the inbox. If some had to go for them, look again."""
        self._open = True
        if self._relieved:
            self.wait_begins()

    async def seen(self, state: ConsumerState) -> None:
        """Do the same with the server's ``state``. If the window is full, messages that hang count too."""
        self.read(state)
        self._open = state.pending > 0
        if self._open:
            full = state.window is not None and state.pending >= state.window
            await self._let_go(self.times.hangs if full else None)

    def read(self, state: ConsumerState) -> None:
        """Take over the size of the window that the server knows."""
        self._places, self._read_at = places(state.window), time.monotonic()

    async def _let_go(self, hangs: timedelta | None) -> int:
        count = 0
        while not self.kept():
            replies = await self.inbox.let_go(self.subscription, self._places, self.batch, hangs)
            # The rows are committed first. If an acknowledgement is lost, the next run of recovery repeats it.
            await self.consumer.ack(replies)
            count += len(replies)
            if len(replies) < self.batch:
                break
        self._relieved = count > 0
        if count:
            self.facts(MessagesLetGo(context=self.context, subscription=self.subscription, count=count))
        return count
