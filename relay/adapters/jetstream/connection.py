"""One NATS connection for a process, kept alive for as long as the process lives.

nats-py reconnects by itself after a lost connection. But it gives up for ever when the server answers with an
error it does not know. This wrapper starts over in that case too. So a caller sees two states only: a usable
client, or BrokerUnreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import nats.errors
from nats.js import JetStreamContext

from relay.adapters.jetstream.client import RelayClient
from relay.adapters.jetstream.refusals import Refusal, telling, unreachable
from relay.concurrency import end
from relay.domain.errors import BrokerRefused, BrokerUnreachable

_READY_TIMEOUT_S: Final = 2.0
_RESTART_DELAY_S: Final = 0.5
_CLOSE_TIMEOUT_S: Final = 2.0
#: A connection without permission to receive answers is closed after this time, in seconds.
_DEAF_TIMEOUT_S: Final = 5.0

#: For the connection of one command.
_CONNECT_TIMEOUT_S: Final = 2
#: Including the first attempt. The refusal of credentials does not always arrive at the first attempt: see
#: `telling`.
_MAX_ATTEMPTS: Final = 4
_ANSWER_TIMEOUT_S: Final = 3


class NatsConnection:
    """Connects in the background; `client` waits a moment for the connection.

    Listeners run in the event loop: ``on_up`` after each (re)connect, ``on_down`` after each loss, ``on_refused``
    when the server refuses a subject. ``url`` may list several servers of a cluster, separated by commas. Extra
    keyword arguments go to ``nats.connect`` (credentials, TLS).
    """

    def __init__(self, url: str, *, name: str = "jetrelay", **options: Any) -> None:
        self._url = url
        self._options = {"name": name, **options}
        self._client: RelayClient | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._last_error: Exception = nats.errors.Error("not connected yet")
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []
        self.on_refused: list[Callable[[Refusal], None]] = []

    def start(self) -> None:
        """Start to connect. Returns at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    @property
    def is_up(self) -> bool:
        """Whether there is a connection now."""
        return self._up.is_set()

    async def client(self, *, within: float = _READY_TIMEOUT_S) -> RelayClient:
        """A connected client.

        Raises BrokerUnreachable when there is none ``within`` so many seconds, two at most. Raises BrokerRefused
        when the server does not accept our credentials, or does not let us receive answers.
        """
        self.start()
        if not self._up.is_set():
            try:
                await asyncio.wait_for(self._up.wait(), min(within, _READY_TIMEOUT_S))
            except TimeoutError:
                raise unreachable(self._last_error) from None
        assert self._client is not None
        if (deaf := self._client.refusals.inbox) is not None:
            # A caller that tries again at once must leave the loop time to connect anew.
            await asyncio.sleep(0)
            raise BrokerRefused(str(deaf))
        return self._client

    @asynccontextmanager
    async def asking(self, what: str) -> AsyncIterator[RelayClient]:
        """Lend the client for a request. Its errors become BrokerUnreachable, which begins with ``what`` failed.

        BrokerRefused if the server refused a permission a moment ago.
        """
        client = await self.client()
        try:
            yield client
        except (nats.errors.Error, OSError) as error:
            if (refusal := client.refusals.latest()) is not None:
                raise BrokerRefused(f"{what}: {refusal}") from error
            raise BrokerUnreachable(f"{what}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        """Flush and close. Everything published before is sent, unless the server takes no more."""
        self._closing = True
        if self._task is not None:
            await end(self._task)
        if self._client is not None and not self._client.is_closed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._client.close(), _CLOSE_TIMEOUT_S)
        self._up.clear()

    async def _keep_connected(self) -> None:
        while not self._closing:
            closed = asyncio.Event()
            try:
                self._client = await self._connect(closed)
                self._note_up()
                await closed.wait()
            except (OSError, nats.errors.Error, TimeoutError) as error:
                self._last_error = telling(self._last_error, error)
            self._note_down()
            await asyncio.sleep(_RESTART_DELAY_S)

    async def _connect(self, closed: asyncio.Event) -> RelayClient:
        client = RelayClient(self._url)

        async def on_closed() -> None:
            closed.set()

        async def on_disconnected() -> None:
            # nats-py would send these unwritten bytes after the reconnect: see pending_size.
            client._pending.clear()  # noqa: SLF001
            client._pending_data_size = 0  # noqa: SLF001
            self._note_down()

        async def on_reconnected() -> None:
            self._note_up()

        async def on_error(error: Exception) -> None:
            self._last_error = telling(self._last_error, error)

        client.on_refused = partial(self._note_refused, client)
        await client.connect(
            connect_timeout=2,
            reconnect_time_wait=0.25,
            max_reconnect_attempts=-1,
            ping_interval=3,
            max_outstanding_pings=2,
            # Nothing is buffered while disconnected. A publish that leaves minutes later, after its job
            # gave up on it, could overtake newer events.
            pending_size=0,
            closed_cb=on_closed,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            error_cb=on_error,
            **self._options,
        )
        return client

    def _note_refused(self, client: RelayClient, refusal: Refusal) -> None:
        if refusal.inbox:
            # The subscription stays dead even after the permission is granted. So connect anew soon.
            loop = asyncio.get_running_loop()
            loop.call_later(_DEAF_TIMEOUT_S, lambda: loop.create_task(client.close()))
        for listener in self.on_refused:
            listener(refusal)

    def _note_up(self) -> None:
        # Why earlier attempts failed explains no later loss.
        self._last_error = nats.errors.Error("the connection was lost")
        self._up.set()
        for listener in self.on_up:
            listener()

    def _note_down(self) -> None:
        if self._up.is_set():
            self._up.clear()
            for listener in self.on_down:
                listener()


@asynccontextmanager
async def connect_once(url: str, **options: Any) -> AsyncIterator[JetStreamContext]:
    """Connect for one command. ``options`` go to ``nats.connect``.

    Raises BrokerUnreachable after a few seconds instead of trying without end, BrokerRefused when a permission is
    missing.
    """
    causes: list[Exception] = []
    client = RelayClient(url)

    async def note(error: Exception) -> None:
        causes.append(telling(causes[-1], error) if causes else error)

    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S * 2):
            await client.connect(
                name="relay-cli",
                allow_reconnect=False,
                max_reconnect_attempts=_MAX_ATTEMPTS,
                reconnect_time_wait=0.1,
                connect_timeout=_CONNECT_TIMEOUT_S,
                error_cb=note,
                **options,
            )
    except (OSError, nats.errors.Error, TimeoutError) as error:
        raise unreachable(causes[-1] if causes else error) from error
    try:
        yield client.jetstream(timeout=_ANSWER_TIMEOUT_S)
    except (BrokerUnreachable, nats.errors.Error, TimeoutError) as error:
        if (refusal := client.refusals.latest()) is not None:
            raise BrokerRefused(str(refusal)) from error
        raise
    finally:
        await client.close()
