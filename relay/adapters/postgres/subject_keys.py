"""PostgresSubjectKeys: the keys of personal values in the database of their context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeAlias
from uuid import UUID

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.domain.operators import Operator
from relay.ports.subject_keys import WrappedKey

#: The words for what is done to keys, in the audit log.
FORGET: Final = "personal.forget"
ROTATE: Final = "personal.rotate"
#: How many keys a statement wraps anew.
BATCH: Final = 500
#: Wraps a key anew: its id, the name of its master key and its bytes. Raises MasterKeyMissing, PersonalDamaged.
Rewrap: TypeAlias = Callable[[UUID, str, bytes], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedKey:
    """A key of a forgotten person: when it was made and destroyed, and by whom, as far as that is known.

    ``already``: an earlier act has destroyed it. ``deed``: the number of the act in the audit log.
    """

    id: UUID
    created_at: datetime
    forgotten_at: datetime
    by: str | None
    already: bool
    deed: int | None = None


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
            return await _told(conn, keys)

    async def of(self, subject: str) -> tuple[Sequence[DestroyedKey], int]:
        """The keys of a person that are destroyed, and how many others there are."""
        async with self._source() as conn:
            keys = await query(conn, "personal/of_subject", subject=subject)
            gone = [(*it, False) for it in keys if it[2] is not None]
            return await _told(conn, gone), len(keys) - len(gone)

    async def rotate(self, master: str, rewrap: Rewrap, by: Operator, batch: int = BATCH) -> AsyncIterator[int]:
        """Wrap all keys with another master key; yields how many were wrapped, batch by batch.

        Each batch is a statement of its own, so that it can be stopped at any time, and goes on when it is
        repeated. At the end it writes a row in the audit log.
        """
        count, formers = 0, list[str]()
        async with self._source() as conn:
            formers = [name for name, _ in await query(conn, "personal/masters") if name != master]
        for former in formers:
            after: UUID | None = UUID(int=0)
            while after is not None:
                after, done = await self._rewrap(former, after, master, rewrap, batch)
                count += done
                yield done
        if count:
            async with self._source() as conn, conn.transaction():
                about = {**by.about, "master": master, "keys": count}
                await audit(conn, ROTATE, [], replace(by, about=about))

    async def _rewrap(
        self, former: str, after: UUID, master: str, rewrap: Rewrap, batch: int
    ) -> tuple[UUID | None, int]:
        """Wrap one batch anew; returns its last key, None if there is no more, and how many were wrapped."""
        async with self._source() as conn:
            rows = await query(conn, "personal/others", master=former, after=after, limit=batch)
            if not rows:
                return None, 0
            new = {
                "master": master,
                "ids": [id for id, *_ in rows],
                "formers": [name for _, name, _ in rows],
                "wrapped": [rewrap(id, name, wrapped) for id, name, wrapped in rows],
            }
            done = await conn.execute(statement("personal/rewrap"), new)
        return rows[-1][0], done.rowcount


async def _told(conn: Connection, keys: Sequence[Sequence[Any]]) -> Sequence[DestroyedKey]:
    """Destroyed keys, with the acts that did it."""
    found = await query(conn, "personal/forgotten_by", ids=[str(id) for id, *_ in keys]) if keys else []
    acts = {key: (actor, deed) for key, actor, deed in found}
    return [
        DestroyedKey(id=id, created_at=made, forgotten_at=at, by=by, deed=deed, already=not now)
        for id, made, at, now in keys
        for by, deed in [acts.get(str(id), (None, None))]
    ]
