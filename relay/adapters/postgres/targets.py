"""The sessions and connections of applications, through which rows are written in an open transaction.

A connection writes its rows at once. An asynchronous connection writes them when they are awaited, or before its
next command. A session writes its rows when it commits: at the last moment, and all at once. So it holds the locks
of their keys only briefly. It takes these locks in sorted order, so that two sessions cannot deadlock over them. A
row belongs to the innermost transaction or savepoint in which it was added. A released savepoint hands its rows to
the transaction around it. Rows that a transaction still has when it ends are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from sqlalchemy import Connection, CursorResult, Dialect, Engine
from sqlalchemy import event as listen
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from relay.adapters.postgres import captured_rows
from relay.adapters.postgres.encrypting import encrypted
from relay.adapters.postgres.enqueue import Ready, Row, Write, numbered, refusals, statements
from relay.adapters.postgres.on_asyncpg import AsyncpgTarget
from relay.adapters.postgres.on_django import DjangoTarget
from relay.domain.errors import NoTransaction, UnsupportedTarget

SyncTarget: TypeAlias = Session | scoped_session[Any] | Connection | psycopg.Connection[Any] | DjangoTarget
AsyncTarget: TypeAlias = (
    AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any] | AsyncpgTarget
)
Value = TypeVar("Value")
Other = TypeVar("Other")

_KEY: Final = "jetrelay_outbox"
_LATER: Final = "jetrelay_outbox_later"

# --- connections ---


def insert_sqlalchemy(connection: Connection, rows: Sequence[Row]) -> None:
    """Write ``rows``. Raises NoTransaction, UnsupportedTarget and what `refusals` raises."""
    if not rows:
        return
    check_connection(connection)

    def run(sql: str, parameters: dict[str, Any]) -> CursorResult[Any]:
        if connection.dialect.driver == "asyncpg":
            return connection.exec_driver_sql(*numbered(sql, parameters))
        return connection.exec_driver_sql(sql, parameters)

    with refusals(connection.connection.driver_connection):
        rows = encrypted(rows, lambda sql, parameters: run(sql, parameters).fetchall())
        for sql, parameters in statements(rows):
            run(sql, parameters)


def check_connection(connection: Connection) -> None:
    """Refuse a connection that cannot write rows in the transaction of the change, or of another driver.

    Raises NoTransaction, UnsupportedTarget.
    """
    _check_driver(connection.dialect)
    if connection.closed or (connection.invalidated and connection.in_transaction()):
        raise NoTransaction("the connection is closed", field="target", hint="roll back, and open another one")
    if getattr(connection.get_transaction(), "_is_prepared", False):
        raise NoTransaction(
            "the transaction is prepared already", field="target", hint="add events before prepare()"
        )
    if _commits_by_itself(connection):
        raise NoTransaction(
            "the connection is in autocommit mode", field="target", hint="use an engine without AUTOCOMMIT"
        )


def _commits_by_itself(connection: Connection) -> bool:
    return bool(getattr(connection.connection.dbapi_connection, "autocommit", False))


async def insert_sqlalchemy_async(connection: AsyncConnection, rows: Sequence[Row]) -> None:
    """Write ``rows``. Raises what `insert_sqlalchemy` raises."""
    if rows:
        await connection.run_sync(insert_sqlalchemy, rows)


def _check_driver(dialect: Dialect) -> None:
    """Refuse an engine that does not use PostgreSQL through psycopg or asyncpg."""
    if dialect.name != "postgresql" or dialect.driver not in ("psycopg", "psycopg_async", "asyncpg"):
        raise UnsupportedTarget(
            f"the driver {dialect.name}+{dialect.driver} is not supported",
            field="target",
            hint="create the engine with postgresql+psycopg:// or postgresql+asyncpg://",
        )


# --- sessions ---


@dataclass(slots=True)
class _Waiting:
    """The rows of ``session`` that are not written yet, each batch with its transaction.

    ``announced``: a savepoint is about to be released. ``written``: the commit has begun and has written its
    rows. Rows that are added after that, for example by listeners of the flush, are written at once.
    ``kept``: written rows that are for a test, see `capturing`, until the commit has succeeded. ``alone``: the
    engines whose connection in this transaction is in autocommit mode.
    """

    session: Session
    batches: list[tuple[SessionTransaction, Sequence[Row]]] = field(default_factory=list)
    announced: bool = False
    written: bool = False
    kept: list[Row] = field(default_factory=list)
    alone: list[Engine] = field(default_factory=list)


def collect(session: Session, rows: Sequence[Row]) -> None:
    """Keep ``rows`` in the session until it commits. Raises NoTransaction, UnsupportedTarget."""
    if not rows:
        return
    _check_bind(session)
    transaction = _innermost(session)
    waiting = _watch(session)
    _check_commits(session, waiting)
    if waiting.written:
        _insert(session, rows)
    else:
        waiting.batches.append((transaction, tuple(rows)))


def write_later(session: Session, rows: list[Row]) -> None:
    """Make the session add its rows to ``rows`` when it commits, instead of writing them.

    For sessions that share a transaction: the code that commits it writes the rows of all sessions at once.
    """
    session.info[_LATER] = session, rows


def write_now(session: Session) -> None:
    """Write the rows that the session would write at its commit. Raises what `insert_sqlalchemy` raises."""
    waiting = _watch(session)
    if rows := [row for _, batch in waiting.batches for row in batch]:
        session.flush()
        _insert(session, rows)
        waiting.batches.clear()


def _insert(session: Session, rows: Sequence[Row]) -> None:
    if captured_rows.capture() is not None:
        _watch(session).kept.extend(rows)
        return
    owner, later = session.info.get(_LATER, (None, None))
    if owner is session:
        later.extend(rows)
    else:
        insert_sqlalchemy(session.connection(), rows)


def _check_bind(session: Session) -> None:
    if captured_rows.capture() is not None:
        return
    try:
        bind = session.get_bind()
    except UnboundExecutionError as error:
        raise UnsupportedTarget(
            "the session has no default engine", field="target", hint="create it with Session(engine)"
        ) from error
    _check_driver(bind.dialect)
    if isinstance(bind, Connection) and bind.closed:
        raise NoTransaction("the session's connection is closed", field="target", hint="open another one")


def _check_commits(session: Session, waiting: _Waiting) -> None:
    """Refuse a session whose connection is in autocommit mode, before it commits the change alone."""
    if waiting.alone and captured_rows.capture() is None and session.get_bind().engine in waiting.alone:
        raise NoTransaction(
            "the session's connection is in autocommit mode",
            field="target",
            hint="use an engine without AUTOCOMMIT",
        )


def _innermost(session: Session) -> SessionTransaction:
    """Return the session's current transaction or savepoint. Begins a transaction if none is open."""
    if not session.in_transaction():
        if not session.autobegin:
            raise NoTransaction("the session has not begun a transaction", field="target")
        session.begin()
    transaction = session.get_nested_transaction() or session.get_transaction()
    if transaction is None or not transaction.is_active:
        raise NoTransaction(
            "the session's transaction is over",
            field="target",
            hint="add events before the commit; after an error roll the session back first",
        )
    return transaction


def _watch(session: Session) -> _Waiting:
    """Return what waits in the session. The first call adds a listener for its commits.

    The listener is on this session, so it runs after listeners that the application has on all sessions. Those
    may still complete rows that the flush would refuse.
    """
    waiting: _Waiting | None = session.info.get(_KEY)
    if waiting is None or waiting.session is not session:
        # The second condition is needed because applications copy ``info`` between sessions.
        waiting = session.info[_KEY] = _Waiting(session)
        _listen(session)
    return waiting


def _listen(session: Session) -> None:
    """Call `_write` before each commit of a session.

    Each transaction of an application passes here. SQLAlchemy's register of listeners, from which this one is
    never removed, takes ten times as long as the rest.
    """
    listeners = session.dispatch.before_commit.for_modify(session.dispatch)
    if isinstance(found := getattr(listeners, "listeners", None), deque):
        found.append(_write)
    else:
        listen.listen(session, "before_commit", _write)


def _write(session: Session) -> None:
    waiting = _watch(session)
    if session.in_nested_transaction() and not waiting.announced:
        # Usually the release of a savepoint, which writes nothing. If it is the commit of the outer transaction,
        # this is called again before anything else happens.
        waiting.announced = True
        return
    # Listeners of the flush may add events, so flush first. The commit would flush anyway.
    session.flush()
    rows = [row for _, batch in waiting.batches for row in batch]
    if rows:
        _insert(session, rows)
    waiting.batches.clear()
    waiting.written = True


@listen.listens_for(Session, "after_transaction_create")
def _on_create(session: Session, _: SessionTransaction) -> None:
    # Always, because a listener may add the first event in the middle of a commit.
    _watch(session)


@listen.listens_for(Session, "after_begin")
def _on_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    """Look at the connection before the session writes by it. In autocommit mode each change commits alone."""
    if not connection.closed and connection.dialect.name == "postgresql" and _commits_by_itself(connection):
        waiting = _watch(session)
        waiting.alone.append(connection.engine)
        if waiting.batches:
            _check_commits(session, waiting)


@listen.listens_for(Session, "after_commit")
def _on_commit(session: Session) -> None:
    released, waiting = session.get_nested_transaction(), _watch(session)
    if released is None or released.parent is None:
        if waiting.kept and (take := captured_rows.capture()) is not None:
            take(tuple(waiting.kept))
        return
    waiting.announced = False
    waiting.batches = [
        (released.parent if owner is released else owner, batch) for owner, batch in waiting.batches
    ]


@listen.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    waiting = _watch(session)
    if ended.parent is None:
        waiting.batches.clear()
        waiting.kept.clear()
        waiting.alone.clear()
        waiting.announced = waiting.written = False
    elif ended.nested:
        waiting.announced = False
        waiting.batches = [(owner, batch) for owner, batch in waiting.batches if owner is not ended]


def _collect_async(session: AsyncSession, rows: Sequence[Row]) -> Ready[None]:
    collect(session.sync_session, rows)
    return Ready(None)


# --- all of them ---

_WRITERS: Final[Mapping[type, Write]] = {
    Session: collect,
    scoped_session: lambda scope, rows: collect(scope(), rows),
    Connection: insert_sqlalchemy,
    AsyncSession: _collect_async,
    async_scoped_session: lambda scope, rows: _collect_async(scope(), rows),
}
#: For further classes, by name: the module whose ``write`` serves the class. Its library may not be installed.
_MODULES: Final = {
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": "on_sqlalchemy",
    "psycopg.Connection": "on_psycopg",
    "psycopg.AsyncConnection": "on_psycopg",
    "asyncpg.connection.Connection": "on_asyncpg",
    "asyncpg.pool.PoolConnectionProxy": "on_asyncpg",
    "django.db.backends.base.base.BaseDatabaseWrapper": "on_django",
    "django.utils.connection.ConnectionProxy": "on_django",
}


def _writer(kind: type) -> Write | None:
    if kind in _WRITERS:
        return _WRITERS[kind]
    module = _MODULES.get(f"{kind.__module__}.{kind.__qualname__}")
    if module is None:
        return None
    found: Write = import_module(f"relay.adapters.postgres.{module}").write
    return found


def write(target: SyncTarget | AsyncTarget, rows: Sequence[Row], answer: Value) -> Value | Awaitable[Value]:
    """Record ``rows`` in the open transaction of ``target`` and return ``answer``, awaitable for an async target.

    A session keeps the rows until it commits. A connection writes them at once, in one statement for each kind of
    row; an asynchronous one when they are awaited. Raises UnsupportedTarget and NoTransaction.
    """

    def answering(_: None) -> Value:
        return answer

    for base in type(target).__mro__:
        if (writer := _writer(base)) is not None:
            captured_rows.check(base)
            written = writer(target, rows)
            return answer if written is None else then(written, answering)
    raise UnsupportedTarget(
        f"{type(target).__name__} is not a session or connection",
        field="target",
        hint="pass a session or connection of SQLAlchemy, or a connection of psycopg, asyncpg or Django",
    )


def then(value: Value | Awaitable[Value], change: Callable[[Value], Other]) -> Other | Awaitable[Other]:
    """Apply ``change`` to what `write` returned."""
    if isinstance(value, Ready):
        return Ready(change(value.value))
    if isinstance(value, Awaitable):
        return _change(value, change)
    return change(value)


async def _change(value: Awaitable[Value], change: Callable[[Value], Other]) -> Other:
    return change(await value)
