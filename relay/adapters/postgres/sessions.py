"""Events added to a SQLAlchemy session wait in the session and are written when it commits.

Written at the last moment, all at once, they hold the locks of their keys for an instant only, and the
locks of a whole transaction are taken in one sorted order, so that two transactions cannot deadlock
over them. A rollback, of a savepoint too, forgets the events added since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import event as listen
from sqlalchemy.orm import Session, SessionTransaction

from relay.adapters.postgres.enqueue import insert_sqlalchemy
from relay.domain.model import OutboxEvent

_KEY: Final = "jetrelay_outbox"


@dataclass(frozen=True, slots=True)
class _Pending:
    """Events, and the transactions whose rollback takes them back: the savepoint and all around it."""

    events: Sequence[OutboxEvent]
    transactions: tuple[SessionTransaction, ...]


def collect(session: Session, events: Sequence[OutboxEvent]) -> None:
    """Keep ``events`` in the session until it commits."""
    if _KEY not in session.info:
        session.info[_KEY] = []
        listen.listen(session, "before_commit", _write)
        listen.listen(session, "after_soft_rollback", _forget)
    session.info[_KEY].append(_Pending(tuple(events), _enclosing(session)))


def pending(session: Session) -> list[OutboxEvent]:
    """The events that the session's commit will write."""
    return [event for batch in session.info.get(_KEY, ()) for event in batch.events]


def _enclosing(session: Session) -> tuple[SessionTransaction, ...]:
    current = session.get_nested_transaction() or session.get_transaction()
    found = []
    while current is not None:
        found.append(current)
        current = current.parent
    return tuple(found)


def _write(session: Session) -> None:
    if not pending(session):
        return
    # Listeners of the flush may add events of their own, so the flush that a commit does anyway comes first.
    session.flush()
    events = pending(session)
    session.info[_KEY].clear()
    insert_sqlalchemy(session.connection(), events)


def _forget(session: Session, rolled_back: SessionTransaction) -> None:
    kept = [batch for batch in session.info[_KEY] if rolled_back not in batch.transactions]
    if not session.in_transaction():
        # The whole transaction is gone, and with it what was added before it had begun to talk to the database.
        kept = []
    session.info[_KEY][:] = kept
