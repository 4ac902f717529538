"""Stops code that uses a lent session from ending its transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import Session, SessionTransaction

from relay.bus.errors import CommitRefused

_HINT: Final = "return from the handler: the bus commits; to undo everything raise a DomainError"


class Guard:
    """Watches the session's current transaction or savepoint. Savepoints that begin inside it are allowed.

    A commit is refused before it happens. A rollback or close cannot be; it raises at the end of the block.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._transaction = session.get_nested_transaction() or session.get_transaction()
        self._announced = False
        self._ended = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch during the block. Raises CommitRefused."""
        with listening(self._session, {"before_commit": self._on_commit, "after_transaction_end": self._on_end}):
            try:
                yield
            except InvalidRequestError as error:
                # SQLAlchemy raises this when a session is used after its end.
                self._check(error)
                raise
            self._check(None)

    def _on_commit(self, session: Session) -> None:
        if session.in_nested_transaction() and not self._announced:
            # Usually the release of a savepoint. If it is the commit of the outer transaction, this is called
            # again before anything else happens.
            self._announced = True
            return
        raise CommitRefused("a handler must not commit the session of its unit of work", hint=_HINT)

    def _on_end(self, _: Session, ended: SessionTransaction) -> None:
        self._announced = False
        self._ended = self._ended or ended is self._transaction

    def _check(self, error: Exception | None) -> None:
        if self._ended:
            raise CommitRefused(
                "a handler rolled back or closed the session of its unit of work", hint=_HINT
            ) from error


@contextmanager
def listening(session: Session, listeners: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Listen to events of one session during the block."""
    for name, listener in listeners.items():
        event.listen(session, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(session, name, listener)
