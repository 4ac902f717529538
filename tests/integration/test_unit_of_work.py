"""One command, one transaction, on a real database: what commits together, and what is undone together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from relay import Event, Outbox, RequestContext
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import (
    AggregateRoot,
    Command,
    CommandBus,
    DomainEvent,
    DomainEventBus,
    Failed,
    Ok,
    TransactionalCommandBus,
    UnitOfWork,
)
from relay.bus.errors import CommitRefused, EndlessEvents, NestedCommand
from relay.domain.errors import ConfigurationError, DomainError, InvalidHandler
from tests.integration.publishing import engine_url, outbox_rows, query

Unit = UnitOfWork[Session]


class Opened(DomainEvent):
    name: str


class Base(DeclarativeBase):
    pass


class Case(AggregateRoot, Base):
    __tablename__ = "cases"
    name: Mapped[str] = mapped_column(primary_key=True)
    note: Mapped[str] = mapped_column(default="")

    @classmethod
    def open(cls, name: str) -> Case:
        case = cls(name=name)
        case.record(Opened(name=name))
        return case


class Open(Command[str]):
    name: str


class Do(Command[Any]):
    """Whatever a test's handler does."""

    name: str = ""


class Taken(DomainError):
    code = "TAKEN"


def integration(name: str) -> Event:
    return Event(event_type="case_opened", aggregate_type="case", aggregate_id=name, payload={})


class Service:
    """A service with one aggregate. ``scheduled`` is what the task scheduler was called with."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: Engine = create_engine(engine_url(url))
        Base.metadata.create_all(self.engine)
        self.commands, self.events = CommandBus(), DomainEventBus()
        self.scheduled: list[Any] = []
        self.units = SqlAlchemyUnits(self.engine, outbox=Outbox("sea"), schedule=self.schedule)
        self.bus = TransactionalCommandBus(self.commands, self.units, self.events)
        self.commands.handles(Open)(self.open)

    def open(self, command: Open, unit: Unit) -> str:
        unit.save(Case.open(command.name))
        return command.name

    def schedule(self, target: Session, task: str, payload: Any, **options: Any) -> UUID:
        self.scheduled.append((task, payload, options, RequestContext.current()))
        target.execute(text("INSERT INTO cases (name, note) VALUES (:task, 'task')"), {"task": task})
        return uuid4()

    def do(self, function: Callable[..., Any], **options: Any) -> Any:
        """Dispatch a command that is handled by ``function``."""
        commands = CommandBus()
        commands.handles(Do)(function)
        return TransactionalCommandBus(commands, self.units, self.events).dispatch(Do(), **options)

    def cases(self) -> list[str]:
        return [row["name"] for row in query(self.url, "SELECT name FROM cases ORDER BY name")]

    def published(self) -> list[str]:
        return [row["aggregate_id"] for row in outbox_rows(self.url)]


@pytest.fixture
def service(database_url: str) -> Iterator[Service]:
    service = Service(database_url)
    yield service
    service.engine.dispose()


@pytest.fixture
def telling(service: Service) -> Service:
    """A service that tells of each case it opens, and has a task for it."""

    @service.events.on(Opened)
    def tell(event: Opened, unit: Unit) -> None:
        unit.publish(integration(event.name))
        unit.schedule(f"greet {event.name}", {"name": event.name}, delay=3)

    return service


# --- together ---


def test_aggregate_event_and_task_commit_together(telling: Service) -> None:
    seen: list[list[str]] = []
    telling.events.on(Opened)(lambda _: seen.append([*telling.cases(), *telling.published()]))
    assert telling.bus.dispatch(Open(name="a")) == Ok("a")
    assert seen == [[]]  # nothing was visible before the commit
    assert (telling.cases(), telling.published()) == (["a", "greet a"], ["a"])


def test_correlation_stays_and_the_domain_event_is_the_cause(telling: Service) -> None:
    heard: list[Opened] = []
    telling.events.on(Opened)(heard.append)
    correlation = uuid4()
    with RequestContext(correlation_id=correlation, causation_id=uuid4()).use():
        telling.bus.dispatch(Open(name="a"))
    [row] = outbox_rows(telling.url)
    assert (row["correlation_id"], row["causation_id"]) == (correlation, heard[0].id)
    [(task, payload, options, context)] = telling.scheduled
    assert (task, payload, options) == ("greet a", {"name": "a"}, {"delay": 3})
    assert context == RequestContext(correlation_id=correlation, causation_id=heard[0].id)


def test_events_of_one_command_without_a_request_share_a_new_correlation(telling: Service) -> None:
    telling.bus.dispatch(Open(name="a"))
    telling.bus.dispatch(Open(name="b"))
    ids = {row["correlation_id"] for row in outbox_rows(telling.url)}
    assert len(ids - {None}) == 2


# --- undone ---


def fail(_: object) -> Failed:
    return Failed(Taken("no"))


def refuse(_: object) -> None:
    raise Taken("no")


def crash(_: object) -> None:
    raise OSError("disk")


@pytest.mark.parametrize(
    ("where", "end"),
    [("handler", fail), ("handler", refuse), ("handler", crash), ("event", refuse), ("event", crash)],
)
def test_a_failure_undoes_everything(telling: Service, end: Callable[..., Any], where: str) -> None:
    heard: list[Opened] = []
    telling.events.on(Opened)(heard.append)

    def handle(command: Do, unit: Unit) -> Any:
        unit.save(Case.open("a"))
        unit.publish(integration("before"))
        unit.session.flush()
        return end(command) if where == "handler" else "fine"

    if where == "event":
        telling.events.on(Opened)(end)
    if end is crash:
        with pytest.raises(OSError, match="disk"):
            telling.do(handle)
    else:
        assert telling.do(handle).code == "TAKEN"
    assert (telling.cases(), telling.published()) == ([], [])
    assert bool(heard) == (where == "event")


def test_a_commit_that_fails_fails_the_command(telling: Service) -> None:
    telling.bus.dispatch(Open(name="a"))
    with pytest.raises(IntegrityError):
        telling.bus.dispatch(Open(name="a"))
    assert telling.published() == ["a"]


# --- domain events ---


def test_an_event_may_lead_to_further_ones_in_the_same_transaction(telling: Service) -> None:
    @telling.events.on(Opened)
    def follow(event: Opened, unit: Unit) -> None:
        if len(event.name) < 3:
            unit.save(Case.open(event.name + "+"))

    telling.bus.dispatch(Open(name="a"))
    assert telling.published() == ["a", "a+", "a++"]


def test_events_without_end_are_refused(service: Service) -> None:
    service.events.on(Opened)(lambda event, unit: unit.save(Case.open(event.name + "+")))
    with pytest.raises(EndlessEvents, match=r"ENDLESS_EVENTS: .* 100 times in a row; the last: Opened"):
        service.bus.dispatch(Open(name="a"))
    assert service.cases() == []


def test_an_aggregate_is_heard_though_nobody_holds_it_after_a_flush(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> None:
        unit.session.add(Case.open("a"))
        unit.session.flush()

    telling.do(handle)
    assert telling.published() == ["a"]


def test_a_changed_aggregate_is_heard_without_being_saved(telling: Service) -> None:
    telling.bus.dispatch(Open(name="a"))

    def handle(_: Do, unit: Unit) -> None:
        case = unit.session.get_one(Case, "a")
        case.note = "changed"
        case.record(Opened(name="again"))

    telling.do(handle)
    assert telling.published() == ["a", "again"]


def test_an_aggregate_of_another_mapping_is_heard_when_tracked(telling: Service) -> None:
    class Plain(AggregateRoot):
        pass

    def handle(_: Do, unit: Unit) -> None:
        unit.track(Plain()).record(Opened(name="a"))

    telling.do(handle)
    assert telling.published() == ["a"]


# --- nobody but the bus commits ---


@pytest.mark.parametrize(
    "end",
    [
        lambda session: session.commit(),
        lambda session: session.get_transaction().commit(),
        lambda session: session.rollback(),
        lambda session: session.close(),
        lambda session: (session.begin_nested(), session.commit()),
    ],
    ids=["commit", "transaction", "rollback", "close", "savepoint"],
)
@pytest.mark.parametrize("joined", [False, True])
def test_a_handler_must_not_end_the_transaction(
    telling: Service, end: Callable[[Session], Any], joined: bool
) -> None:
    def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("a"))
        unit.session.flush()
        end(unit.session)
        unit.save(Case.open("b"))

    def outer(_: Do, unit: Unit) -> Any:
        return telling.do(handle, session=unit.session).unwrap()

    with pytest.raises(CommitRefused, match="COMMIT_REFUSED: a handler "):
        telling.do(outer if joined else handle)
    assert (telling.cases(), telling.published()) == ([], [])


def test_a_handler_may_use_savepoints(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> None:
        with unit.session.begin_nested():
            unit.save(Case.open("a"))
        with unit.session.begin_nested() as savepoint:
            unit.session.add(Case(name="b"))
            savepoint.rollback()

    telling.do(handle)
    assert telling.cases() == ["a", "greet a"]


# --- commands within commands ---


def test_a_command_within_a_command_commits_with_it(telling: Service) -> None:
    seen: list[list[str]] = []

    def handle(_: Do, unit: Unit) -> str:
        name = telling.bus.dispatch(Open(name="inner"), session=unit.session).unwrap()
        seen.append(telling.cases())
        unit.save(Case.open("outer"))
        return name

    assert telling.do(handle) == Ok("inner")
    assert seen == [[]]
    assert telling.published() == ["inner", "outer"]


def test_its_failure_undoes_its_own_part_only(telling: Service) -> None:
    inner = Case.open("inner")

    def fail_inside(_: Do, unit: Unit) -> Failed:
        unit.save(inner)
        unit.publish(integration("never"))
        unit.session.flush()
        return Failed(Taken("no"))

    def handle(_: Do, unit: Unit) -> str:
        unit.save(Case.open("outer"))
        unit.publish(integration("early"))
        return str(telling.do(fail_inside, session=unit.session).code)

    assert telling.do(handle) == Ok("TAKEN")
    assert telling.cases() == ["greet outer", "outer"]
    assert telling.published() == ["early", "outer"]
    assert inner.pull_events() == ()


def test_the_outer_failure_undoes_both(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> Failed:
        telling.bus.dispatch(Open(name="inner"), session=unit.session).unwrap()
        return Failed(Taken("no"))

    assert isinstance(telling.do(handle), Failed)
    assert (telling.cases(), telling.published()) == ([], [])


def test_a_command_within_a_command_that_does_not_say_so_is_refused(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("outer"))
        telling.bus.dispatch(Open(name="inner"))

    with pytest.raises(NestedCommand, match=r"session=unit\.session") as raised:
        telling.do(handle)
    assert raised.value.code == "NESTED_COMMAND"
    assert (telling.cases(), telling.published()) == ([], [])


def test_one_that_is_refused_within_another_may_be_left_out(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> None:
        with suppress(NestedCommand):
            telling.bus.dispatch(Open(name="inner"))
        unit.save(Case.open("outer"))

    telling.do(handle)
    assert telling.published() == ["outer"]


def test_a_handler_of_domain_events_says_so_as_well(telling: Service) -> None:
    def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("outer"))

    telling.events.on(Opened)(lambda _: telling.bus.dispatch(Open(name="inner")))
    with pytest.raises(NestedCommand):
        telling.do(handle)
    assert telling.cases() == []


def test_a_command_in_another_thread_has_a_transaction_of_its_own(telling: Service) -> None:
    import contextvars

    def handle(_: Do) -> Failed:
        around = contextvars.copy_context()
        thread = threading.Thread(target=around.run, args=(telling.bus.dispatch, Open(name="thread")))
        thread.start()
        thread.join(30)
        return Failed(Taken("no"))

    telling.do(handle)
    assert telling.published() == ["thread"]


# --- in somebody else's transaction ---


@pytest.mark.parametrize("commit", [True, False])
def test_a_command_joins_a_session_and_leaves_the_commit_to_its_owner(telling: Service, commit: bool) -> None:
    with Session(telling.engine) as session:
        assert telling.bus.dispatch(Open(name="a"), session=session) == Ok("a")
        assert telling.cases() == []
        if commit:
            session.commit()
    assert (telling.cases(), telling.published()) == ((["a", "greet a"], ["a"]) if commit else ([], []))


def test_a_command_that_fails_in_a_session_leaves_the_rest_of_it(telling: Service) -> None:
    commands = CommandBus()

    @commands.handles(Do)
    def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("b"))
        unit.session.flush()
        raise Taken("no")

    bus = TransactionalCommandBus(commands, telling.units, telling.events)
    with Session(telling.engine) as session, session.begin():
        session.add(Case(name="a"))
        assert isinstance(bus.dispatch(Do(), session=session), Failed)
        OUT.add(session, integration("a"))
    assert (telling.cases(), telling.published()) == (["a"], ["a"])


OUT = Outbox("sea")


def test_a_handler_that_waits_needs_a_loop(telling: Service) -> None:
    async def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("a"))
        unit.session.flush()
        await asyncio.sleep(0)

    with pytest.raises(InvalidHandler, match="await dispatch_async"):
        telling.do(handle)
    assert telling.cases() == []
    assert telling.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_units_without_a_scheduler_say_so(service: Service) -> None:
    service.units = SqlAlchemyUnits(service.engine, outbox=OUT)
    with pytest.raises(ConfigurationError, match=r"SqlAlchemyUnits\(…, schedule="):
        service.do(lambda _, unit: unit.schedule("greet", {}))


def test_a_second_transaction_begins_after_the_first(telling: Service) -> None:
    for name in "abc":
        telling.bus.dispatch(Open(name=name))
    assert telling.published() == ["a", "b", "c"]
    assert telling.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
