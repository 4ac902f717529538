"""The events that application code gives to the outbox: plain events, or registered pydantic models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeVar
from uuid import UUID

from pydantic import BaseModel

from relay.domain.errors import InvalidEvent
from relay.domain.subject import check_token, check_version

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
    """An event to record (SDS-047 §2.1).

    ``event_type`` and ``event_version`` make the subject. ``aggregate_type`` and ``aggregate_id`` say what the
    event is about. ``payload`` is any value that JSON can hold, or a pydantic model.
    ``partition_key``: events with the same key keep their commit order. The default is the aggregate; None means
    no order. ``topic``: an explicit subject instead of the context's. ``available_at``: the event is not
    published before this time.
    Missing ids and correlation are filled in. The database fills in a missing ``occurred_at``; its clock also
    decides what lies in the future.
    """

    event_type: str
    aggregate_type: str
    aggregate_id: str
    payload: Any
    event_version: int = 1
    id: UUID | None = None
    occurred_at: datetime | None = None
    correlation_id: UUID | None = None
    causation_id: UUID | None = None
    partition_key: str | _Aggregate | None = AGGREGATE
    topic: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    available_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Registration:
    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str


def event(
    event_type: str, *, version: int = 1, aggregate_type: str, aggregate_id: str
) -> Callable[[type[Model]], type[Model]]:
    """Register a pydantic class as an event.

    ``aggregate_id`` names the field that holds the aggregate's id. Raises InvalidEvent when the class
    has no such field, and InvalidSubject when the name or version is not allowed in a subject.
    """
    check_token(event_type, "event_type")
    check_version(version)

    def register(model: type[Model]) -> type[Model]:
        if aggregate_id not in model.model_fields:
            raise InvalidEvent(f"{model.__name__} has no field {aggregate_id!r}", field="aggregate_id")
        setattr(model, _ATTRIBUTE, _Registration(event_type, version, aggregate_type, aggregate_id))
        return model

    return register


def as_event(value: object) -> Event:
    """Return the plain form of an event. Raises InvalidEvent for a class that is not registered."""
    if isinstance(value, Event):
        return value
    registration = getattr(type(value), _ATTRIBUTE, None)
    if not isinstance(value, BaseModel) or not isinstance(registration, _Registration):
        raise InvalidEvent(
            f"{type(value).__name__} is not an event",
            field="event",
            hint="pass an Event, or register the pydantic class with @event(...)",
        )
    aggregate_id = getattr(value, registration.aggregate_id)
    return Event(
        event_type=registration.event_type,
        event_version=registration.event_version,
        aggregate_type=registration.aggregate_type,
        # A row that is not flushed has the id None. It becomes "", which is refused later, not the text "None".
        aggregate_id="" if aggregate_id is None else str(aggregate_id),
        payload=value,
    )
