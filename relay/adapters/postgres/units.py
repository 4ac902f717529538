"""Units of work on SQLAlchemy sessions, plain and async.

A unit that begins by itself opens a session and commits it once. A unit that joins a session works in a savepoint
of it. If the unit fails, only its own writes are undone. The outer unit commits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeAlias, TypeVar, overload
from uuid import UUID

from pydantic import BaseModel
from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from relay.bus.errors import CommitRefused, NestedCommand
from relay.bus.messages import AggregateRoot, DomainEvent
from relay.bus.unit_of_work import Aggregate, EventOutbox, TaskSchedule, UnitOfWork
from relay.domain.errors import ConfigurationError
from relay.events import Event

AnySession = TypeVar("AnySession", bound=Session | AsyncSession)
Factory: TypeAlias = "Engine | sessionmaker[Session] | AsyncEngine | async_sessionmaker[AsyncSession]"
_HINT: Final = "return from the handler: the bus commits; to undo everything raise a DomainError"


class SqlAlchemyUnit(UnitOfWork[AnySession]):
    """One command's share of a session."""

    def __init__(self, units: SqlAlchemyUnits[AnySession], session: AnySession) -> None:
        self.session = session
        self.units = units
        self.plain: Session = session.sync_session if isinstance(session, AsyncSession) else session
        self._owner = _runner()
        # Saved aggregates, in order. The session forgets an object that is flushed and no longer referenced.
        self._saved: dict[int, AggregateRoot] = {}
        self._pulled: list[DomainEvent] = []

    @property
    def is_ours(self) -> bool:
        """Whether this thread and asyncio task began the unit. No other may use its session."""
        return self._owner == _runner()

    def save(self, aggregate: AggregateRoot) -> None:
        """See UnitOfWork."""
        self.plain.add(self.track(aggregate))

    def track(self, aggregate: Aggregate) -> Aggregate:
        """See UnitOfWork."""
        self._saved.setdefault(id(aggregate), aggregate)
        return aggregate

    def publish(self, event: Event | BaseModel) -> UUID:
        """See UnitOfWork."""
        id: UUID = self.units.outbox.add(self.plain, event)
        return id

    def schedule(self, task: Any, payload: Any, **options: Any) -> UUID:
        """See UnitOfWork. Raises ConfigurationError when the units were given no scheduler."""
        if self.units.task_schedule is None:
            raise ConfigurationError(
                "these units of work schedule no tasks", hint="SqlAlchemyUnits(…, schedule=tasks.schedule)"
            )
        id: UUID = self.units.task_schedule(self.plain, task, payload, **options)
        return id

    async def pull_events(self) -> Sequence[DomainEvent]:
        """See UnitOfWork."""
        if isinstance(self.session, AsyncSession):
            await self.session.flush()
        else:
            self.plain.flush()
        self.pull()
        events, self._pulled = self._pulled, []
        return events

    def pull(self) -> None:
        """Take the recorded events from the aggregates."""
        for entity in self.plain:
            if isinstance(entity, AggregateRoot):
                self.track(entity)
        for aggregate in self._saved.values():
            self._pulled += aggregate.pull_events()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Make this the current unit during the block, which must not end the transaction."""
        with Guard(self.plain).watch(), listening(self.plain, {"before_flush": self._on_flush}):
            token = _current.set(self)
            try:
                yield
            finally:
                _current.reset(token)

    def _on_flush(self, session: Session, *_: object) -> None:
        for entity in (*session.new, *session.dirty, *session.deleted):
            if isinstance(entity, AggregateRoot):
                self.track(entity)


class SqlAlchemyUnits(Generic[AnySession]):
    """Units of work on an engine or session factory.

    ``outbox``: takes integration events. ``schedule``: `tasks.schedule`, for services with background tasks.
    """

    @overload
    def __init__(
        self: SqlAlchemyUnits[Session],
        sessions: Engine | sessionmaker[Session],
        *,
        outbox: EventOutbox,
        schedule: TaskSchedule | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: SqlAlchemyUnits[AsyncSession],
        sessions: AsyncEngine | async_sessionmaker[AsyncSession],
        *,
        outbox: EventOutbox,
        schedule: TaskSchedule | None = None,
    ) -> None: ...
    def __init__(self, sessions: Factory, *, outbox: EventOutbox, schedule: TaskSchedule | None = None) -> None:
        self.outbox = outbox
        self.task_schedule = schedule
        self.is_async = isinstance(sessions, AsyncEngine | async_sessionmaker)
        self._sessions: Any = sessions
        if isinstance(sessions, Engine):
            self._sessions = sessionmaker(sessions, expire_on_commit=False)
        elif isinstance(sessions, AsyncEngine):
            self._sessions = async_sessionmaker(sessions, expire_on_commit=False)

    @asynccontextmanager
    async def begin(self, session: AnySession | None = None) -> AsyncIterator[UnitOfWork[AnySession]]:
        """See UnitsOfWork. Code in another thread or asyncio task begins a unit of its own."""
        outer = _current.get()
        if outer is not None and not (outer.units is self and outer.is_ours):
            outer = None
        if outer is not None and session is None:
            raise NestedCommand(
                "a command was dispatched inside of another's transaction",
                hint="session=unit.session makes it a part of that one; otherwise dispatch it before or after",
            )
        if outer is not None and session is outer.session:
            outer.pull()  # a failure of the inner unit must not drop these
        begun = self._open() if session is None else self._join(session)
        async with begun as unit:
            yield unit

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[SqlAlchemyUnit[AnySession]]:
        session: AnySession = self._sessions()
        try:
            unit = SqlAlchemyUnit(self, session)
            if not unit.plain.in_transaction():
                unit.plain.begin()
            with unit.running():
                yield unit
            if isinstance(session, AsyncSession):
                await session.commit()
            else:
                unit.plain.commit()
        finally:
            # Closing rolls back what is not committed. Even a cancelled task must wait for it.
            if isinstance(session, AsyncSession):
                await asyncio.shield(session.close())
            else:
                unit.plain.close()

    @asynccontextmanager
    async def _join(self, session: AnySession) -> AsyncIterator[SqlAlchemyUnit[AnySession]]:
        unit = SqlAlchemyUnit(self, session)
        async with _savepoint(session):
            try:
                with unit.running():
                    yield unit
            except BaseException:
                unit.pull()  # aggregates may outlive the savepoint; drop their events
                raise


@asynccontextmanager
async def _savepoint(session: Session | AsyncSession) -> AsyncIterator[None]:
    if isinstance(session, AsyncSession):
        async with session.begin_nested():
            yield
    else:
        with session.begin_nested():
            yield


_current: ContextVar[SqlAlchemyUnit[Any] | None] = ContextVar("relay_unit_of_work", default=None)


def _runner() -> tuple[int, asyncio.Task[Any] | None]:
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # no event loop
        return threading.get_ident(), None


# --- what a handler may not do ---


class Guard:
    """Stops code that uses a lent session from ending its transaction.

    Watches the session's current transaction or savepoint. Savepoints that begin inside it are allowed.

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
