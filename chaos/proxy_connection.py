"""One connection through a proxy: two flows of bytes, each under the current conditions of the link."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from typing import Final

_CHUNK: Final = 65_536
#: How many pieces may be under way in one direction; the rest stays with the sender, as with a full TCP window.
_UNDER_WAY: Final = 256
_RESET: Final = struct.pack("ii", 1, 0)


class Mode(Enum):
    """What a link does to connections; see the methods of `proxy.Link`."""

    PASS = "pass"  # noqa: S105 - no password
    CUT = "cut"
    BLACK_HOLE = "black-hole"
    DEAF = "deaf"
    MUTE = "mute"
    DELAY = "delay"
    CUT_REPLY = "cut-reply"


@dataclass(frozen=True, slots=True)
class Conditions:
    """A mode and its figures: seconds of delay in each direction, bytes that a reply is allowed."""

    mode: Mode = Mode.PASS
    delay: float = 0.0
    allowance: int = 0


@dataclass(slots=True)
class Counters:
    """What a link has seen. ``reset``: by us. ``unreachable``: the server took no connection."""

    accepted: int = 0
    reset: int = 0
    unreachable: int = 0
    requested: int = 0
    """Bytes passed on to the server."""
    replied: int = 0
    """Bytes passed on to clients."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """What arrived and when; without data the sender has closed, or reset when ``broken``."""

    data: bytes
    at: float
    broken: bool = False


class Connection:
    """A client's connection and the one to the server that stands for it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        conditions: Conditions,
        counters: Counters,
    ) -> None:
        self._client = (reader, writer)
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._conditions = conditions
        self._counters = counters
        self._allowance = conditions.allowance
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    def meet(self, conditions: Conditions) -> None:
        """Apply other conditions from now on."""
        self._conditions = conditions
        self._allowance = conditions.allowance
        self._changed.set()
        self._changed = asyncio.Event()

    def reset(self) -> None:
        """End both sides with a reset: the peers lose what they have not read yet."""
        if not self._over.is_set():
            self._counters.reset += 1
            self._end()

    async def run(self, host: str, port: int) -> None:
        """Pass bytes on until both sides have closed, or one is reset."""
        flows = asyncio.create_task(self._flow(host, port))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait({flows, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (flows, over):
                task.cancel()
            await asyncio.gather(flows, over, return_exceptions=True)
            self._close()

    # --- how ---

    async def _flow(self, host: str, port: int) -> None:
        await self._reachable()
        try:
            self._server = await asyncio.open_connection(host, port)
        except OSError:
            self._counters.unreachable += 1
            self._end()
            return
        reader, writer = self._client
        server_reader, server_writer = self._server
        for sender in (writer, server_writer):
            # So drain() waits until the system has everything. A reset throws away what it does not have.
            sender.transport.set_write_buffer_limits(high=0)
        await asyncio.gather(
            self._direction(reader, server_writer, reply=False), self._direction(server_reader, writer, reply=True)
        )

    async def _reachable(self) -> None:
        """Wait until a connection can get through to the server."""
        while self._conditions.mode in {Mode.BLACK_HOLE, Mode.MUTE}:
            await self._changed.wait()

    async def _direction(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, reply: bool) -> None:
        under_way: asyncio.Queue[_Piece] = asyncio.Queue(_UNDER_WAY)
        arriving = asyncio.create_task(_take(reader, under_way))
        try:
            while await self._deliver(await under_way.get(), writer, reply=reply):
                pass
        except OSError:  # the receiver is gone: the sender learns it the hard way
            self._end()
        finally:
            arriving.cancel()

    async def _deliver(self, piece: _Piece, writer: asyncio.StreamWriter, *, reply: bool) -> bool:
        """Pass a piece on when it is due; returns False after the last one."""
        await self._due(piece.at, reply=reply)
        if piece.broken:
            self._end()
            return False
        if not piece.data:
            writer.write_eof()
            return False
        data = self._allowed(piece.data) if reply else piece.data
        if reply:
            self._counters.replied += len(data)
        else:
            self._counters.requested += len(data)
        writer.write(data)
        await writer.drain()
        if len(data) < len(piece.data):
            self.reset()
            return False
        return True

    async def _due(self, at: float, *, reply: bool) -> None:
        """Wait until a piece that arrived at ``at`` may go on, whatever the mode changes to meanwhile."""
        loop = asyncio.get_running_loop()
        while True:
            mode, changed = self._conditions.mode, self._changed
            if mode is Mode.BLACK_HOLE or mode is (Mode.DEAF if reply else Mode.MUTE):
                await changed.wait()
            elif mode is Mode.DELAY and (left := at + self._conditions.delay - loop.time()) > 0:
                await _wait_at_most(changed, left)
            else:
                return

    def _allowed(self, data: bytes) -> bytes:
        if self._conditions.mode is not Mode.CUT_REPLY:
            return data
        passed = data[: self._allowance]
        self._allowance -= len(passed)
        return passed

    def _end(self) -> None:
        """Reset both sides: the system sends a RST when a socket without linger is closed."""
        self._over.set()
        for _, writer in filter(None, (self._client, self._server)):
            found: socket.socket | None = writer.get_extra_info("socket")
            if found is not None and not writer.transport.is_closing() and found.fileno() >= 0:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()

    def _close(self) -> None:
        for _, writer in filter(None, (self._client, self._server)):
            writer.close()


async def _take(reader: asyncio.StreamReader, under_way: asyncio.Queue[_Piece]) -> None:
    """Queue what arrives, with its time; the last piece says how the sender ended."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(_CHUNK):
            await under_way.put(_Piece(data, loop.time()))
        await under_way.put(_Piece(b"", loop.time()))
    except OSError:
        await under_way.put(_Piece(b"", loop.time(), broken=True))


async def _wait_at_most(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
