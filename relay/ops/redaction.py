"""Forgets what was never declared personal: finds values everywhere, and redacts them (`relay forget --scan`).

Tables first, then streams, and again until nothing is found: so what was in work meanwhile is redacted, too. Then
the archive, when no row that enters it has a value any more. All of it may be repeated: what is done is not found
again.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID, uuid4

from relay.adapters.jetstream.connection import NatsConnection
from relay.adapters.jetstream.erasing import NatsErasure, StreamConsumer, texts_of
from relay.adapters.postgres.archive import PostgresArchive
from relay.adapters.postgres.pool import Source
from relay.adapters.postgres.redacting import PLACES, PostgresRedaction
from relay.bootstrap import cold_store
from relay.commands.adopt import Held
from relay.commands.reconcile import Stored
from relay.commands.rewrite_archive import RedactArchive
from relay.domain.errors import InvalidRequest, MalformedMessage, RelayError, of_context
from relay.domain.foreign_json import json_of
from relay.domain.large import Reference
from relay.domain.operators import Operator
from relay.domain.redaction import Redaction
from relay.ops.handlers import Sources
from relay.settings import ContextSettings, Settings

#: How often all is looked through while something is found, and the pause in between, in seconds.
ROUNDS: Final = 12
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 15.0
#: What a guess costs. A certificate must not help to find out what was redacted.
_N, _R, _P = 2**14, 8, 1
#: A context, and a table, stream or part of the archive there.
PlaceName: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldValue:
    """A row, message or archived row that has a value, with the parts of it that have one."""

    context: str
    place: str
    id: str | None
    type: str | None
    parts: Mapping[str, str]


@dataclass(slots=True)
class Findings:
    """How many rows and messages have a value, by place, and what could not be looked at, and why."""

    counts: Counter[PlaceName] = field(default_factory=Counter)
    left: dict[PlaceName, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """How many in all."""
        return self.counts.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What was redacted. ``digest``: that of the values and ``salt``, by scrypt.

    ``counts``: rows and messages by place. ``again``: events that were published again without the values, by
    stream. ``left``: what still has a value, or could not be looked at, and why. ``earlier``: when the same was
    redacted before, and by whom.
    """

    id: str
    at: datetime
    by: str
    salt: str
    digest: str
    type: str | None
    paths: Sequence[str]
    counts: Mapping[PlaceName, int]
    again: Mapping[str, int]
    left: Mapping[PlaceName, str]
    earlier: Sequence[tuple[datetime, str]]

    @property
    def complete(self) -> bool:
        """Whether nothing is left."""
        return not self.left


class _StreamMessage(NamedTuple):
    seq: int
    subject: str
    event_id: UUID | None
    #: Of a message that has no value itself: to the payload that it stands for.
    reference: Reference | None = None


@dataclass(slots=True)
class _Round:
    """What one look through all has changed, and what keeps others busy."""

    changed: int = 0
    waiting: int = 0
    left: dict[PlaceName, str] = field(default_factory=dict)


class Redactor:
    """Finds and redacts values in all contexts of the settings. ``rounds``: how often it looks at most."""

    def __init__(
        self,
        settings: Settings,
        sources: Sources,
        nats: NatsConnection,
        wanted: Redaction,
        only: str | None = None,
        rounds: int = ROUNDS,
    ) -> None:
        """``only``: this context. Raises UnknownContext."""
        chosen = settings.contexts.values() if only is None else [of_context(settings.contexts, only)]
        self._contexts = {it.name: it for it in chosen}
        self._sources, self._wanted, self._rounds, self._alone = sources, wanted, rounds, only is not None
        self._erasure, self._fetched = NatsErasure(nats), settings.payloads.folder

    # --- to find ---

    async def held(self, findings: Findings) -> AsyncGenerator[HeldValue, None]:
        """All that has a value, one by one; ``findings`` gets what could not be looked at. Changes nothing."""
        async with self._opened(findings.left) as opened:
            for name, tables in opened.items():
                for table in PLACES:
                    async for row in tables.find(table):
                        yield HeldValue(context=name, place=table, id=row.id, type=row.type, parts=row.columns)
            for stream, owners in (await self._streams(opened)).items():
                async for it in self._held_messages(stream, owners, findings.left):
                    yield it
            for name in opened:
                async for it in self._held_archived(name, findings.left):
                    yield it

    async def look(self) -> Findings:
        """How much has a value."""
        findings = Findings()
        async for it in self.held(findings):
            findings.counts[it.context, it.place] += 1
        return findings

    async def _held_messages(
        self, stream: str, owners: Sequence[str], left: dict[PlaceName, str]
    ) -> AsyncIterator[HeldValue]:
        def make(message: Held) -> HeldValue | None:
            if self._message(message) is None:
                return None
            return HeldValue(
                context=owners[0] if owners else "",
                place=f"stream {stream}",
                id=str(message.seq),
                type=message.subject,
                parts={"headers": str(dict(message.headers)), "body": message.body.decode(errors="replace")},
            )

        try:
            async for found in self._erasure.find(stream, make):
                for it in found:
                    yield it
        except RelayError as error:
            left[owners[0] if owners else "", f"stream {stream}"] = error.message

    async def _held_archived(self, name: str, left: dict[PlaceName, str]) -> AsyncIterator[HeldValue]:
        async with self._archive(name, left) as archive:
            if archive is None:
                return
            async for manifest, row in archive.find():
                yield HeldValue(
                    context=name,
                    place=f"archive {manifest.kind}",
                    id=row[manifest.kind.key],
                    type=row.get(manifest.kind.type),
                    parts={it: _text(value) for it, value in row.items() if self._may_have(value)},
                )

    # --- to redact ---

    async def redact(self, by: Operator) -> Certificate:
        """Redact all, and write a certificate into the audit log of each context. Raises InvalidRequest."""
        if by.note is not None and self._wanted.text(by.note) != by.note:
            raise InvalidRequest("has a value that is to be forgotten", field="--note")
        salt = secrets.token_hex(16)
        done = Certificate(
            id=str(uuid4()),
            at=datetime.now(UTC),
            by=by.actor,
            salt=salt,
            digest=self._digest(salt),
            type=self._wanted.type,
            paths=self._wanted.paths,
            counts={},
            again={},
            left={},
            earlier=[],
        )
        counts, again, left = Counter[PlaceName](), Counter[str](), dict[PlaceName, str]()
        unopened: dict[PlaceName, str] = {}
        async with self._opened(unopened) as opened:
            done = replace(done, earlier=await self._earlier(opened))
            unopened |= await self._certify(opened, done, by, "begun")
            audited = {name: it for name, it in opened.items() if (name, "audit_log") not in unopened}
            try:
                left = await self._until_clean(audited, by, counts, again)
            except BaseException:
                left[("", "all")] = "was interrupted"
                raise
            finally:
                done = replace(done, counts=dict(counts), again=dict(again), left=unopened | left)
                unwritten = await asyncio.shield(self._certify(audited, done, by, "done"))
        return replace(done, left={**done.left, **unwritten})

    async def _until_clean(
        self,
        opened: Mapping[str, PostgresRedaction],
        by: Operator,
        counts: Counter[PlaceName],
        again: Counter[str],
    ) -> dict[PlaceName, str]:
        """Returns what is left, and why."""
        archived = False
        working: dict[PlaceName, set[str]] = {}
        look = _Round()
        for number in range(self._rounds):
            if number:
                await asyncio.sleep(
                    min(_PAUSE_S * 2 ** (number - 1), _LONGEST_PAUSE_S) if look.waiting else _PAUSE_S
                )
            look = _Round()
            await self._redact_tables(opened, look, counts, working)
            await self._refer(opened, look, counts)
            for stream, owners in (await self._streams(opened)).items():
                await self._redact_stream(stream, {it: opened[it] for it in owners}, look, counts, again)
            if look.changed or look.waiting:
                continue
            if not archived:
                archived = True
                await asyncio.to_thread(self._drop_fetched, look, counts)
                await self._redact_archives(opened, by, look, counts)
            if not look.changed:
                return look.left
        if not archived:
            await asyncio.to_thread(self._drop_fetched, look, counts)
            await self._redact_archives(opened, by, look, counts)
        if look.waiting or look.changed:
            look.left.setdefault(("", "all"), "others still write or work with values: run it again")
        return look.left

    async def _redact_tables(
        self,
        opened: Mapping[str, PostgresRedaction],
        look: _Round,
        counts: Counter[PlaceName],
        working: dict[PlaceName, set[str]],
    ) -> None:
        for name, tables in opened.items():
            for table in PLACES:
                place = (name, table)
                if working.get(place):
                    working[place] = await tables.working(table, working[place])
                try:
                    found = await tables.redact(table)
                except RelayError as error:
                    look.left[place] = error.message
                    continue
                if found.rows:
                    counts[place] += found.rows
                working.setdefault(place, set()).update(found.working)
                look.changed += found.rows
                look.waiting += found.locked + len(working[place])
                if found.refused is not None:
                    look.left[place] = found.refused
                elif found.left:
                    look.left[place] = f"{found.left} rows keep a value in a key"
                elif found.locked:
                    look.left[place] = f"{found.locked} rows are locked by others"
                elif working[place]:
                    look.left[place] = f"{len(working[place])} are in work with what they were before"

    async def _redact_stream(
        self,
        stream: str,
        owners: Mapping[str, PostgresRedaction],
        look: _Round,
        counts: Counter[PlaceName],
        again: Counter[str],
    ) -> None:
        place = (next(iter(owners), ""), f"stream {stream}")
        kept = 0
        try:
            consumers = await self._erasure.consumers(stream) if owners else []
            async for candidates in self._erasure.find(stream, self._message_or_reference):
                found = await self._without_current(owners, candidates)
                if not owners:
                    kept += len(found)
                    continue
                ready, published = await self._noted(stream, owners, found, consumers)
                await self._erasure.erase(stream, ready)
                look.changed += len(ready)
                look.waiting += len(found) - len(ready)
                kept += len(found) - len(ready)
                if ready:
                    counts[place] += len(ready)
                if published:
                    again[stream] += published
        except RelayError as error:
            look.left[place] = error.message
        if kept and owners:
            look.left[place] = f"{kept} messages wait for a consumer, or for a transaction: run it again"
        elif kept:
            look.left[place] = f"{kept} messages: no context of these settings has this stream"

    async def _without_current(
        self, owners: Mapping[str, PostgresRedaction], found: Sequence[_StreamMessage]
    ) -> Sequence[_StreamMessage]:
        """Leave out messages that refer to a large payload which is what they say: it was not redacted."""
        changed = await self._changed(owners, [it.reference for it in found if it.reference is not None])
        return [it for it in found if it.reference is None or it.reference in changed]

    @staticmethod
    async def _changed(
        owners: Mapping[str, PostgresRedaction], references: Sequence[Reference]
    ) -> Mapping[Reference, Reference]:
        """What to refer to instead, where a large payload was redacted."""
        changed: dict[Reference, Reference] = {}
        for name, tables in owners.items():
            own = [it for it in references if it.context == name]
            found = await tables.changed(own) if own else {}
            changed |= {it: found[it.id] for it in own if it.id in found and it.sha256 != found[it.id].sha256}
        return changed

    async def _refer(
        self, opened: Mapping[str, PostgresRedaction], look: _Round, counts: Counter[PlaceName]
    ) -> None:
        """Have messages that wait in an inbox refer to what a redacted payload is now: they cannot be handled."""
        for name, tables in opened.items():
            place = (name, "inbox_messages")
            try:
                done = await tables.refer(await self._changed(opened, await tables.references()))
            except RelayError as error:
                look.left[place] = error.message
                continue
            if done.rows:
                counts[place] += done.rows
                look.changed += done.rows
            if done.refused is not None:
                look.left[place] = done.refused

    def _drop_fetched(self, look: _Round, counts: Counter[PlaceName]) -> None:
        """Remove what workers of this host have fetched and what has a value. They fetch it again."""
        for path in self._fetched.glob("*.*"):
            place = (path.name.partition(".")[0], "fetched payloads")
            try:
                if self._wanted.may_be_in(path.read_bytes()):
                    path.unlink()
                    counts[place] += 1
            except FileNotFoundError:
                continue
            except OSError as error:
                look.left[place] = f"{path}: {error.strerror}"

    async def _noted(
        self,
        stream: str,
        owners: Mapping[str, PostgresRedaction],
        found: Sequence[_StreamMessage],
        consumers: Sequence[StreamConsumer],
    ) -> tuple[Sequence[int], int]:
        """Note what will be erased. Returns which may be erased now, and how many are published again instead.

        A message that a consumer still needs stays, unless an outbox can publish its event again.
        """
        needed = {it.seq for it in found if any(one.wants(it.seq, it.subject) for one in consumers)}
        ids = [it.event_id for it in found if it.event_id is not None]
        known: set[UUID] = set()
        for tables in owners.values():
            known |= await tables.known(ids)
        ready = [it for it in found if it.seq not in needed or it.event_id in known]
        free, published = {it.seq for it in ready}, 0
        for tables in owners.values() if ready else []:
            noted = await tables.erase(stream, [(it.seq, it.event_id, it.seq in needed) for it in ready])
            free &= noted.keys()
            published += sum(noted.values())
        return sorted(free), published

    async def _redact_archives(
        self, names: Iterable[str], by: Operator, look: _Round, counts: Counter[PlaceName]
    ) -> None:
        for name in names:
            async with self._archive(name, look.left) as archive:
                if archive is None:
                    continue
                async for it in archive.redact(by.besides):
                    counts[name, f"archive {it.kind}"] += it.rows
                    look.changed += it.rows

    # --- places ---

    @asynccontextmanager
    async def _opened(self, left: dict[PlaceName, str]) -> AsyncIterator[Mapping[str, PostgresRedaction]]:
        """The tables of the contexts, as far as their databases answer."""
        self._open: dict[str, Source] = {}
        async with AsyncExitStack() as stack:
            for name, context in self._contexts.items():
                try:
                    self._open[name] = await stack.enter_async_context(self._sources(context))
                except RelayError as error:
                    left[name, "database"] = error.message
            yield {name: PostgresRedaction(source, self._wanted) for name, source in self._open.items()}

    async def _streams(self, opened: Mapping[str, PostgresRedaction]) -> Mapping[str, Sequence[str]]:
        """The streams, and the contexts that publish to each."""
        found: dict[str, list[str]] = {}
        for name, tables in opened.items():
            context = self._contexts[name]
            own = [*(it.name for it in context.event_streams), context.dlq.name, *await tables.streams()]
            for stream in dict.fromkeys(own):
                found.setdefault(stream, []).append(name)
            if not self._alone:
                for it in context.subscriptions.values():
                    found.setdefault(it.stream, [])
        return found

    @asynccontextmanager
    async def _archive(self, name: str, left: dict[PlaceName, str]) -> AsyncIterator[RedactArchive | None]:
        context: ContextSettings = self._contexts[name]
        try:
            store = cold_store(context.archive)
            tables = PostgresArchive(self._open[name], name)
            yield None if store is None else RedactArchive(tables, store, self._wanted)
        except RelayError as error:
            left[name, "archive"] = error.message

    def _message(self, message: Held) -> _StreamMessage | None:
        """A message that has a value."""
        wanted, texts = self._wanted, texts_of(message.subject, message.headers)
        if not (wanted.may_be_in(message.body) or wanted.may_be_in(texts.encode())):
            return None
        if wanted.type is not None and wanted.type not in (*message.subject.split("."), *texts.splitlines()):
            return None
        if wanted.body(message.body) == message.body and wanted.text(texts) == texts:
            return None
        stored = Stored.of(message.seq, message.headers, message.at, b"")
        return _StreamMessage(message.seq, message.subject, stored.event_id)

    def _message_or_reference(self, message: Held) -> _StreamMessage | None:
        """The same, or a message that refers to a large payload."""
        if (found := self._message(message)) is not None:
            return found
        try:
            reference = Reference.of(message.headers)
        except MalformedMessage:
            return None
        return None if reference is None else _StreamMessage(message.seq, message.subject, reference.id, reference)

    def _may_have(self, value: object) -> bool:
        return self._wanted.may_be_in(json_of(value).encode())

    # --- certificates ---

    def _digest(self, salt: str) -> str:
        values = "\n".join(sorted(self._wanted.values)).encode()
        return hashlib.scrypt(values, salt=bytes.fromhex(salt), n=_N, r=_R, p=_P, dklen=32).hex()

    async def _earlier(self, opened: Mapping[str, PostgresRedaction]) -> Sequence[tuple[datetime, str]]:
        """When the same values were redacted before, and by whom."""
        found: dict[str, tuple[datetime, str]] = {}
        for tables in opened.values():
            for actor, about, at in await tables.certificates():
                id, salt = str(about.get("certificate")), str(about.get("salt"))
                if about.get("state") == "done" and id not in found and about.get("digest") == self._digest(salt):
                    found[id] = (at, actor)
        return sorted(found.values())

    async def _certify(
        self, opened: Mapping[str, PostgresRedaction], done: Certificate, by: Operator, state: str
    ) -> dict[PlaceName, str]:
        """Returns the contexts whose audit log took nothing, and why."""
        failed: dict[PlaceName, str] = {}
        for name, tables in opened.items():
            about = {
                "certificate": done.id,
                "state": state,
                "salt": done.salt,
                "digest": done.digest,
                "type": done.type,
                "paths": list(done.paths),
                "counts": {place: count for (context, place), count in done.counts.items() if context == name},
                "left": {place: why for (context, place), why in done.left.items() if context in (name, "")},
            }
            try:
                await tables.certify(replace(by, about={**by.about, **about}), done.id)
            except RelayError as error:
                failed[name, "audit_log"] = error.message
        return failed


def _text(value: object) -> str:
    """A value of an archived row as people read it. PostgreSQL has written bodies in hexadecimal digits."""
    if not isinstance(value, str):
        return json_of(value)
    return bytes.fromhex(value[2:]).decode(errors="replace") if value.startswith("\\x") else value
