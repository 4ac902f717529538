"""Messages of the inbox as operators see them, and the action on them: try now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.paging import Page, Row, bounds, passes_over
from relay.adapters.postgres.pool import query
from relay.adapters.postgres.row_operations import Operations, as_key, coded, named, reasons
from relay.domain.errors import InvalidRequest, UnknownMessage
from relay.domain.identity import Id
from relay.domain.operators import MessageState, Operator, Outcome, message_refusal
from relay.domain.topology import subject_pattern

_UNKNOWN: Final = UnknownMessage("there is no such message", hint="relay inbox list --all")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
#: Messages in these states may be without an error.
_WITHOUT_ERROR: Final = {"waiting", "running", "parked"}
#: One index finds the messages in these states, and no others.
_UNFINISHED: Final = {*_WITHOUT_ERROR, "failing", "dead"}
#: The end of a page: microseconds since 1970, and the id.
CURSOR: Final = r"^[0-9]{1,16}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Selects messages of the inbox. A field that is None excludes nothing.

    ``statuses``: waiting, failing, running, parked, dead, processed. ``message_id``: what each subscription has of
    this message. ``subject`` may be a pattern of NATS.
    ``since`` (included) and ``until`` (excluded) limit received_at. ``error`` is a code of `relay.domain.reasons`
    or a part of the text.
    """

    statuses: Sequence[str]
    message_id: Id | None = None
    subscription: str | None = None
    subject: str | None = None
    event_type: str | None = None
    partition_key: str | None = None
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
        self, wanted: MessageFilter, limit: int, *, before: str | None = None, short: bool = False
    ) -> Page[Row]:
        """Up to ``limit`` messages without their bodies, the last received first. ``before``: a ``cursor`` of one.

        ``short``: look at the newest of each state only, if the filter may pass over many. Raises InvalidRequest
        for a cursor that is none.
        """
        parameters = _parameters(wanted, limit, before) | await self._keys(wanted)
        page = await self._page("inbox/messages", parameters, short=short and _passes_over(wanted))
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
        return None if row is None else _shown(row)

    async def retry(self, ids: Sequence[Id], by: Operator) -> Outcome:
        """Make messages that wait for their next attempt due now, for the next sweep. Attempts stay counted.

        A message is refused with NOT_RETRYABLE or UNKNOWN_MESSAGE. If it is dead, the refusal names its incident,
        which is recorded now if it was missing.
        """
        given = {str(_key(id)): str(id) for id in ids}
        await PostgresIncidents(self._source).record_rows([UUID(key) for key in given])
        outcome = await self._change("retry", [UUID(key) for key in given], message_refusal, _UNKNOWN, by)
        refused = tuple((given[key], error) for key, error in outcome.refused)
        return Outcome(tuple(given[key] for key in outcome.done), refused)


def _parameters(wanted: MessageFilter, limit: int, before: str | None = None) -> dict[str, Any]:
    at, id = (None, None) if before is None else _place(before)
    return {
        **asdict(wanted),
        **bounds(limit, None),
        "statuses": list(wanted.statuses),
        "mixed": wanted.mixed,
        "subject": None if wanted.subject is None else subject_pattern(wanted.subject),
        "correlation_id": as_key(wanted.correlation_id),
        **reasons("error", wanted.error),
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
