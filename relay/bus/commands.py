"""CommandBus and its transactional decorator.

    commands, events = CommandBus(), DomainEventBus()

    @commands.handles(OpenCase)
    def open_case(command: OpenCase, unit: UnitOfWork[Session]) -> UUID:
        case = Case.open(command.title)
        unit.save(case)
        return case.id

    bus = TransactionalCommandBus(commands, SqlAlchemyUnits(engine, outbox=Outbox("cases")), events)
    bus.dispatch(OpenCase(title="no light"))          # Ok(UUID(...))

A handler returns a value or a Result. A `DomainError` that it raises becomes a Failed. ``dispatch`` raises every
other exception: it is a fault of the infrastructure or of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar, cast

from relay.bus.context import RequestContext
from relay.bus.errors import EndlessEvents
from relay.bus.events import DomainEventBus
from relay.bus.messages import Command
from relay.bus.registry import BusRegistry, complete
from relay.bus.result import Failed, Result, as_result
from relay.bus.unit_of_work import UnitOfWork, UnitsOfWork
from relay.domain.errors import DomainError, InvalidHandler

Answer = TypeVar("Answer")
Function = TypeVar("Function", bound=Callable[..., Any])

#: How many times in a row domain events may lead to further domain events.
_MAX_ROUNDS: Final = 100


class CommandDispatcher(Protocol):
    """The part of a command bus that entry points need."""

    def dispatch(self, command: Command[Answer]) -> Result[Answer]:
        """Execute a command from plain code."""

    async def dispatch_async(self, command: Command[Answer]) -> Result[Answer]:
        """Execute a command from async code."""


class CommandBus:
    """Finds the handler of a command and calls it. It does not open a transaction."""

    def __init__(self) -> None:
        self._handlers: BusRegistry[Command[Any]] = BusRegistry("command", units=True)

    def handles(self, command: type[Command[Any]]) -> Callable[[Function], Function]:
        """Register a function for a command: ``(command)`` or ``(command, unit)``, plain or async.

        Raises DuplicateHandler if the command already has a handler, and InvalidHandler if the function cannot be
        called in this way.
        """

        def register(function: Function) -> Function:
            self._handlers.put(command, function)
            return function

        return register

    def dispatch(self, command: Command[Answer]) -> Result[Answer]:
        """Execute a command. Raises NoHandler."""
        return complete(self.execute(command))

    async def dispatch_async(self, command: Command[Answer]) -> Result[Answer]:
        """Execute a command whose handler may wait. Raises NoHandler."""
        return await self.execute(command)

    async def execute(self, command: Command[Answer], unit: UnitOfWork[Any] | None = None) -> Result[Answer]:
        """Call the handler with the unit of work, in a request context that has a correlation."""
        handler = self._handlers.find(command)
        with RequestContext.current_or_new().use():
            try:
                return cast("Result[Answer]", as_result(await handler.call(command, unit)))
            except DomainError as error:
                return Failed(error)


class TransactionalCommandBus:
    """A command bus in which each command is one unit of work.

    Its transaction includes what the handler saves, the handlers of domain events, and the integration events and
    tasks of both. A Failed rolls back all of it. A command that a handler dispatches is refused, unless it joins
    this transaction by ``session=unit.session``. Then it commits with the outer command, and its failure rolls
    back only its own part.
    """

    def __init__(
        self, commands: CommandBus, units: UnitsOfWork[Any], events: DomainEventBus | None = None
    ) -> None:
        self._commands = commands
        self._units = units
        self._events = events or DomainEventBus()

    def dispatch(self, command: Command[Answer], *, session: Any = None) -> Result[Answer]:
        """Execute a command from plain code.

        ``session``: join the transaction of a session that other code commits, such as an event handler's session
        or that of the surrounding unit of work. Raises NoHandler, NestedCommand, CommitRefused, InvalidHandler for
        async sessions, and everything that the handlers raise except DomainError.
        """
        if self._units.is_async:
            raise InvalidHandler("the sessions of this bus are async", hint="await dispatch_async() instead")
        return complete(self._dispatch(command, session))

    async def dispatch_async(self, command: Command[Answer], *, session: Any = None) -> Result[Answer]:
        """Execute a command from async code. With a session that is not async, this blocks the event loop."""
        return await self._dispatch(command, session)

    async def _dispatch(self, command: Command[Answer], session: Any) -> Result[Answer]:
        with RequestContext.current_or_new().use():
            try:
                async with self._units.begin(session) as unit:
                    result = await self._commands.execute(command, unit)
                    if isinstance(result, Failed):
                        raise result.error
                    await self._handle_events(unit)
                    return result
            except DomainError as error:
                return Failed(error)

    async def _handle_events(self, unit: UnitOfWork[Any]) -> None:
        """Handle the domain events of saved aggregates and the events that follow, until there are no more."""
        for _ in range(_MAX_ROUNDS):
            events = await unit.pull_events()
            if not events:
                return
            for event in events:
                await self._events.dispatch(event, unit)
        raise EndlessEvents(
            f"domain events led to further ones {_MAX_ROUNDS} times in a row; the last: "
            f"{type(events[-1]).__name__}",
            hint="a handler causes the event that it handles",
        )
