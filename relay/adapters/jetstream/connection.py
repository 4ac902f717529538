"""One NATS connection for a process, kept alive for as long as the process lives.

nats-py reconnects by itself after a lost connection, but gives up for ever when the server answers
with an error it does not know. This wrapper starts over in that case too, so that a caller sees two
states only: a usable client, or BrokerUnreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from relay.domain.errors import BrokerUnreachable

_READY_TIMEOUT: Final = 2.0
_RESTART_DELAY: Final = 0.5


class NatsConnection:
    """Connects in the background; `client` waits for it a moment.

    ``on_up`` listeners run after each (re)connect, ``on_down`` after each loss, both in the event loop.
    ``url`` may list several servers of a cluster, separated by commas. Extra keyword arguments go to
    ``nats.connect`` (credentials, TLS).
    """

    def __init__(self, url: str, *, name: str = "jetrelay", **options: Any) -> None:
        self._url = url
        self._options = {"name": name, **options}
        self._client: Client | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._last_error = "not connected yet"
        self.on_up: list[Callable[[], None]] = []
        self.on_down: list[Callable[[], None]] = []

    def start(self) -> None:
        """Begin to connect. Returns at once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_connected())

    async def client(self) -> Client:
        """A connected client. Raises BrokerUnreachable when there is none within two seconds."""
        self.start()
        try:
            await asyncio.wait_for(self._up.wait(), _READY_TIMEOUT)
        except TimeoutError:
            raise BrokerUnreachable(f"NATS is not reachable: {self._last_error}") from None
        assert self._client is not None
        return self._client

    async def close(self) -> None:
        """Flush and close; what was published before is on its way."""
        self._closing = True
        if self._task is not None:
            self._task.cancel()
        if self._client is not None and not self._client.is_closed:
            await self._client.close()
        self._up.clear()

    async def _keep_connected(self) -> None:
        while not self._closing:
            closed = asyncio.Event()
            try:
                self._client = await self._connect(closed)
                self._note_up()
                await closed.wait()
            except (OSError, nats.errors.Error, TimeoutError) as error:
                self._last_error = str(error) or type(error).__name__
            self._note_down()
            await asyncio.sleep(_RESTART_DELAY)

    async def _connect(self, closed: asyncio.Event) -> Client:
        client = Client()

        async def on_closed() -> None:
            closed.set()

        async def on_disconnected() -> None:
            # What nats-py could not write yet, it would write after the reconnect: see pending_size.
            client._pending.clear()  # noqa: SLF001
            client._pending_data_size = 0  # noqa: SLF001
            self._note_down()

        async def on_reconnected() -> None:
            self._note_up()

        async def on_error(error: Exception) -> None:
            self._last_error = str(error) or type(error).__name__

        await client.connect(
            servers=[server.strip() for server in self._url.split(",")],
            connect_timeout=2,
            reconnect_time_wait=0.25,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=3,
            max_outstanding_pings=2,
            # Nothing is buffered while disconnected: a publish that leaves minutes later, behind the
            # back of the job that gave up on it, could overtake newer events.
            pending_size=0,
            closed_cb=on_closed,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            error_cb=on_error,
            **self._options,
        )
        return client

    def _note_up(self) -> None:
        self._up.set()
        for listener in self.on_up:
            listener()

    def _note_down(self) -> None:
        if self._up.is_set():
            self._up.clear()
            for listener in self.on_down:
                listener()
