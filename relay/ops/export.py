"""What is held about a person: rows with a value that a key of this person encrypts, in all tables and archives.

Each key of the person is looked for, as text, in the payloads: block by block, so that no statement takes long. So
this reads all tables once. Nothing else is found: no field that was never declared personal.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.sql import statement
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.bootstrap import cold_store
from relay.bus import Query, QueryBus
from relay.commands.coldrows import ColdRows, archived_subject
from relay.commands.open_personal import OpenPersonal
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.envelopes import Envelope, decode
from relay.domain.errors import MalformedMessage, MasterKeyMissing, PersonalDamaged, RelayError, of_context
from relay.domain.foreign_json import read_json
from relay.domain.personal import Masters
from relay.envelopes import reader
from relay.ops.handlers import Sources
from relay.ports.subject_keys import WrappedKey
from relay.settings import ContextSettings, Settings

#: How many rows a statement looks at.
BLOCK: Final = 2_000
#: The kinds of rows, as they are called elsewhere, each with its statement and the id before all others.
_KINDS: Final[Mapping[str, tuple[str, UUID | int]]] = {
    "events": ("personal/held_events", UUID(int=0)),
    "inbox": ("personal/held_messages", UUID(int=0)),
    "dead-letters": ("personal/held_dead_letters", -1),
    "tasks": ("personal/held_tasks", UUID(int=0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRow:
    """A row about a person. ``payload``: in plain text if it can be; ``state``: plain, forgotten or encrypted."""

    context: str
    kind: str
    id: str
    at: Any
    type: str | None
    subscription: str | None
    state: str
    payload: Any


class FindHeld(Query[AsyncIterator[HeldRow]]):
    """What is held about a person in all contexts, row by row."""

    subject: str


class _KeysOfPerson:
    """The keys of the person, of all contexts."""

    def __init__(self, keys: Sequence[WrappedKey]) -> None:
        self._keys = {it.id: it for it in keys}

    async def find(self, ids: Sequence[UUID]) -> Sequence[WrappedKey]:
        """See the port. Keys of other persons count as missing master keys: their values stay encrypted."""
        if any(id not in self._keys for id in ids):
            raise MasterKeyMissing("a value of another person")
        return [self._keys[id] for id in ids]


class HeldRows:
    """Finds what is held about a person. ``block``: how many rows a statement looks at."""

    def __init__(self, settings: Settings, sources: Sources, block: int = BLOCK) -> None:
        self._settings, self._sources, self._block = settings, sources, block

    def answer(self, bus: QueryBus) -> QueryBus:
        """Register with the bus; returns it."""

        @bus.handles(FindHeld)
        async def find(query: FindHeld) -> AsyncIterator[HeldRow]:
            return self.of(query.subject)

        return bus

    async def keys(self, subject: str) -> list[WrappedKey]:
        """All keys of a person, in every context. Raises DatabaseUnreachable."""
        found: list[WrappedKey] = []
        for context in self._settings.contexts.values():
            async with self._sources(context) as source:
                async with source() as conn:
                    ids = [id for id, *_ in await query(conn, "personal/of_subject", subject=subject)]
                found += await PostgresSubjectKeys(source).find(ids)
        return found

    async def of(self, subject: str, only: str | None = None) -> AsyncIterator[HeldRow]:
        """The rows, context by context; ``only``: of this one.

        Raises UnknownContext, DatabaseUnreachable, StoreUnreachable and ArchiveDamaged.
        """
        keys = await self.keys(subject)
        if not keys:
            return
        values = _opening(self._settings.personal.value(), keys)
        contexts = self._settings.contexts
        for context in contexts.values() if only is None else [of_context(contexts, only)]:
            async with self._sources(context) as source:
                async for row in self._stored(source, keys):
                    yield await self._held(context, row, values)
                async for row in self._archived(context, source, keys):
                    yield await self._held(context, row, values)

    async def _stored(self, source: Source, keys: Sequence[WrappedKey]) -> AsyncIterator[dict[str, Any]]:
        patterns = [f"%{it.id}%" for it in keys]
        for kind, (name, first) in _KINDS.items():
            after: Any = first
            while after is not None:
                asked = {"after": after, "block": self._block, "keys": patterns}
                async with source() as conn, conn.cursor(row_factory=dict_row) as cursor:
                    await cursor.execute(statement(name), asked)
                    rows = await cursor.fetchall()
                after = rows[-1]["id"] if rows else None
                for row in rows:
                    if not row["ends"]:
                        yield {**row, "kind": kind}

    async def _archived(
        self, context: ContextSettings, source: Source, keys: Sequence[WrappedKey]
    ) -> AsyncIterator[dict[str, Any]]:
        if (store := cold_store(context.archive)) is None:
            return
        tables = PostgresArchive(source, context.name)
        cold = ColdRows(tables, store, partial(archived_subject, context.routing))
        words = [str(it.id) for it in keys]
        for kind in ArchiveKind:
            fits = partial(_mentions, words)
            async for row in cold.read(kind, RowFilter(), fits, lambda _done, _of: None):
                yield {
                    "kind": f"archive {kind.value}",
                    "id": row[kind.key],
                    "at": row.get("occurred_at") or row.get("received_at") or row.get("created_at"),
                    "type": row.get("event_type") or row.get("type"),
                    "subscription": row.get("subscription"),
                    "subject": row.get("subject"),
                    "headers": row.get("headers"),
                    "body": _body(row) if kind is ArchiveKind.INBOX else None,
                    "payload": row.get("payload"),
                }

    async def _held(
        self, context: ContextSettings, row: Mapping[str, Any], values: OpenPersonal | None
    ) -> HeldRow:
        payload = self._payload(context, row)
        state = "encrypted"
        if values is not None:
            try:
                payload, forgotten = await values.open(payload)
                state = "forgotten" if forgotten else "plain"
            except (MasterKeyMissing, PersonalDamaged):
                payload = self._payload(context, row)
        return HeldRow(
            context=context.name,
            kind=row["kind"],
            id=str(row["id"]),
            at=row["at"],
            type=row["type"],
            subscription=row["subscription"],
            state=state,
            payload=payload,
        )

    def _payload(self, context: ContextSettings, row: Mapping[str, Any]) -> Any:
        body = row["body"]
        if body is None:
            return row.get("payload")
        if (name := row["subscription"]) is not None and (envelope := self._envelope(context.name, name)):
            try:
                return decode(envelope, row["subject"], row["headers"] or {}, body).payload
            except MalformedMessage:
                pass
        return read_json(body)

    def _envelope(self, context: str, subscription: str) -> Envelope | None:
        try:
            known = subscription in self._settings.contexts[context].subscriptions
            return reader(self._settings, context, subscription) if known else None
        except RelayError:
            return None


def _opening(masters: Masters | None, keys: Sequence[WrappedKey]) -> OpenPersonal | None:
    if masters is None:
        return None
    from relay.adapters import aes_gcm  # noqa: PLC0415 - an extra

    known = _KeysOfPerson(keys)
    return OpenPersonal(masters, lambda _: known, aes_gcm.unwrap, aes_gcm.decrypting)


def _body(row: Mapping[str, Any]) -> bytes | None:
    """The body of an archived message, which PostgreSQL has written in hexadecimal digits."""
    text = row.get("body")
    return bytes.fromhex(text[2:]) if isinstance(text, str) and text.startswith("\\x") else None


def _mentions(words: Sequence[str], row: Mapping[str, Any]) -> bool:
    body = _body(row)
    text = str(row.get("payload")) if body is None else body.decode("utf-8", "replace")
    return any(word in text for word in words)
