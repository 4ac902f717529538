"""PostgresPayloads: the content of large payloads, in the rows of the outbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.sql import statement
from relay.domain.errors import PayloadMissing
from relay.domain.large import Reference

#: How many bytes a piece has.
PIECE_BYTES: Final = 256 * 1024


class PostgresPayloads:
    """The payloads of one context. The server makes the text once, and this holds a piece of it at a time."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def pieces(self, reference: Reference) -> AsyncGenerator[bytes, None]:
        """See the port. Raises DatabaseUnreachable, SchemaMissing and PayloadMissing."""
        terms, found = {"id": reference.id, "size": PIECE_BYTES}, False
        async with self._source() as conn, conn.cursor(binary=True) as cursor:
            async for (piece,) in cursor.stream(statement("outbox/payload"), terms):
                found = True
                yield piece
        if not found:
            raise PayloadMissing(
                f"the outbox of {reference.context} has no event {reference.id}",
                hint="was it deleted, or archived?",
            )
