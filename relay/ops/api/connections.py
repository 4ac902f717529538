"""What connections may cost: who sends or reads slowly, or not at all, stops nobody else."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Anybody can send what is no HTTP: that is no line of the log.
_log = logging.getLogger("relay.ops.http")
_log.setLevel(logging.ERROR)
#: How much the system holds of an answer, in bytes.
_BUFFER: Final = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Times are in seconds, sizes in bytes.

    ``connections``: beyond these, the one that has waited longest for a request is closed. ``head_s``: how long
    the head of a request may take, also on a new connection. ``rest_s``: how long a body is taken that nobody
    wants any more. ``stalled_s``: so long may a reader need for ``progress`` bytes. ``unsent``: how much all
    readers have not yet read of their answers.
    """

    connections: int = 500
    head_s: float = 10.0
    rest_s: float = 5.0
    stalled_s: float = 30.0
    progress: int = 64 * 1024
    unsent: int = 64 * 1024**2


class _Phase(Enum):
    """What a connection does. Only ``WORKING`` waits for us; a request has limits of its own."""

    HEAD = "waits for the head of a request"
    REST = "sends a body after the answer"
    SENDING = "reads an answer"
    WORKING = "waits for an answer"


class Connection(H11Protocol):
    """One connection, with the time since when it has made no progress."""

    config: BoundedConfig
    connections: set[Connection]  # type: ignore[assignment]
    since = 0.0
    _seen: tuple[_Phase, object] | None = None
    _left = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, and close another one if there are too many."""
        self.logger = _log
        super().connection_made(transport)
        self.since = self.loop.time()
        # With larger ones the system takes a megabyte at a time, and a slow reader seems to stand still.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)
        # What was closed just now is still in the set.
        there = [it for it in self.connections if not it.transport.is_closing()]
        if len(there) > self.config.limits.connections:
            waiting = [it for it in there if it.phase is _Phase.HEAD]
            min(waiting, key=lambda it: it.since).transport.abort()

    @property
    def unsent(self) -> int:
        """How many bytes of answers wait for the reader, besides those that the operating system holds."""
        return self.transport.get_write_buffer_size()

    @property
    def phase(self) -> _Phase:
        """What the connection does now."""
        if self.unsent:
            return _Phase.SENDING
        if self.conn.their_state is h11.IDLE:
            return _Phase.HEAD
        ended = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        return _Phase.REST if ended and self.conn.their_state is h11.SEND_BODY else _Phase.WORKING

    def resume_writing(self) -> None:
        """Take note that most of what was written has been read."""
        super().resume_writing()
        # What is written next may be as large.
        self._seen = self._seen and (_Phase.WORKING, self.cycle)

    def look(self) -> None:
        """Close the connection if it does nothing for too long."""
        limits, now, unsent = self.config.limits, self.loop.time(), self.unsent
        phase, before = (self.phase, self.cycle), self._seen
        moved = unsent <= max(0, self._left - limits.progress)
        if phase != before or (phase[0] is _Phase.SENDING and moved):
            self._seen, self._left = phase, unsent
            # A new connection may be older than the first look.
            self.since = now if before else self.since
        match phase[0]:
            case _Phase.HEAD if now - self.since > limits.head_s:
                self.transport.close()
            case _Phase.REST if now - self.since > limits.rest_s:
                self.transport.close()
            case _Phase.SENDING if now - self.since > limits.stalled_s:
                self.transport.abort()


class BoundedConfig(uvicorn.Config):
    """A server's configuration, with limits."""

    def __init__(self, app: Any, limits: ConnectionLimits, **more: Any) -> None:
        super().__init__(app, http=Connection, ws="none", backlog=limits.connections, **more)
        self.limits = limits


class BoundedServer(uvicorn.Server):
    """A server that looks at its connections ten times a second."""

    config: BoundedConfig

    async def on_tick(self, counter: int) -> bool:
        """Close what has waited for too long, and the slowest readers if too much waits for them."""
        connections: Iterable[Any] = self.server_state.connections
        readers = list[Connection]()
        for it in [*connections]:
            it.look()
            if it.unsent and not it.transport.is_closing():
                readers.append(it)
        waiting = sum(it.unsent for it in readers)
        for it in sorted(readers, key=lambda it: it.since):
            if waiting <= self.config.limits.unsent:
                break
            it.transport.abort()
            waiting -= it.unsent
        return await super().on_tick(counter)


def fitting(limits: ConnectionLimits) -> ConnectionLimits:
    """Return limits that leave half of the files which this process may open to others than connections."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.connections if files == resource.RLIM_INFINITY else files // 2
    return replace(limits, connections=min(limits.connections, most))
