"""Fetches the content of large payloads into files, and reads it from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypeVar

from relay.concurrency import ByteBudget
from relay.domain.errors import PayloadUnreachable
from relay.domain.large import Reference
from relay.ports.payloads import PayloadSource

Result = TypeVar("Result")

#: How many payloads a process fetches at a time. Each holds a few pieces in memory.
_FETCHES: Final = 4
#: For how long a payload waits for room in memory, in seconds. A worker that waits holds its claim meanwhile.
_PATIENCE_S: Final = 10.0


class Part(Protocol):
    """Takes the content of a payload."""

    def write(self, piece: bytes, /) -> None:
        """Add what comes next. Raises PayloadDamaged."""


class StoredPayloads(Protocol):
    """The content that this host has."""

    def find(self, reference: Reference, /) -> Path | None:
        """The file of a payload, unless it must be fetched."""

    def use(self, reference: Reference, work: Callable[[bytes], Result], /) -> Result | None:
        """What ``work`` makes of the content; None if it must be fetched. Raises PayloadUnreachable."""

    def read(self, reference: Reference, into: memoryview, /) -> bool:
        """The same for who has room for it; False if it must be fetched."""

    def making(self, reference: Reference, /) -> AbstractContextManager[Part]:
        """Take the content, which is checked at the end. Raises PayloadDamaged and PayloadUnreachable."""


@dataclass
class FetchPayloads:
    """One for a process, on its event loop. ``source``: where the payload of a reference is.

    ``room``: how many bytes of payloads may be in memory at a time.
    """

    files: StoredPayloads
    source: Callable[[Reference], PayloadSource]
    room: ByteBudget
    patience: float = _PATIENCE_S
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_FETCHES))
    _fetching: dict[str, asyncio.Lock] = field(default_factory=dict)

    async def fetch(self, reference: Reference) -> Path:
        """The file of a payload, fetched if need be, once for all who wait. Raises Outage."""
        lock = self._fetching.setdefault(reference.name, asyncio.Lock())
        try:
            async with lock:
                if (found := self.files.find(reference)) is None:
                    async with self._slots:
                        await self._fetch(reference)
                    found = self.files.find(reference)
        finally:
            if not lock.locked():
                self._fetching.pop(reference.name, None)
        if found is None:
            raise PayloadUnreachable("a payload was fetched and is gone", hint="is payloads.disk large enough?")
        return found

    async def _fetch(self, reference: Reference) -> None:
        with self.files.making(reference) as part:
            async with aclosing(self.source(reference).pieces(reference)) as pieces:
                async for piece in pieces:
                    part.write(piece)

    @asynccontextmanager
    async def room_for(self, reference: Reference) -> AsyncIterator[None]:
        """Fetch a payload, then have room in memory for it. Raises Outage."""
        await self.fetch(reference)
        async with self.room.take(reference.size, self.patience) as taken:
            if not taken:
                raise PayloadUnreachable("too many large payloads are in memory", hint="it comes to its turn")
            yield

    async def use(self, reference: Reference, work: Callable[[bytes], Result]) -> Result:
        """Give the content to ``work``, in a thread. Nothing keeps it behind that. Raises Outage."""
        return await self._read(reference, lambda: self.files.use(reference, work))

    async def between(self, before: bytes, reference: Reference, after: bytes) -> bytearray:
        """The content between two texts, without another copy of it. Raises Outage."""
        content, begin = bytearray(len(before) + reference.size + len(after)), len(before)
        content[:begin] = before
        content[begin + reference.size :] = after

        def fill() -> bool | None:
            with memoryview(content) as whole, whole[begin : begin + reference.size] as view:
                return self.files.read(reference, view) or None

        await self._read(reference, fill)
        return content

    async def _read(self, reference: Reference, read: Callable[[], Result | None]) -> Result:
        for _ in range(2):
            if (result := await asyncio.to_thread(read)) is not None:
                return result
            await self.fetch(reference)  # others needed its room, or the file was changed
        raise PayloadUnreachable("a payload cannot be read", hint="is payloads.disk large enough?")
