"""Events in a SQLAlchemy session share the fate of the work they were added with: savepoints, listeners, reuse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy import event as listen
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, object_session, sessionmaker

from relay import Outbox
from relay.domain.errors import DuplicateMessage, NoTransaction
from tests.integration.publishing import engine_url, event, outbox_rows, query

OUTBOX = Outbox("vibespro")


class Base(DeclarativeBase):
    pass


class Vibe(Base):
    __tablename__ = "vibes"
    id: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(engine_url(database_url))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    # A factory of this test alone, so that listeners of one test are not heard in another.
    with sessionmaker(engine)() as session:
        yield session


def add(session: Session, name: str) -> UUID:
    return OUTBOX.add(session, event(name))


def names(url: str) -> list[str]:
    return [row["aggregate_id"] for row in outbox_rows(url)]


def vibe(number: int, **values: Any) -> Vibe:
    return Vibe(id=number, **{"owner": "ann"} | values)


# --- before the commit ---


def test_adding_an_event_flushes_nothing_and_needs_no_connection(session: Session, engine: Engine) -> None:
    session.add(vibe(1))
    add(session, "a")
    assert list(session.new)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_flush_and_a_query_write_no_event(session: Session, database_url: str) -> None:
    add(session, "a")
    session.add(vibe(1))
    session.flush()
    assert session.scalar(text("SELECT count(*) FROM outbox_events")) == 0
    session.commit()
    assert names(database_url) == ["a"]


def test_an_event_alone_makes_a_transaction_that_can_be_rolled_back(session: Session, database_url: str) -> None:
    add(session, "forgotten")
    assert session.in_transaction()
    session.rollback()
    session.commit()
    assert names(database_url) == []


def test_a_session_closed_without_commit_forgets(engine: Engine, database_url: str) -> None:
    session = Session(engine)
    add(session, "forgotten")
    session.add(vibe(1))
    session.flush()
    session.close()
    add(session, "kept")
    session.commit()
    session.close()
    assert names(database_url) == ["kept"]


def test_an_error_in_the_block_of_a_transaction_forgets(engine: Engine, database_url: str) -> None:
    session = Session(engine)
    with pytest.raises(RuntimeError, match="changed its mind"), session.begin():
        _fail(add(session, "forgotten"))
    with session.begin():
        session.add(vibe(1))
    assert names(database_url) == []


def _fail(_: object) -> None:
    raise RuntimeError("the application changed its mind")


def test_an_event_that_cannot_be_written_fails_the_commit(session: Session, database_url: str) -> None:
    first = add(session, "a")
    session.commit()
    session.add(vibe(1))
    OUTBOX.add(session, event("b", id=first))
    with pytest.raises(DuplicateMessage):
        session.commit()
    session.rollback()
    session.commit()
    assert names(database_url) == ["a"]
    assert query(database_url, "SELECT * FROM vibes") == []


# --- savepoints ---


def test_a_savepoint_rolled_back_forgets_its_own_events_only(session: Session, database_url: str) -> None:
    add(session, "before")
    savepoint = session.begin_nested()
    add(session, "forgotten")
    savepoint.rollback()
    add(session, "after")
    session.commit()
    assert names(database_url) == ["before", "after"]


def test_a_savepoint_released_keeps_its_events_until_the_commit(session: Session, database_url: str) -> None:
    with session.begin_nested():
        add(session, "inner")
    assert session.scalar(text("SELECT count(*) FROM outbox_events")) == 0
    add(session, "outer")
    session.commit()
    assert names(database_url) == ["inner", "outer"]


@pytest.mark.parametrize("way", ["outer savepoint", "transaction"])
def test_a_savepoint_released_inside_of_what_is_rolled_back_is_forgotten(
    session: Session, database_url: str, way: str
) -> None:
    add(session, "first")
    outer = session.begin_nested()
    with session.begin_nested():
        add(session, "inner")
    if way == "outer savepoint":
        outer.rollback()
    else:
        session.rollback()
    add(session, "last")
    session.commit()
    assert names(database_url) == (["first", "last"] if way == "outer savepoint" else ["last"])


def test_a_flush_that_fails_in_a_savepoint_costs_the_savepoint_only(session: Session, database_url: str) -> None:
    add(session, "kept")
    savepoint = session.begin_nested()
    add(session, "forgotten")
    session.add(Vibe(id=1))
    with pytest.raises(IntegrityError):
        session.flush()
    savepoint.rollback()
    session.commit()
    assert names(database_url) == ["kept"]


def test_a_commit_around_a_savepoint_left_open_writes_its_events(engine: Engine, database_url: str) -> None:
    with Session(engine) as session, session.begin():
        add(session, "outer")
        session.begin_nested()
        session.begin_nested()
        add(session, "inner")
    assert names(database_url) == ["outer", "inner"]


@pytest.mark.anyio
async def test_savepoints_of_an_asynchronous_session_work_alike(engine: Engine, database_url: str) -> None:
    async_engine = create_async_engine(engine_url(database_url))
    async with AsyncSession(async_engine) as session:
        OUTBOX.add(session, event("not awaited"))
        async with session.begin_nested():
            await OUTBOX.add(session, event("released"))
        savepoint = await session.begin_nested()
        await OUTBOX.add(session, event("forgotten"))
        await savepoint.rollback()
        session.add(vibe(1))
        await session.commit()
        await OUTBOX.add(session, event("closed"))
    await async_engine.dispose()
    assert names(database_url) == ["not awaited", "released"]


def test_a_session_inside_of_a_foreign_transaction_follows_it(engine: Engine, database_url: str) -> None:
    with engine.connect() as connection:
        for outcome in ("rollback", "commit"):
            transaction = connection.begin()
            with Session(connection, join_transaction_mode="create_savepoint") as session:
                add(session, outcome)
                session.commit()
            getattr(transaction, outcome)()
    assert names(database_url) == ["commit"]


# --- events added by listeners, the first of the session among them ---


@pytest.mark.parametrize("moment", ["before_flush", "after_flush", "after_flush_postexec", "before_commit"])
def test_an_event_added_by_a_listener_during_the_commit_is_written(
    engine: Engine, database_url: str, moment: str
) -> None:
    factory = sessionmaker(engine)
    listen.listen(factory, moment, lambda session, *_: add(session, moment))
    for number in (1, 2):
        with factory() as session, session.begin():
            session.add(vibe(number))
    assert names(database_url) == [moment] * 2


def test_an_event_added_by_a_listener_of_one_session_is_written(session: Session, database_url: str) -> None:
    session.begin()
    listen.listen(session, "before_commit", lambda session: add(session, "last"))
    session.commit()
    assert names(database_url) == ["last"]


def test_an_event_added_by_a_mapper_listener_is_written(session: Session, database_url: str) -> None:
    def inserted(_mapper: object, _connection: object, target: Vibe) -> None:
        found = object_session(target)
        assert found
        add(found, f"vibe {target.id}")

    listen.listen(Vibe, "after_insert", inserted)
    try:
        session.add_all([vibe(1), vibe(2)])
        session.commit()
    finally:
        listen.remove(Vibe, "after_insert", inserted)
    assert names(database_url) == ["vibe 1", "vibe 2"]


def test_a_flush_that_causes_another_flush_may_add_events_in_both(engine: Engine, database_url: str) -> None:
    factory = sessionmaker(engine)

    def flushed(session: Session, *_: object) -> None:
        add(session, f"{len(session.new)} new")
        if not session.info.setdefault("again", []):
            session.info["again"].append(True)
            session.add(vibe(2))
            session.add(vibe(3))

    listen.listen(factory, "after_flush_postexec", flushed)
    with factory() as session, session.begin():
        session.add(vibe(1))
    assert len(names(database_url)) == 2


def test_a_listener_may_complete_rows_before_the_commit_flushes_them(engine: Engine, database_url: str) -> None:
    factory = sessionmaker(engine)

    def complete(session: Session) -> None:
        for found in session.new:
            found.owner = "system"

    listen.listen(factory, "before_commit", complete)
    with factory() as session, session.begin():
        session.add(Vibe(id=1))
        add(session, "a")
    assert [row["owner"] for row in query(database_url, "SELECT owner FROM vibes")] == ["system"]
    assert names(database_url) == ["a"]


def test_sessions_that_share_their_info_do_not_share_their_events(engine: Engine, database_url: str) -> None:
    with Session(engine) as one:
        add(one, "forgotten")
        with Session(engine, info=one.info) as other:
            add(other, "kept")
            other.commit()
    assert names(database_url) == ["kept"]


def test_after_a_failed_flush_only_a_rollback_helps(session: Session, database_url: str) -> None:
    session.add(Vibe(id=1))
    with pytest.raises(IntegrityError):
        session.flush()
    with pytest.raises(NoTransaction):
        add(session, "too late")
    session.rollback()
    add(session, "in time")
    session.commit()
    assert names(database_url) == ["in time"]
