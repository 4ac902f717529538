"""The application kernel: commands, queries, domain events, one transaction for each command.

Entry points (HTTP, subscribers, cron jobs, tasks) construct a `Command` or `Query` and give it to a bus. Handlers
change aggregates through a `UnitOfWork`. See docs/how-to/commands.md.
"""

from relay.bus.asgi import RequestContextMiddleware
from relay.bus.commands import CommandBus, CommandDispatcher, TransactionalCommandBus
from relay.bus.context import RequestContext, carry
from relay.bus.events import DomainEventBus
from relay.bus.messages import AggregateRoot, Command, DomainEvent, Query
from relay.bus.queries import QueryBus
from relay.bus.result import NOTHING, Failed, Maybe, Nothing, Ok, Result, Some
from relay.bus.unit_of_work import UnitOfWork, UnitsOfWork
from relay.domain.actor import Actor, ActorKind

__all__ = [
    "NOTHING",
    "Actor",
    "ActorKind",
    "AggregateRoot",
    "Command",
    "CommandBus",
    "CommandDispatcher",
    "DomainEvent",
    "DomainEventBus",
    "Failed",
    "Maybe",
    "Nothing",
    "Ok",
    "Query",
    "QueryBus",
    "RequestContext",
    "RequestContextMiddleware",
    "Result",
    "Some",
    "TransactionalCommandBus",
    "UnitOfWork",
    "UnitsOfWork",
    "carry",
]
