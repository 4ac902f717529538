"""The least that speaks NATS: one write per batch of publishes, and a count of the answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Final, Self
from urllib.parse import urlsplit

_INBOX: Final = "_INBOX.bench"


class Wire:
    """A connection that publishes with a reply subject per batch and counts the PubAcks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._missing: dict[bytes, int] = {}
        self._done: dict[bytes, asyncio.Event] = {}
        self._task = asyncio.create_task(self._read())
        self._batches = 0

    @classmethod
    async def connect(cls, url: str) -> Self:
        """Connect and subscribe to the answers."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**22)
        await reader.readline()
        options = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "user": parts.username,
            "pass": parts.password,
        }
        writer.write(b"CONNECT " + json.dumps(options).encode() + f"\r\nSUB {_INBOX}.* 1\r\n".encode())
        return cls(reader, writer)

    async def publish(self, messages: Iterable[tuple[str, str, bytes]]) -> None:
        """Publish (subject, id, body) each and wait until all are acknowledged."""
        self._batches += 1
        token = str(self._batches).encode()
        parts = []
        for subject, identity, body in messages:
            head = f"NATS/1.0\r\nNats-Msg-Id: {identity}\r\n\r\n".encode()
            line = f"HPUB {subject} {_INBOX}.{self._batches} {len(head)} {len(head) + len(body)}\r\n"
            parts += (line.encode(), head, body, b"\r\n")
        done = self._done[token] = asyncio.Event()
        self._missing[token] = len(parts) // 4
        self._writer.write(b"".join(parts))
        await done.wait()

    async def _read(self) -> None:
        """Answers look like ``MSG _INBOX.bench.7 1 30`` and a line of JSON."""
        while line := await self._reader.readline():
            if line.startswith(b"PING"):
                self._writer.write(b"PONG\r\n")
            elif line.startswith(b"MSG"):
                answer = await self._reader.readline()
                if b'"error"' in answer:
                    raise SystemExit(f"refused: {answer!r}")
                self._count(line.split(b" ", 2)[1].rpartition(b".")[2])
            elif line.startswith((b"-ERR", b"HMSG")):
                # A message with headers says that nobody listens to the subject.
                raise SystemExit(f"nats-server says {line!r}")
        raise SystemExit("nats-server closed the connection")

    def _count(self, token: bytes) -> None:
        self._missing[token] -= 1
        if not self._missing[token]:
            del self._missing[token]
            self._done.pop(token).set()

    async def close(self) -> None:
        """Close the connection."""
        self._task.cancel()
        self._writer.close()
        await self._writer.wait_closed()
