"""Adopts orphans: reads events of a stream back into the rows that their outbox has lost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

from relay.commands.orphans import FindOrphans
from relay.commands.reconcile import Progress, Stored, nobody
from relay.domain.actor import ACTOR_ID, Actor, ActorKind
from relay.domain.envelopes import Envelope, Incoming, decode
from relay.domain.envelopes.event import CAUSATION, CORRELATION, EVENT_TYPE, EVENT_VERSION, OCCURRED_AT
from relay.domain.errors import InvalidEvent, MalformedMessage, NotAdopted, RelayError
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, EVENT_ID, GENERATION, ID, Identity, NatsMsgId
from relay.domain.model import OutboxEvent
from relay.domain.operators import Operator
from relay.domain.ordering import KEY, UNORDERED
from relay.domain.routing import EXPECTED_STREAM, Routing
from relay.domain.traceparent import TRACEPARENT

#: How many orphans are adopted or reported in one transaction. All of their payloads are in memory.
PAGE: Final = 200
#: Headers that publishing writes anew. The rest of a message's headers are those of its row.
_OURS: Final = frozenset(
    name.lower()
    for name in (
        *(KEY, EVENT_ID, GENERATION, EVENT_TYPE, EVENT_VERSION, OCCURRED_AT, CORRELATION, CAUSATION),
        "Content-Type",
    )
)
_SERVERS: Final = ("nats-", "ce-")


@dataclass(frozen=True, slots=True)
class Held:
    """A message in a stream, with its body."""

    seq: int
    subject: str
    headers: Mapping[str, str]
    body: bytes
    at: datetime


@dataclass(frozen=True, slots=True)
class Adoption:
    """A row to be written again. ``part``: the member of ``event.payload`` that is the payload; "" for all of it.

    So PostgreSQL takes the payload from the text of the message, and no number changes on the way.
    """

    event: OutboxEvent
    part: str
    published_at: datetime
    published_seq: int
    generation: int


@dataclass(slots=True)
class DecidedOrphans:
    """What became of orphans. ``refused``: those that stay orphans, and why. ``last``: where the last one is."""

    context: str
    stream: str
    done: int = 0
    ids: Sequence[UUID] = ()
    refused: list[tuple[UUID, RelayError]] = field(default_factory=list)
    last: int = 0


class MessageReader(Protocol):
    """Reads messages with their bodies, and deletes them. Both methods raise BrokerUnreachable."""

    async def messages(self, stream: str, seqs: Sequence[int]) -> Sequence[Held]:
        """The messages at these places, in order; those that are gone are left out."""

    async def delete(self, stream: str, seqs: Sequence[int]) -> None:
        """Delete the messages at these places. One that is gone is no error."""


class OrphanRows(Protocol):
    """Writes what an operator decides, each call in one transaction with its audit. Raises DatabaseUnreachable."""

    async def adopt(self, stream: str, rows: Sequence[Adoption], by: Operator) -> set[UUID]:
        """Write rows as published, behind the earlier and before the later ones of their keys.

        Returns those that were written. A row of the same id is left as it is.
        """

    async def report(self, stream: str, orphans: Sequence[Stored], by: Operator) -> set[UUID]:
        """Write an event that names the orphans to the consumers, and note that. Returns those that are new."""

    async def removed(self, orphans: Sequence[Stored], by: Operator) -> None:
        """Audit that orphans were deleted from their stream."""


class DecideOrphans:
    """Adopts or reports the orphans of a context. May be repeated, also after a crash in the middle."""

    def __init__(
        self,
        context: str,
        find: FindOrphans,
        reader: MessageReader,
        rows: OrphanRows,
        routing: Routing,
        envelope: Envelope | str,
        system_actor: str = "system",
    ) -> None:
        self._system = Actor(system_actor, ActorKind.SYSTEM)
        self._context, self._find, self._reader, self._rows = context, find, reader, rows
        self._routing, self._envelope = routing, envelope

    async def adopt(
        self,
        stream: str,
        by: Operator,
        *,
        dry_run: bool = False,
        after: int = 0,
        until: int | None = None,
        progress: Progress = nobody,
    ) -> DecidedOrphans:
        """Adopt all orphans of a stream behind ``after``. ``dry_run``: say what would happen, and change nothing.

        ``until``: the place of the last one that was counted; later ones stay. Raises BrokerUnreachable and
        DatabaseUnreachable. Pages that are done stay done.
        """
        decided = DecidedOrphans(self._context, stream)
        async for orphans in self._pages(decided, after, until):
            read = await self._reader.messages(stream, [orphan.seq for orphan in orphans])
            rows = self._adoptions(read, decided)
            ids = [row.event.id for row in rows]
            done = set(ids) if dry_run or not rows else await self._rows.adopt(stream, rows, by)
            decided.done += len(done)
            decided.ids = [*decided.ids, *(id for id in ids if id in done)][:PAGE]
            taken = NotAdopted("the outbox has another event with the text of its id")
            decided.refused += [(id, taken) for id in ids if id not in done]
            progress(decided.done, decided.done + 1)
        return decided

    async def report(
        self, stream: str, by: Operator, *, dry_run: bool = False, after: int = 0, until: int | None = None
    ) -> DecidedOrphans:
        """Report all orphans of a stream behind ``after`` to its consumers. Raises as `adopt`."""
        decided = DecidedOrphans(self._context, stream)
        async for orphans in self._pages(decided, after, until):
            ids = [orphan.event_id for orphan in orphans if orphan.event_id is not None]
            done = set(ids) if dry_run or not ids else await self._rows.report(stream, orphans, by)
            decided.done += len(done)
            decided.ids = [*decided.ids, *(id for id in ids if id in done)][:PAGE]
        return decided

    async def remove(
        self, stream: str, by: Operator, *, dry_run: bool = False, after: int = 0, until: int | None = None
    ) -> DecidedOrphans:
        """Delete all orphans of a stream behind ``after`` from it, with their copies. Raises as `adopt`.

        Only if all consumers of the stream are set back, too: others go on knowing what nobody else does.
        """
        decided, again = DecidedOrphans(self._context, stream), True
        while again:
            again = False  # a page names an orphan once: its copies are in the next round
            async for orphans in self._pages(decided, after, until):
                ids = [orphan.event_id for orphan in orphans if orphan.event_id is not None]
                if ids and not dry_run:
                    await self._reader.delete(stream, [orphan.seq for orphan in orphans])
                    await self._rows.removed(orphans, by)
                    again = True
                decided.done += len(ids)
                decided.ids = [*decided.ids, *ids][:PAGE]
        return decided

    async def _pages(
        self, decided: DecidedOrphans, after: int, until: int | None
    ) -> AsyncIterator[Sequence[Stored]]:
        """The orphans between two places of a stream, page by page."""
        place: int | None = after
        while place is not None and (until is None or place < until):
            page = await self._find.scan(decided.stream, place, PAGE)
            orphans = [it for it in page.orphans if until is None or it.seq <= until]
            yield orphans
            decided.last = orphans[-1].seq if orphans else decided.last
            place = page.next_after

    def _adoptions(self, read: Sequence[Held], decided: DecidedOrphans) -> list[Adoption]:
        rows = []
        for message in read:
            try:
                rows.append(adoption(message, self._envelope, self._routing, self._system))
            except (InvalidEvent, MalformedMessage) as error:
                sent = NatsMsgId.read(message.headers)
                assert sent is not None
                assert sent.event_id is not None
                decided.refused.append((sent.event_id, NotAdopted(f"cannot be read: {error}")))
        return rows


def adoption(message: Held, envelope: Envelope | str, routing: Routing, system: Actor) -> Adoption:
    """The row that a message was published from. Raises InvalidEvent and MalformedMessage.

    ``system``: the actor that an envelope names if the row names nobody.
    The stream does not have all of it: the aggregate is that of the usual partition key, or the key itself.
    """
    sent = NatsMsgId.read(message.headers)
    if sent is None or sent.event_id is None:
        raise MalformedMessage("has no id of an event", field=ID)
    event = decode(envelope, message.subject, message.headers, message.body)
    key = event.partition_key or UNORDERED
    kind, _, id = key.partition(":")
    place = routing.destination(event.event_type, event.event_version, None)
    expected = message.headers.get(EXPECTED_STREAM)
    text, part = _payload(message.body, event.payload)
    row = OutboxEvent(
        id=sent.event_id,
        aggregate_type=kind if id else "unknown",
        aggregate_id=id or key or str(sent.event_id),
        event_type=event.event_type,
        event_version=event.event_version,
        payload=text,
        occurred_at=event.occurred_at or message.at,
        correlation_id=event.correlation_id,
        causation_id=event.causation_id,
        partition_key=key,
        topic=None if message.subject == place.subject else message.subject,
        headers=_headers(message.headers, event, system),
        originals=_originals(event),
        stream=None if expected == place.stream else expected,
    )
    return Adoption(row, part, message.at, message.seq, sent.generation)


def _payload(body: bytes, payload: Any) -> tuple[str, str]:
    """A JSON text that has the payload, and where in it."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    else:
        text = body.decode(json.detect_encoding(body))
        for part in ("payload", "data"):
            if isinstance(content, dict) and part in content and content[part] == payload:
                return text, part
        if content == payload:
            return text, ""
    return json.dumps(payload), ""


def _headers(sent: Mapping[str, str], event: Incoming, system: Actor) -> Mapping[str, str]:
    rest = {
        name: value
        for name, value in sent.items()
        if name.lower() not in _OURS and not name.lower().startswith(_SERVERS)
    }
    more: dict[str, str] = {}
    if event.actor not in (None, system) and ACTOR_ID not in rest:
        more |= event.actor.headers
    if event.traceparent is not None and TRACEPARENT not in {name.lower() for name in rest}:
        more[TRACEPARENT] = event.traceparent
    return {**rest, **more}


def _originals(event: Incoming) -> Mapping[str, str]:
    """The texts that are no UUIDs: an envelope's own key makes a text of an id that is a UUID."""
    return {
        name: text
        for name, text in event.originals.items()
        if name in (ID, CORRELATION_ID, CAUSATION_ID) and Identity.of(text).derived
    }
