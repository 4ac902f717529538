"""The PubAck ledger in outbox_events, and the ids in the inbox. Reconciliation compares both with the streams."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from relay.adapters.postgres.pool import Pool, query
from relay.commands.reconcile import AuditedStream, LedgerEntry, Losses
from relay.domain.identity import Identity


def _losses(count: int, ids: Sequence[str] | None) -> Losses:
    return Losses(count, tuple(Identity.of(id).value for id in ids or ()))


class PostgresLedger:
    """PublishLedger and ReceivedMessages on one context's database."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def streams(self) -> Sequence[str]:
        return [name for (name,) in await self._all("outbox/ledger_streams")]

    async def highest(self, stream: str) -> tuple[int, datetime]:
        [(seq, at)] = await self._all("outbox/ledger_highest", stream=stream)
        return seq, at

    async def beyond(self, stream: str, state: AuditedStream, before: datetime, *, republish: bool) -> Losses:
        [(count, ids)] = await self._all(
            "outbox/republish_beyond" if republish else "outbox/ledger_beyond",
            stream=stream,
            last_seq=state.last_seq,
            before=before,
            max_age=state.max_age,
            window=state.duplicate_window,
        )
        return _losses(count, ids)

    async def page(
        self, stream: str, state: AuditedStream, first: int, last: int, before: datetime, limit: int
    ) -> Sequence[LedgerEntry]:
        rows = await self._all(
            "outbox/ledger_page",
            stream=stream,
            first=first,
            last=last,
            before=before,
            max_age=state.max_age,
            limit=limit,
        )
        return [LedgerEntry(*row) for row in rows]

    async def reused(self, stream: str, state: AuditedStream, limit: int) -> tuple[int, int] | None:
        [(first, last)] = await self._all(
            "outbox/ledger_reused", stream=stream, max_age=state.max_age, limit=limit
        )
        return None if first is None else (first, last)

    async def erased(self, stream: str, entries: Sequence[LedgerEntry]) -> set[UUID]:
        places = {"ids": [entry.id for entry in entries], "seqs": [entry.seq for entry in entries]}
        return {id for (id,) in await self._all("outbox/erased", stream=stream, **places)}

    async def republish(self, stream: str, state: AuditedStream, lost: Sequence[LedgerEntry]) -> Losses:
        [(count, ids)] = await self._all(
            "outbox/republish",
            stream=stream,
            ids=[entry.id for entry in lost],
            seqs=[entry.seq for entry in lost],
            window=state.duplicate_window,
        )
        return _losses(count, ids)

    async def known(self, ids: Collection[UUID], others: Collection[str] = ()) -> set[UUID]:
        return {id for (id,) in await self._all("inbox/known", ids=list(ids), others=list(others))}

    async def held(self, subscription: str, stream: str, seqs: Collection[int]) -> Mapping[int, str | None]:
        which = {"subscription": subscription, "stream": stream, "seqs": list(seqs)}
        return dict(await self._all("inbox/held", **which))

    async def _all(self, name: str, **parameters: Any) -> list[Any]:
        async with self._pool.connection() as conn:
            return await query(conn, name, **parameters)
