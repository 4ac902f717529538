"""TCP proxies that fail on demand: what a network, a firewall or a dying host does to connections.

All links share one thread with an event loop of its own; their methods may be called from any thread, and return
once the change holds. Connections that are open when a mode changes meet the new mode at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from chaos.proxy_connection import Conditions, Connection, Counters, Mode
from relay.devstack.ports import LOOPBACK, free_port

T = TypeVar("T")

_CALL_SECONDS: Final = 10.0


def at_port(url: str, port: int) -> str:
    """An address with another port, that of a link before the server. User and password stay."""
    parts = urlsplit(url)
    head, _, _ = parts.netloc.rpartition(":")
    return urlunsplit(parts._replace(netloc=f"{head}:{port}"))


class Link:
    """One way from a kind of client to one server, or to each node of a cluster. Made by `Proxy.link`."""

    def __init__(self, name: str, targets: Sequence[int], call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self.name = name
        #: Where clients connect, one for each target.
        self.ports = tuple(free_port() for _ in targets)
        self._targets = list(targets)
        self.counters = Counters()
        self._call = call
        self._conditions = Conditions()
        self._connections: set[Connection] = set()
        self._listeners: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        """Where clients connect, if there is one server."""
        return self.ports[0]

    @property
    def mode(self) -> Mode:
        """What happens to connections now."""
        return self._conditions.mode

    @property
    def open(self) -> int:
        """How many connections clients have open."""
        return len(self._connections)

    # --- modes ---

    def heal(self) -> None:
        """Pass everything on. Data that a black hole held back arrives now, as after a short partition."""
        self._call(self._change(Conditions()))

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._call(self._cut())

    def black_hole(self, *, replies_only: bool = False, requests_only: bool = False) -> None:
        """Accept connections and data but pass nothing on, not even the end of a connection.

        ``replies_only``: requests arrive and are executed, but replies do not. ``requests_only``: requests do not
        arrive, but replies do.
        """
        one_way = Mode.DEAF if replies_only else Mode.MUTE if requests_only else None
        self._call(self._change(Conditions(one_way or Mode.BLACK_HOLE)))

    def delay(self, seconds: float) -> None:
        """Delay everything by ``seconds`` more in each direction."""
        self._call(self._change(Conditions(Mode.DELAY, delay=seconds)))

    def cut_replies(self, after: int) -> None:
        """On each connection, open or new, pass ``after`` more bytes from the server, then reset it."""
        self._call(self._change(Conditions(Mode.CUT_REPLY, allowance=after)))

    def reset(self) -> None:
        """Reset every connection and keep the mode, like a firewall that lost its state."""
        self._call(self._reset())

    def retarget(self, target: int) -> None:
        """Lead to another server from now on; every connection is reset."""
        self._targets = [target]
        self.reset()

    # --- within the loop ---

    async def _open(self) -> None:
        if not self._listeners:
            self._listeners = [
                await asyncio.start_server(partial(self._accept, number), LOOPBACK, port, backlog=512)
                for number, port in enumerate(self.ports)
            ]

    async def _change(self, conditions: Conditions) -> None:
        self._conditions = conditions
        for connection in self._connections:
            connection.meet(conditions)
        await self._open()

    async def _cut(self) -> None:
        self._conditions = Conditions(Mode.CUT)
        for listener in self._listeners:
            listener.close()
        self._listeners = []
        await self._reset()

    async def _reset(self) -> None:
        for connection in list(self._connections):
            connection.reset()

    async def _close(self) -> None:
        await self._cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.counters.accepted += 1
        connection = Connection(reader, writer, self._conditions, self.counters)
        if self.mode is Mode.CUT:  # accepted by the system just before the listener closed
            connection.reset()
            return
        self._connections.add(connection)
        try:
            await connection.run(LOOPBACK, self._targets[number])
        finally:
            self._connections.discard(connection)


class Proxy:
    """The thread in which links work. A context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy", daemon=True)
        self._links: list[Link] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Reset all connections and end the thread; harmless when never started or already ended."""
        if self._thread.is_alive():
            for link in self._links:
                self._call(link._close())  # noqa: SLF001 - a link is the proxy's own
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        if not self._loop.is_closed():
            self._loop.close()

    def link(self, name: str, *targets: int) -> Link:
        """Open a link to a port of this machine, or to several, whether or not somebody listens there yet."""
        link = Link(name, targets, self._call)
        self._links.append(link)
        link.heal()
        return link

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_SECONDS)
