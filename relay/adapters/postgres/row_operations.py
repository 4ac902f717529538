"""Rows as operators see and change them: the base of all kinds, and the operations on events and tasks.

Every action is one transaction with its row in the audit log. It answers for each id: done, or why not.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import IO, Any, ClassVar, Final, TypeAlias
from uuid import UUID

from psycopg import sql
from psycopg.errors import UniqueViolation
from psycopg.rows import dict_row

from relay.adapters.postgres.attempt_rows import with_attempts
from relay.adapters.postgres.bounded import CELL, DETAIL, beginning, bounded, chunks
from relay.adapters.postgres.paging import (
    WINDOW,
    Page,
    Reach,
    Row,
    bounds,
    ends,
    from_oldest,
    in_order,
    passes_over,
)
from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.sql import statement
from relay.domain import tasks
from relay.domain.disclosure import clean, stack_of
from relay.domain.errors import (
    InvalidRequest,
    NotPublishable,
    NotReplayable,
    NotStoppable,
    NotStopped,
    NotUndoable,
    RelayError,
    SelectionUsed,
)
from relay.domain.expiry import NEVER, in_words
from relay.domain.identity import CAUSATION_ID, CORRELATION_ID, ID, Id, Identity, known_originals
from relay.domain.operators import (
    EventState,
    Operator,
    Outcome,
    discard_refusal,
    judge,
    reopen_refusal,
    replay_refusal,
    retry_refusal,
)
from relay.domain.reasons import code_of, reason_filter
from relay.domain.search import like

#: An id that was refused, and why.
Refusal: TypeAlias = tuple[str, RelayError]
#: How many of them the audit log names, and how long their ids may be there.
_REFUSALS: Final = 100
_ID_CHARS: Final = 200
_DONE_TWICE: Final[Mapping[str, tuple[type[RelayError], str]]] = {
    "uq_audit_log_selection": (SelectionUsed, "this was done already"),
    "uq_audit_log_undoes": (NotUndoable, "this was undone already"),
}
_UNKNOWN_TASK: Final = tasks.UnknownTask("there is no such task", hint="relay tasks list --all")


class Operations:
    """The base of what operators do with one kind of rows. All raise DatabaseUnreachable and SchemaMissing.

    ``kind`` is the room of its statements and the beginning of its actions in the audit log. ``state`` takes the
    columns that ``lock_many.sql`` reads besides the id: the facts that decide whether an action is allowed.
    ``orders``: those in which its lists read rows, each by an index, and in which a short look ends
    somewhere: after ``window`` rows. ``one``: the statement of one row, and
    ``body`` the column of its payload.
    """

    kind: ClassVar[str]
    state: ClassVar[Callable[..., Any]]
    orders: ClassVar[Sequence[str]] = ()
    one: ClassVar[str]
    body: ClassVar[str] = "payload"

    def __init__(self, source: Source, window: int = WINDOW) -> None:
        self._source, self._window = source, window

    async def _page(
        self,
        name: str,
        parameters: Mapping[str, Any],
        source: Source | None = None,
        *,
        short: bool = False,
        oldest: bool = False,
    ) -> Page[Row]:
        """Return the rows of a statement, whose column ``total`` tells how many match in all.

        It is planned for its filter each time: a plan for any filter might read all. ``short``: it looks at
        no more than ``window`` rows in each of the ``orders`` in which it reads them. ``oldest``: they come
        first.
        """
        turn = from_oldest if oldest else str
        async with (source or self._source)() as conn, conn.cursor(row_factory=dict_row) as cursor:
            reach = await self._reach(conn, parameters, oldest=oldest) if short else {}
            asked = {**parameters, **ends(self.orders, reach)}
            await cursor.execute(await bounded(conn, name, asked, CELL, turn=turn), asked, prepare=False)
            rows = await cursor.fetchall()
        return Page(rows, max([row.pop("total") for row in rows], default=0), reach)

    async def _groups(
        self, text: str, other: str, page: str, parameters: Mapping[str, Any], *, short: bool = False
    ) -> Sequence[Row]:
        """Count the rows of the statement ``page`` by the code of the reason in ``text`` and by ``other``."""
        columns = [sql.SQL("left({}, {})").format(sql.Identifier(it), CELL.names) for it in (other, text)]
        counting = sql.SQL("SELECT {0}, count(*) FROM ({1}) AS page GROUP BY {0}")
        asked = counting.format(sql.SQL(", ").join(columns), sql.SQL(statement(page)))
        async with self._source() as conn:
            reach = await self._reach(conn, parameters) if short else {}
            found = await conn.execute(asked, {**parameters, **ends(self.orders, reach)}, prepare=False)
            counts: Counter[tuple[str | None, Any]] = Counter()
            for value, reason, count in await found.fetchall():
                counts[code_of(reason) or None, value] += count
        return [{code_column(text): code, other: value, "count": n} for (code, value), n in counts.most_common()]

    async def _reach(
        self, conn: Connection, parameters: Mapping[str, Any], *, oldest: bool = False
    ) -> Mapping[str, Reach]:
        asked, text = {**parameters, "window": self._window}, statement(f"{self.one.partition('/')[0]}/reach")
        found = await conn.execute(from_oldest(text) if oldest else text, asked, prepare=False)
        ended = [(order, since, until) for order, since, until in await found.fetchall() if since or until]
        if oldest:  # what was the end towards the past is now the end towards the present
            return {order: Reach(until=since or until) for order, since, until in ended}
        return {order: Reach(since, until) for order, since, until in ended}

    async def _detail(self, id: UUID | int, *, body: bool) -> Row | None:
        """Return a row, and as ``history`` what operators did to it at last, oldest first.

        ``body``: with the beginning of its payload, and ``payload_bytes``, its whole size; None if the server
        cannot unpack it, or not within seconds.
        """
        about: Row = {}
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            asked = await bounded(conn, self.one, {"id": id}, DETAIL, without=self.body)
            await cursor.execute(asked, {"id": id}, prepare=False)
            if (row := await cursor.fetchone()) is None:
                return None
            if body:
                start, size = await beginning(conn, self.one, id, self.body)
                about |= {self.body: start, "payload_bytes": size}
            which = {"id": str(id), "actions": f"{self.kind}.%"}
            await cursor.execute(await bounded(conn, "session/history", which, CELL), which)
            history = await cursor.fetchall()
        return {**row, **about, "history": history}

    async def payload(self, id: Any, file: IO[bytes]) -> int | None:
        """Write the whole payload of a row into a file; returns its size, or None if there is no such row.

        The file may wait for a slow reader, and the connection does not.
        """
        row, found = await self.get(id, body=False), 0
        if row is None:
            return None
        async with self._source() as conn:
            async for part in chunks(conn, self.one, self._key(row), self.body):
                found += file.write(part)
        return found

    def _key(self, row: Row) -> Any:
        """The key of a row in its table."""
        return row.get("row_id", row["id"])

    async def get(self, id: Any, *, body: bool = True) -> Row | None:
        """All fields of one row and its history, or None. ``body``: also the beginning of its payload."""
        raise NotImplementedError

    async def _change(
        self,
        change: str,
        ids: Sequence[UUID],
        refusal: Callable[[Any], RelayError | None],
        unknown: RelayError,
        by: Operator,
        action: str = "",
        expires_in: timedelta | None = None,
    ) -> Outcome:
        """Lock rows, and apply the statement ``change`` to those that a rule does not refuse.

        ``action``: its name in the audit log, if that is another. ``expires_in``: how long they may still be worth
        something, `NEVER` for ever; it is noted first.
        """
        if expires_in is not None:
            by = replace(by, about={**by.about, "expires_in": in_words(expires_in)})
            refusal = partial(_with_time, refusal)
        async with self._source() as conn, conn.transaction():
            rows = await query(conn, f"{self.kind}/lock_many", ids=list(ids))
            found = {id: self.state(*rest) for id, *rest in rows}
            wanted, refused = judge(ids, found, refusal, lambda _: unknown)
            deed = None
            if wanted:
                await conn.execute(statement(f"{self.kind}/{change}"), {"ids": wanted})
                if expires_in is not None:
                    terms = {"ids": wanted, "expires_in": None if expires_in == NEVER else expires_in}
                    await conn.execute(statement(f"{self.kind}/set_expiry"), terms)
                deed = await audit(conn, f"{self.kind}.{action or change}", wanted, by, refused)
        return Outcome(tuple(map(str, wanted)), tuple(refused), deed)


def _with_time(refusal: Callable[[Any], RelayError | None], state: Any) -> RelayError | None:
    """What a rule says of a row that gets a new time."""
    return refusal(replace(state, stale=False))


def named(row: Row, column: str) -> Row:
    """Return a row with its ids as people see them. ``column``: the column of the id.

    A row whose id is text keeps its UUID as ``row_id``.
    """
    originals = known_originals(row.pop("originals", None))
    if ID in originals:
        row = {**row, column: originals[ID], "row_id": row[column]}
    return {**row, **{name: originals[name] for name in (CORRELATION_ID, CAUSATION_ID) if name in originals}}


def coded(row: Row, column: str) -> Row:
    """Return a row with two more columns: the code before the reason, and the stack after it."""
    found: Row = {}
    for name, value in row.items():
        if name == column:
            reason, stack = stack_of(value or "")
            found[code_column(name)] = code_of(value) or None
            found |= {name: reason or None, "stack": stack}
        else:
            found[name] = value
    return found


def code_column(name: str) -> str:
    """Return the column that has the code of the reason in a column."""
    return "reason_code" if name == "reason" else "error_code"


def reasons(name: str, asked: str | None) -> dict[str, Any]:
    """Return which reasons are asked for as parameters of a statement."""
    wanted = reason_filter(asked)
    return {name: wanted.pattern, "unless": list(wanted.unless)}


def payload_filter(asked: str | None) -> dict[str, Any]:
    """Return which payloads are asked for, such as ``order.id=47``, as parameters of a statement.

    Raises InvalidRequest.
    """
    path, equals, value = (asked or "=").partition("=")
    if asked is not None and not (equals and all(path.split("."))):
        raise InvalidRequest("is no PATH=VALUE", field="payload", hint="such as order.id=47")
    return {"payload_path": path.split(".") if path else None, "payload_value": value if path else None}


def as_key(id: Id | None) -> UUID | None:
    """Return the UUID that stands for an id."""
    return Identity.of(id).uuid if isinstance(id, str) else id


async def audit(
    conn: Connection, action: str, ids: Sequence[object], by: Operator, refused: Sequence[Refusal] = ()
) -> int:
    """Record who did what to which ids, and which were refused, in the open transaction; returns its number.

    Raises SelectionUsed and NotUndoable if another act was faster: so nothing is done twice.
    """
    about = {**by.about, **_refusals(refused)}
    parameters = {
        "action": action,
        "ids": [str(id) for id in ids],
        "selection": by.selection,
        "undoes": by.undoes,
        "about": json.dumps(about) if about else None,
        **who(by),
    }
    try:
        [(deed,)] = await query(conn, "session/write_audit", **parameters)
    except UniqueViolation as error:
        if (twice := _DONE_TWICE.get(error.diag.constraint_name or "")) is None:
            raise
        kind, text = twice
        raise kind(text, hint="relay audit list") from None
    return int(deed)


def _refusals(refused: Sequence[Refusal]) -> Row:
    if not refused:
        return {}
    shown = [[clean(id[:_ID_CHARS]), it.code, it.message, it.hint] for id, it in refused[:_REFUSALS]]
    return {"refusals": len(refused), "refused": shown}


def who(by: Operator) -> dict[str, str | None]:
    """Return the operator as parameters of a statement."""
    return {"actor": clean(by.actor), "note": None if by.note is None else clean(by.note)}


# --- events and tasks ---


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Selects outbox events. A field that is None excludes nothing.

    ``statuses``: waiting, delayed, failing, dead, published, discarded, expired. ``since`` (included) and
    ``until`` (excluded) bound occurred_at. ``error`` is a code of `relay.domain.reasons` or a part of
    the text. ``payload``: see `payload_filter`.
    """

    statuses: list[str]
    event_type: str | None = None
    aggregate_type: str | None = None
    aggregate_id: str | None = None
    partition_key: str | None = None
    payload: str | None = None
    correlation_id: Id | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None


class PostgresOutboxOperations(Operations):
    """Only changes rows: the relay's publishers do the rest, with their locks and retries."""

    kind = "outbox"
    one = "outbox/event"
    state = EventState
    orders = ("published", "waiting", "delayed", "dead")

    async def find(
        self,
        wanted: EventFilter,
        limit: int,
        *,
        before: int | None = None,
        short: bool = False,
        oldest: bool = False,
    ) -> Page[Row]:
        """Up to ``limit`` events without their payloads, the newest first, or the oldest.

        ``before``: behind this ``seq``. ``short``: look at the first of each state only, if the filter may pass
        over many.
        """
        short = short and passes_over(wanted, mixed=not {"waiting", "delayed"}.isdisjoint(wanted.statuses))
        source = in_order(self._source, wanted, short=short)
        parameters = _parameters(wanted, limit, before)
        page = await self._page("outbox/events", parameters, source, short=short, oldest=oldest)
        return replace(page, items=[coded(named(row, "id"), "publish_error") for row in page.items])

    async def get(self, id: Id, *, body: bool = True) -> Row | None:
        """One event with its headers, its payload and its history, or None."""
        row = await self._detail((await self._rows([id]))[id], body=body)
        if row is None:
            return None
        found = coded(named(row, "id"), "publish_error")
        ended = row["published_at"] or row["dead_at"]
        outcome = row["status"] if ended else ""
        counted = row["publish_attempts"] + bool(row["published_at"])
        return with_attempts(found, counted=counted, rounds=row["generation"], ended=ended, outcome=outcome)

    async def _rows(self, ids: Sequence[Id]) -> dict[Id, UUID]:
        """Find the rows of events. A text is searched, as plain SQL may have given its row any UUID."""
        texts = [id for id in ids if isinstance(id, str) and Identity.of(id).derived]
        found: dict[Id, UUID] = {}
        if texts:
            async with self._source() as conn:
                found = dict(await query(conn, "outbox/originals", texts=texts))
        return {id: found.get(id) or Identity.of(str(id)).uuid for id in ids}

    async def _decide(
        self,
        change: str,
        ids: Sequence[Id],
        refusal: Callable[[Any], RelayError | None],
        unknown: RelayError,
        by: Operator,
        expires_in: timedelta | None = None,
    ) -> Outcome:
        """Do `_change` to events, and answer for each by the id that was given."""
        rows = await self._rows(ids)
        given = {str(row): str(id) for id, row in rows.items()}
        outcome = await self._change(change, list(rows.values()), refusal, unknown, by, expires_in=expires_in)
        done, refused = outcome.done, outcome.refused
        named = tuple((given[row], error) for row, error in refused)
        return replace(outcome, done=tuple(given[row] for row in done), refused=named)

    async def retry(self, ids: Sequence[Id], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Let failed events be tried again. The operation that wrote them is not repeated.

        An event is refused with NOT_PUBLISHABLE if it is unknown, published, or never failed, and with EXPIRED if
        it is stale and gets no new time.
        """
        unknown = NotPublishable("there is no such event", hint="relay outbox list")
        return await self._decide("retry", ids, retry_refusal, unknown, by, expires_in)

    async def replay(self, ids: Sequence[Id], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Let published events be published again, under a new generation and in their order.

        Consumers that have processed an event recognise its id and skip it. An event is refused with
        NOT_REPLAYABLE if it is unknown or not published, and with EXPIRED as by `retry`.
        """
        unknown = NotReplayable(
            "there is no such event",
            hint="relay outbox list --status published; if it was archived: relay archive replay",
        )
        return await self._decide("replay", ids, replay_refusal, unknown, by, expires_in)

    async def discard(self, ids: Sequence[Id], by: Operator) -> Outcome:
        """Give events up that are not published. Later events of their keys go on without them.

        This waits for a publisher that has an event in work, which then is published. An event is refused with
        NOT_STOPPABLE if it is unknown, published, discarded or expired.
        """
        unknown = NotStoppable("there is no such event", hint="relay outbox list")
        return await self._decide("discard", ids, discard_refusal, unknown, by)

    async def reopen(self, ids: Sequence[Id], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Let discarded and expired events be published after all, before later ones of their keys that wait.

        An event is refused with NOT_STOPPED if it is unknown or neither, and with EXPIRED as by `retry`.
        """
        unknown = NotStopped("there is no such event", hint="relay outbox list --status discarded")
        return await self._decide("reopen", ids, reopen_refusal, unknown, by, expires_in)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks to find. A field that is None excludes nothing. ``error`` is a code or a part of the text."""

    statuses: list[str]
    type: str | None = None
    queue: str | None = None
    correlation_id: Id | None = None
    since: datetime | None = None
    error: str | None = None


def _parameters(wanted: EventFilter | TaskFilter, limit: int, before: int | None) -> dict[str, Any]:
    """Return a filter as the parameters of its statement."""
    key, error = as_key(wanted.correlation_id), reasons("error", wanted.error)
    payload = payload_filter(getattr(wanted, "payload", None))
    kind = "event_type" if isinstance(wanted, EventFilter) else "type"
    named = {kind: like(getattr(wanted, kind))}
    return {**asdict(wanted), **bounds(limit, before), "correlation_id": key, **error, **payload, **named}


class PostgresTaskOperations(Operations):
    """Reads and changes rows only: workers run the tasks that a decision releases."""

    kind = "tasks"
    one = "tasks/task"
    state = tasks.TaskState
    orders = ("finished",)

    async def find(
        self,
        wanted: TaskFilter,
        limit: int,
        *,
        before: int | None = None,
        short: bool = False,
        oldest: bool = False,
    ) -> Page[Row]:
        """Up to ``limit`` tasks without their payloads, the newest first, or the oldest.

        One that is claimed is ``running``. ``before``: behind this ``seq``. ``short``: of finished
        ones look at the first only, if the filter may pass over many.
        """
        ended = {"completed", "cancelled", "expired"} & {*wanted.statuses}
        short = short and passes_over(wanted, mixed=len(ended) in (1, 2))
        page = await self._page("tasks/tasks", _parameters(wanted, limit, before), short=short, oldest=oldest)
        return replace(page, items=[coded(named(row, "id"), "last_error") for row in page.items])

    async def get(self, id: UUID, *, body: bool = True) -> Row | None:
        """One task with its metadata, its payload and its history, or None."""
        row = await self._detail(id, body=body)
        if row is None:
            return None
        ended = row["finished_at"] if row["status"] in ("completed", "failed") else None
        outcome = "completed" if row["status"] == "completed" else "dead"
        return with_attempts(
            coded(named(row, "id"), "last_error"),
            counted=row["attempts"],
            ended=ended,
            outcome=outcome,
            runs=row["status"] == "running",
        )

    async def retry(self, ids: Sequence[UUID], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Run failed, cancelled or expired tasks again, with new attempts.

        A task is refused with NOT_RETRYABLE or UNKNOWN_TASK, and with EXPIRED if it is stale and gets no new time.
        """
        return await self._change("retry", ids, tasks.retry_refusal, _UNKNOWN_TASK, by, expires_in=expires_in)

    async def cancel(self, ids: Sequence[UUID], by: Operator) -> Outcome:
        """Cancel tasks that do not run now. A task is refused with NOT_CANCELLABLE or UNKNOWN_TASK."""
        return await self._change("cancel", ids, tasks.cancel_refusal, _UNKNOWN_TASK, by)

    async def reopen(self, ids: Sequence[UUID], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Let cancelled or expired tasks wait again. Refused with NOT_REOPENABLE, UNKNOWN_TASK or EXPIRED."""
        return await self._change("reopen", ids, tasks.reopen_refusal, _UNKNOWN_TASK, by, expires_in=expires_in)
