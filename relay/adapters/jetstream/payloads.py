"""The content of large payloads over NATS: workers of a context answer for it at ``relay.payloads.<context>``.

An answer is a part of the content. The worker makes a file of the whole first, so that the database does so once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from pydantic import Field

from relay.adapters.jetstream.query_client import RemoteQueries
from relay.bus import Query, QueryBus, Some
from relay.bus.errors import QueryFailed
from relay.bus.queries import Answerable
from relay.domain.errors import InvalidSubject, PayloadDamaged, PayloadMissing, PayloadTooLarge, PayloadUnreachable
from relay.domain.large import MAX_LARGE_BYTES, Reference
from relay.domain.querying import Raw, payloads_subject

#: How long an answer may take. The first one waits for the file.
QUERY_TIMEOUT: Final = timedelta(seconds=60)
#: How many bytes an answer has: a quarter of what NATS takes by default.
CHUNK_BYTES: Final = 256 * 1024
#: How many answers are asked for at a time.
_AHEAD: Final = 4
_ERRORS: Final = {it.code: it for it in (PayloadMissing, PayloadDamaged)}


class FindPayload(Query[Raw]):
    """A part of the payload of an event: so many bytes from ``offset`` on."""

    id: UUID
    size: int = Field(gt=0, le=MAX_LARGE_BYTES)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    offset: int = Field(ge=0)
    length: int = Field(gt=0, le=CHUNK_BYTES)


class NatsPayloads:
    """The payloads of another context."""

    def __init__(self, queries: RemoteQueries) -> None:
        self._queries = queries

    async def pieces(self, reference: Reference) -> AsyncGenerator[bytes, None]:
        """See the port."""
        yield await self._ask(reference, 0)
        asked: deque[asyncio.Task[bytes]] = deque()
        try:
            for offset in range(CHUNK_BYTES, reference.size, CHUNK_BYTES):
                asked.append(asyncio.create_task(self._ask(reference, offset)))
                if len(asked) == _AHEAD:
                    yield await asked.popleft()
            while asked:
                yield await asked.popleft()
        finally:
            for task in asked:
                task.cancel()

    async def _ask(self, reference: Reference, offset: int) -> bytes:
        length = min(CHUNK_BYTES, reference.size - offset)
        wanted = FindPayload(
            id=reference.id, size=reference.size, sha256=reference.sha256, offset=offset, length=length
        )
        try:
            found = await self._queries.ask(
                payloads_subject(reference.context),
                wanted,
                answer=Raw,
                timeout=QUERY_TIMEOUT.total_seconds(),
            )
        except QueryFailed as error:
            kind = _ERRORS.get(error.remote, PayloadUnreachable)
            raise kind(error.message, hint=f"does a worker of {reference.context} run?") from None
        except (InvalidSubject, PayloadTooLarge) as error:
            raise PayloadUnreachable(error.message) from None
        if not isinstance(found, Some) or len(found.value) != length:
            raise PayloadDamaged(f"a part of the payload of {reference.id} has not its length")
        content: bytes = found.value
        return content


class FetchedFiles(Protocol):
    """Makes files of payloads and reads them."""

    async def fetch(self, reference: Reference, /) -> Path:
        """The file of a payload. Raises Outage."""


def answering(context: str, payloads: FetchedFiles) -> dict[str, Answerable]:
    """What answers for the content of a context's payloads."""
    bus, subject = QueryBus(), payloads_subject(context)

    @bus.handles(FindPayload, subject=subject)
    async def find(asked: FindPayload) -> Raw:
        reference = Reference(context, asked.id, asked.size, asked.sha256)
        path = await payloads.fetch(reference)
        try:
            with path.open("rb", buffering=0) as file:
                file.seek(asked.offset)
                return Raw(file.read(asked.length))
        except OSError as error:
            raise PayloadUnreachable(f"its file cannot be read: {error.strerror}") from None

    return {subject: Answerable(FindPayload, bus, waits=True)}
