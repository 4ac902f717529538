"""A way to PostgreSQL that counts what is asked of it: statements by their text, and round trips."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

from chaos.proxy import at_port

#: How much of a statement tells it from others.
_PREFIX = 70
_LITERAL = re.compile(r"'[^']*'")


@dataclass
class Wire:
    """What has gone to ``target`` by way of ``port``.

    ``statements``: how often each was carried out, prepared or not. ``round_trips``: how often the server has said
    that it is ready for more; a pipeline counts once, a login not at all.
    """

    target: int
    port: int = 0
    statements: Counter[str] = field(default_factory=Counter)
    round_trips: int = 0

    def through(self, url: str) -> str:
        """The address of a database by this way."""
        parts = urlsplit(at_port(url, self.port))
        return urlunsplit(parts._replace(query="sslmode=disable&gssencmode=disable"))

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass everything on, both ways, until either side ends."""
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        asked, answered = _Requests(self.statements), _Answers()
        ways = [
            asyncio.ensure_future(_pass(reader, server_writer, asked.read)),
            asyncio.ensure_future(_pass(server_reader, writer, lambda data: self._answered(answered, data))),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        server_writer.close()
        writer.close()

    def _answered(self, answers: _Answers, data: bytes) -> None:
        self.round_trips += answers.read(data)


async def _pass(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, look: Callable[[bytes], object]
) -> None:
    try:
        while data := await reader.read(65_536):
            look(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        return


class _Messages:
    """Puts messages together: a letter, a length that counts itself, the rest."""

    def __init__(self, *, head: int = 1) -> None:
        self._buffer = bytearray()
        self._head = head  # the first thing a client says has no letter

    def split(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._buffer += data
        while len(self._buffer) >= self._head + 4:
            end = self._head + int.from_bytes(self._buffer[self._head : self._head + 4])
            if len(self._buffer) < end:
                return
            yield bytes(self._buffer[: self._head]), bytes(self._buffer[self._head + 4 : end])
            del self._buffer[:end]
            self._head = 1


class _Requests:
    """What one client says."""

    def __init__(self, statements: Counter[str]) -> None:
        self._messages = _Messages(head=0)
        self._statements = statements
        self._prepared: dict[bytes, bytes] = {}

    def read(self, data: bytes) -> None:
        for letter, body in self._messages.split(data):
            match letter:
                case b"P":
                    name, text, _ = body.split(b"\0", 2)
                    self._prepared[name] = text
                case b"B":
                    _, name, _ = body.split(b"\0", 2)
                    self._note(self._prepared[name])
                case b"Q":
                    for text in body.rstrip(b"\0").split(b";"):
                        self._note(text)

    def _note(self, text: bytes) -> None:
        statement = _LITERAL.sub("''", " ".join(text.decode().split()))
        if statement:
            self._statements[statement[:_PREFIX]] += 1


class _Answers:
    """What a server says to one client."""

    def __init__(self) -> None:
        self._messages = _Messages()
        self._logging_in = True

    def read(self, data: bytes) -> int:
        """How many round trips end with ``data``."""
        ready = sum(letter == b"Z" for letter, _ in self._messages.split(data))
        if ready and self._logging_in:
            self._logging_in = False
            return ready - 1
        return ready


@contextmanager
def wire(target: int) -> Iterator[Wire]:
    """Count on a port of its own what goes to ``target``. In a thread, as clients may block theirs."""
    way, loop, up = Wire(target), asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()

    async def serve() -> None:
        async with await asyncio.start_server(way.connect, "127.0.0.1", 0) as server:
            way.port = server.sockets[0].getsockname()[1]
            up.set()
            await over.wait()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        thread = threading.Thread(target=runner.run, args=(serve(),), name="wire")
        thread.start()
        up.wait()
        try:
            yield way
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join()
