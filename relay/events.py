"""What application code gives to the outbox: plain events, or pydantic models registered as events or commands.

    @command("iteration.start", to="sr", aggregate_id="iteration_id")
    class StartIteration(BaseModel):
        iteration_id: str

    outbox.add(session, StartIteration(iteration_id="iter_1"))      # to sr.commands.iteration.start

An event says what has happened, and any service may read it. A command asks one context to do something, and one
handler there does it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from uuid_utils.compat import uuid7

from relay.domain.errors import InvalidEvent
from relay.domain.identity import Id
from relay.domain.subject import check_token, check_version, command_name, command_subject

Model = TypeVar("Model", bound=BaseModel)

_ATTRIBUTE: Final = "__relay_event__"


class _Aggregate(Enum):
    """The default of ``partition_key``: order by the aggregate."""

    AGGREGATE = "aggregate"

    def __repr__(self) -> str:
        return "AGGREGATE"


#: Publish an event after the earlier events of its aggregate.
AGGREGATE: Final = _Aggregate.AGGREGATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event to record.

    ``event_type`` and ``event_version`` make the subject; ``topic`` is a subject of its own. The aggregate is what
    the event is about. ``payload`` is any value that JSON can hold, or a pydantic model. Events with the same
    ``partition_key``, by default the aggregate, keep their commit order; None means no order. ``stream``: the
    stream that must store the event; if another one has its subject, the event waits. It is not published before
    ``available_at``. Ids are UUIDs, or text of 1 to 200 printable bytes. Missing ids, correlation and actor are
    filled in; the database fills in ``occurred_at``.
    """

    event_type: str
    aggregate_type: str
    aggregate_id: str
    payload: Any
    event_version: int = 1
    id: Id | None = None
    occurred_at: datetime | None = None
    correlation_id: Id | None = None
    causation_id: Id | None = None
    partition_key: str | _Aggregate | None = AGGREGATE
    topic: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    available_at: datetime | None = None
    stream: str | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """What a class is registered as. ``aggregate_id``: a field; None for a command about no aggregate.

    ``topic``: the subject of a command; None for an event.
    """

    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str | None
    topic: str | None = None

    @property
    def command(self) -> str | None:
        """The name of a command, ``domain.action``; None for an event."""
        return None if self.topic is None else command_name(self.topic)


#: The commands that are declared in this process: each subject with its version.
declared_commands: Final[set[tuple[str, int]]] = set()


def event(
    event_type: str, *, version: int = 1, aggregate_type: str, aggregate_id: str
) -> Callable[[type[Model]], type[Model]]:
    """Register a pydantic class as an event.

    ``aggregate_id`` names the field that holds the aggregate's id. Raises InvalidEvent when the class
    has no such field, and InvalidSubject when the name or version is not allowed in a subject.
    """
    check_token(event_type, "event_type")
    check_version(version)
    return _register(Registration(event_type, version, aggregate_type, aggregate_id))


def command(
    name: str, *, to: str, version: int = 1, aggregate_id: str | None = None
) -> Callable[[type[Model]], type[Model]]:
    """Register a pydantic class as a command.

    ``name`` is ``domain.action``. ``to`` is the context that executes it, at the subject ``{to}.commands.{name}``.
    ``aggregate_id`` names the field with the id of what the command is about: commands for the same aggregate keep
    their order. None means no order. Raises InvalidEvent when the class has no such field, and InvalidSubject when
    the names cannot stand in a subject.
    """
    topic = command_subject(to, name)
    event_type = check_token(name.replace(".", "_"), "name")
    declared_commands.add((topic, check_version(version)))
    return _register(Registration(event_type, version, name.partition(".")[0], aggregate_id, topic))


def _register(registration: Registration) -> Callable[[type[Model]], type[Model]]:
    def register(model: type[Model]) -> type[Model]:
        name = registration.aggregate_id
        if name is not None and name not in model.model_fields:
            raise InvalidEvent(f"{model.__name__} has no field {name!r}", field="aggregate_id")
        setattr(model, _ATTRIBUTE, registration)
        return model

    return register


def registration_of(model: type) -> Registration | None:
    """What a class is registered as; None if it is neither an event nor a command."""
    found = getattr(model, _ATTRIBUTE, None)
    return found if isinstance(found, Registration) else None


def as_event(value: object) -> Event:
    """Return the plain form of an event. Raises InvalidEvent for a class that is not registered."""
    if isinstance(value, Event):
        return value
    registration = registration_of(type(value))
    if not isinstance(value, BaseModel) or registration is None:
        raise InvalidEvent(
            f"{type(value).__name__} is not an event",
            field="event",
            hint="pass an Event, or register the pydantic class with @event(...) or @command(...)",
        )
    plain = Event(
        event_type=registration.event_type,
        event_version=registration.event_version,
        aggregate_type=registration.aggregate_type,
        aggregate_id="",
        payload=value,
        topic=registration.topic,
    )
    if registration.aggregate_id is None:
        id = uuid7()
        return replace(plain, id=id, aggregate_id=str(id), partition_key=None)
    aggregate_id = getattr(value, registration.aggregate_id)
    # A row that is not flushed has the id None. It stays "", which is refused later, not the text "None".
    return plain if aggregate_id is None else replace(plain, aggregate_id=str(aggregate_id))
