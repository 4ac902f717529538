"""The same unit of work from async code: one implementation, another kind of session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from relay import Event, Outbox
from relay.adapters.postgres.units import SqlAlchemyUnits
from relay.bus import Command, CommandBus, DomainEventBus, Failed, Ok, TransactionalCommandBus, UnitOfWork
from relay.bus.errors import CommitRefused, NestedCommand
from relay.domain.errors import InvalidHandler
from tasks import schedule, task
from tests.integration.publishing import engine_url, outbox_rows, query
from tests.integration.test_unit_of_work import Base, Case, Do, Opened, Taken

pytestmark = pytest.mark.anyio
Unit = UnitOfWork[AsyncSession]


@task("greet_in_tests_of_units")
def greet(name: str) -> None: ...


class Open(Command[str]):
    name: str


class Service:
    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: AsyncEngine = create_async_engine(engine_url(url))
        self.commands, self.events = CommandBus(), DomainEventBus()
        self.units = SqlAlchemyUnits(self.engine, outbox=Outbox("sea"), schedule=schedule)
        self.bus = TransactionalCommandBus(self.commands, self.units, self.events)
        self.commands.handles(Open)(self.open)
        self.events.on(Opened)(self.tell)

    async def open(self, command: Open, unit: Unit) -> str:
        assert await unit.session.get(Case, command.name) is None
        unit.save(Case.open(command.name))
        await unit.session.flush()
        return command.name

    def tell(self, event: Opened, unit: Unit) -> None:
        aggregate = {"aggregate_type": "case", "aggregate_id": event.name}
        assert isinstance(unit.publish(Event(event_type="case_opened", payload={}, **aggregate)), UUID)

    async def do(self, function: Callable[..., Any], **options: Any) -> Any:
        commands = CommandBus()
        commands.handles(Do)(function)
        return await TransactionalCommandBus(commands, self.units, self.events).dispatch_async(Do(), **options)

    def cases(self) -> list[str]:
        return [row["name"] for row in query(self.url, "SELECT name FROM cases ORDER BY name")]

    def published(self) -> list[str]:
        return [row["aggregate_id"] for row in outbox_rows(self.url)]


@pytest.fixture
async def service(database_url: str) -> AsyncIterator[Service]:
    service = Service(database_url)
    async with service.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield service
    await service.engine.dispose()


async def test_aggregate_and_event_commit_together(service: Service) -> None:
    seen: list[list[str]] = []

    @service.events.on(Opened)
    async def look(_: Opened, unit: Unit) -> None:
        await unit.session.flush()
        seen.append(service.cases())

    assert await service.bus.dispatch_async(Open(name="a")) == Ok("a")
    assert seen == [[]]
    assert (service.cases(), service.published()) == (["a"], ["a"])


async def test_a_failure_undoes_everything(service: Service) -> None:
    async def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("a"))
        await unit.session.flush()
        raise Taken("no")

    assert isinstance(await service.do(handle), Failed)
    assert (service.cases(), service.published()) == ([], [])


async def test_a_command_within_a_command_joins_and_fails_alone(service: Service) -> None:
    async def fail(_: Do, unit: Unit) -> Failed:
        unit.save(Case.open("never"))
        await unit.session.flush()
        return Failed(Taken("no"))

    async def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("outer"))
        with pytest.raises(NestedCommand):
            await service.bus.dispatch_async(Open(name="silent"))
        await service.bus.dispatch_async(Open(name="inner"), session=unit.session)
        assert isinstance(await service.do(fail, session=unit.session), Failed)
        assert service.cases() == []

    await service.do(handle)
    assert (service.cases(), service.published()) == (["inner", "outer"], ["inner", "outer"])


async def test_a_command_joins_a_session(service: Service) -> None:
    async with AsyncSession(service.engine) as session, session.begin():
        await service.bus.dispatch_async(Open(name="a"), session=session)
        assert service.cases() == []
    assert (service.cases(), service.published()) == (["a"], ["a"])


@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
async def test_a_handler_must_not_end_the_transaction(service: Service, end: str) -> None:
    async def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("a"))
        await unit.session.flush()
        await getattr(unit.session, end)()

    with pytest.raises(CommitRefused):
        await service.do(handle)
    assert (service.cases(), service.published()) == ([], [])


async def test_commands_in_tasks_of_their_own_have_transactions_of_their_own(service: Service) -> None:
    async def handle(_: Do) -> Failed:
        async with asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(service.bus.dispatch_async(Open(name=name)))
        return Failed(Taken("no"))

    await service.do(handle)
    assert sorted(service.published()) == ["a", "b"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_task_is_written_with_the_rest_or_not_at_all(service: Service, fails: bool) -> None:
    @service.events.on(Opened)
    def plan(event: Opened, unit: Unit) -> None:
        assert isinstance(unit.schedule(greet, event.name, delay=timedelta(hours=1)), UUID)
        if fails:
            raise Taken("no")

    await service.bus.dispatch_async(Open(name="a"))
    rows = query(service.url, "SELECT payload, causation_id IS NOT NULL AS caused FROM task_outbox")
    assert rows == ([] if fails else [{"payload": "a", "caused": True}])


async def test_a_cancelled_command_leaves_nothing_and_gives_its_connection_back(service: Service) -> None:
    reached = asyncio.Event()

    async def handle(_: Do, unit: Unit) -> None:
        unit.save(Case.open("a"))
        await unit.session.flush()
        reached.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(service.do(handle))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (service.cases(), service.published()) == ([], [])
    assert service.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_plain_code_is_told_to_await(service: Service) -> None:
    with pytest.raises(InvalidHandler, match="await dispatch_async"):
        service.bus.dispatch(Open(name="a"))
