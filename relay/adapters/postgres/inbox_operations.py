"""Messages of the inbox as operators see them, and the actions on them: try now, hold, discard, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from relay.adapters.postgres.attempt_rows import with_attempts
from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.paging import Page, Row, bounds, passes_over
from relay.adapters.postgres.pool import query
from relay.adapters.postgres.row_operations import Operations, as_key, coded, named, payload_filter, reasons
from relay.domain.errors import InvalidRequest, RelayError, UnknownMessage
from relay.domain.identity import Id
from relay.domain.operators import (
    MessageState,
    Operator,
    Outcome,
    hold_refusal,
    message_discard_refusal,
    message_refusal,
    message_reopen_refusal,
    release_refusal,
)
from relay.domain.search import like
from relay.domain.topology import subject_pattern

_UNKNOWN: Final = UnknownMessage("there is no such message", hint="relay inbox list --all")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: Messages in these states may be without an error.
_WITHOUT_ERROR: Final = {"waiting", "running", "parked", "held"}
#: One index finds the messages in these states, and no others.
_UNFINISHED: Final = {*_WITHOUT_ERROR, "failing", "dead"}
#: The end of a page: microseconds since 1970, and the id.
CURSOR: Final = r"^[0-9]{1,16}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Selects messages of the inbox. A field that is None excludes nothing.

    ``statuses``: waiting, failing, running, parked, held, dead, processed, discarded, expired. ``message_id``:
    what each subscription has of this message. ``payload``: see `payload_filter`. ``subject`` may be a pattern.
    ``since`` (included) and ``until`` (excluded) limit received_at. ``error`` is a code of `relay.domain.reasons`
    or a part of the text.
    """

    statuses: Sequence[str]
    message_id: Id | None = None
    subscription: str | None = None
    subject: str | None = None
    event_type: str | None = None
    partition_key: str | None = None
    payload: str | None = None
    correlation_id: Id | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None

    @property
    def mixed(self) -> bool:
        """Whether messages without an error are wanted too. If so, one index finds all that are not processed."""
        return self.error is None and not _WITHOUT_ERROR.isdisjoint(self.statuses)


class PostgresMessageOperations(Operations):
    """Reads and changes rows only: the sweep sends what is due.

    A row has the key of the inbox as ``id``, and as ``message_id`` the id as its producer wrote it.
    """

    kind = "inbox"
    body = "body"
    one = "inbox/message"
    state = MessageState
    orders = ("processed", "unfinished", "failing", "dead")

    async def find(
        self,
        wanted: MessageFilter,
        limit: int,
        *,
        before: str | None = None,
        short: bool = False,
        oldest: bool = False,
    ) -> Page[Row]:
        """Up to ``limit`` messages without their bodies, the last received first, or the ``oldest``.

        ``before``: a ``cursor`` of one. ``short``: look at the first of each state only, if the filter may pass
        over many. Raises InvalidRequest for a cursor that is none.
        """
        parameters = _parameters(wanted, limit, before) | await self._keys(wanted)
        short = short and _passes_over(wanted)
        page = await self._page("inbox/messages", parameters, short=short, oldest=oldest)
        return replace(page, items=[{**_shown(row), "cursor": _cursor(row)} for row in page.items])

    async def groups(self, wanted: MessageFilter, most: int, *, short: bool = False) -> Sequence[Row]:
        """How many messages have each code of an error, by subscription, among the newest ``most`` that fit.

        ``short``: as of `find`.
        """
        parameters = _parameters(wanted, most) | await self._keys(wanted)
        short = short and _passes_over(wanted)
        return await self._groups("last_error", "subscription", "inbox/messages", parameters, short=short)

    async def _keys(self, wanted: MessageFilter) -> dict[str, Any]:
        if wanted.message_id is None:
            return {"keys": None}
        return {"keys": await self._rows_of(_key(wanted.message_id))}

    async def _rows_of(self, id: UUID) -> Sequence[UUID]:
        async with self._source() as conn:
            return [key for (key,) in await query(conn, "inbox/rows_of", id=id)]

    async def get(self, id: Id, *, body: bool = True) -> Row | None:
        """One message with its headers, its body and its history, or None.

        If no row has ``id`` as its key, this is the row of one of the subscriptions. ``others`` names those of the
        other ones.
        """
        key = _key(id)
        row = await self._detail(key, body=body)
        if row is None and (keys := await self._rows_of(key)):
            row = await self._detail(min(keys), body=body)
        if row is None:
            return None
        return with_attempts(
            _shown(row),
            counted=row["attempts"],
            rounds=row["requeues"],
            ended=row["processed_at"] or row["dead_lettered_at"],
            outcome="processed" if row["processed_at"] else "dead",
            runs=row["status"] == "running",
        )

    async def retry(self, ids: Sequence[Id], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Make messages that wait for their next attempt due now, for the next sweep. Attempts stay counted.

        A message is refused with NOT_RETRYABLE or UNKNOWN_MESSAGE, and with EXPIRED if it is stale. If it
        is dead, the refusal names its incident,
        which is recorded now if it was missing.
        """
        return await self._decide("retry", ids, message_refusal, by, expires_in=expires_in)

    async def hold(self, ids: Sequence[Id], by: Operator) -> Outcome:
        """Set messages aside: none is handled until it is released. In an ordered subscription its key waits.

        A message is refused with UNKNOWN_MESSAGE, or with NOT_STOPPABLE if it is over, or if a worker has it:
        then it ends as usual.
        """
        return await self._decide("hold", ids, hold_refusal, by)

    async def release(self, ids: Sequence[Id], by: Operator) -> Outcome:
        """Let held messages go on. Attempts stay counted. Refused with NOT_STOPPED or UNKNOWN_MESSAGE."""
        return await self._decide("release_held", ids, release_refusal, by, "release")

    async def discard(self, ids: Sequence[Id], by: Operator) -> Outcome:
        """Give messages up; keys go on without them. Refused as of `hold`, which it may follow."""
        return await self._decide("discard", ids, message_discard_refusal, by)

    async def reopen(self, ids: Sequence[Id], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Let discarded or expired messages be handled after all.

        Refused with NOT_STOPPED or UNKNOWN_MESSAGE, and with EXPIRED if one is stale and gets no new time.
        """
        return await self._decide("reopen", ids, message_reopen_refusal, by, expires_in=expires_in)

    async def _decide(
        self,
        change: str,
        ids: Sequence[Id],
        refusal: Callable[[MessageState], RelayError | None],
        by: Operator,
        action: str = "",
        expires_in: timedelta | None = None,
    ) -> Outcome:
        """Do `_change` to messages, and answer for each by the id that was given.

        A dead one is refused with its incident, which is recorded now if it was missing.
        """
        given = {str(_key(id)): str(id) for id in ids}
        await PostgresIncidents(self._source).record_rows([UUID(key) for key in given])
        outcome = await self._change(
            change, [UUID(key) for key in given], refusal, _UNKNOWN, by, action, expires_in
        )
        refused = tuple((given[key], error) for key, error in outcome.refused)
        return replace(outcome, done=tuple(given[key] for key in outcome.done), refused=refused)


def _parameters(wanted: MessageFilter, limit: int, before: str | None = None) -> dict[str, Any]:
    at, id = (None, None) if before is None else _place(before)
    return {
        **asdict(wanted),
        **bounds(limit, None),
        "statuses": list(wanted.statuses),
        "mixed": wanted.mixed,
        "event_type": like(wanted.event_type),
        "subject": None if wanted.subject is None else subject_pattern(wanted.subject),
        "correlation_id": as_key(wanted.correlation_id),
        **reasons("error", wanted.error),
        **payload_filter(wanted.payload),
        "before_at": at,
        "before_id": id,
    }


def _passes_over(wanted: MessageFilter) -> bool:
    return passes_over(wanted, mixed=wanted.mixed and not {*wanted.statuses} >= _UNFINISHED)


def _key(id: Id) -> UUID:
    key = as_key(id)
    assert key is not None
    return key


def _shown(row: Row) -> Row:
    shown = coded(named(row, "message_id"), "last_error")
    shown.pop("row_id", None)
    return shown


def _cursor(row: Row) -> str:
    return f"{(row['received_at'] - _EPOCH) // _MICROSECOND}-{row['id']}"


def _place(cursor: str) -> tuple[datetime, UUID]:
    if not re.match(CURSOR, cursor):
        raise InvalidRequest("is not the end of a page", field="before", hint="next of the page above")
    microseconds, _, id = cursor.partition("-")
    return _EPOCH + timedelta(microseconds=int(microseconds)), UUID(id)
