"""Events and tasks added to a SQLAlchemy session wait in the session and are written when it commits.

They are written at the last moment and all at once. So they hold the locks of their keys only briefly, and the
locks are taken in one sorted order, so that two transactions cannot deadlock over them. A row belongs to the
innermost transaction or savepoint in which it was added. A released savepoint hands its rows to the transaction
around it. Rows that a transaction still has when it ends are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import event as listen
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from relay.adapters.postgres.enqueue import Row, check_driver, insert_sqlalchemy
from relay.domain.errors import NoTransaction, UnsupportedTarget

_KEY: Final = "jetrelay_outbox"
_LATER: Final = "jetrelay_outbox_later"


@dataclass(slots=True)
class _Waiting:
    """The rows of ``session`` that are not written yet, each batch with its transaction.

    ``announced``: a savepoint is about to be released. ``written``: the commit has begun and has written its
    rows. Rows that are added after that, for example by listeners of the flush, are written at once.
    """

    session: Session
    batches: list[tuple[SessionTransaction, Sequence[Row]]] = field(default_factory=list)
    announced: bool = False
    written: bool = False


def collect(session: Session, rows: Sequence[Row]) -> None:
    """Keep ``rows`` in the session until it commits. Raises NoTransaction, UnsupportedTarget."""
    if not rows:
        return
    _check_bind(session)
    transaction = _innermost(session)
    waiting = _watch(session)
    if waiting.written:
        _insert(session, rows)
    else:
        waiting.batches.append((transaction, tuple(rows)))


def write_later(session: Session, rows: list[Row]) -> None:
    """Make the session add its rows to ``rows`` when it commits, instead of writing them.

    For sessions that share a transaction: the code that commits it writes the rows of all sessions at once.
    """
    session.info[_LATER] = session, rows


def _insert(session: Session, rows: Sequence[Row]) -> None:
    owner, later = session.info.get(_LATER, (None, None))
    if owner is session:
        later.extend(rows)
    else:
        insert_sqlalchemy(session.connection(), rows)


def _check_bind(session: Session) -> None:
    try:
        bind = session.get_bind()
    except UnboundExecutionError as error:
        raise UnsupportedTarget(
            "the session has no default engine", field="target", hint="create it with Session(engine)"
        ) from error
    check_driver(bind.dialect)


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
        listen.listen(session, "before_commit", _write)
    return waiting


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


@listen.listens_for(Session, "after_commit")
def _on_commit(session: Session) -> None:
    released = session.get_nested_transaction()
    if released is None or released.parent is None:
        return
    waiting = _watch(session)
    waiting.announced = False
    waiting.batches = [
        (released.parent if owner is released else owner, batch) for owner, batch in waiting.batches
    ]


@listen.listens_for(Session, "after_transaction_end")
def _on_end(session: Session, ended: SessionTransaction) -> None:
    waiting = _watch(session)
    if ended.parent is None:
        waiting.batches.clear()
        waiting.announced = waiting.written = False
    elif ended.nested:
        waiting.announced = False
        waiting.batches = [(owner, batch) for owner, batch in waiting.batches if owner is not ended]
