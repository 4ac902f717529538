"""PostgresSubjectKeys: the keys of personal values in the database of their context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.row_operations import audit
from relay.domain.operators import Operator
from relay.ports.subject_keys import WrappedKey

#: The word for forgetting a person in the audit log.
FORGET: Final = "personal.forget"


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedKey:
    """A key of a forgotten person: when it was made and destroyed, and by whom, as far as that is known.

    ``already``: an earlier act has destroyed it.
    """

    id: UUID
    created_at: datetime
    forgotten_at: datetime
    by: str | None
    already: bool


class PostgresSubjectKeys:
    """The keys of one context. All raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        """See the port."""
        async with self._source() as conn:
            return [WrappedKey(*row) for row in await query(conn, "personal/by_id", ids=list(ids))]

    async def forget(self, subject: str, by: Operator) -> Sequence[DestroyedKey]:
        """Destroy the keys of a person, with a row in the audit log; returns all that are destroyed.

        Again it changes nothing, and returns the same.
        """
        async with self._source() as conn, conn.transaction():
            keys = await query(conn, "personal/forget", subject=subject)
            if new := [id for id, *_, now in keys if now]:
                await audit(conn, FORGET, new, replace(by, about={**by.about, "subject": subject}))
            actors = dict(await query(conn, "personal/forgotten_by", ids=[str(id) for id, *_ in keys]))
        return [
            DestroyedKey(id=id, created_at=made, forgotten_at=at, by=actors.get(str(id)), already=not now)
            for id, made, at, now in keys
        ]
