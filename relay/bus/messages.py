"""Commands, queries and domain events: frozen pydantic models, so every instance is valid. Who records events.

    class OpenCase(Command[UUID]):          # its handler returns a UUID
        title: Annotated[str, Field(min_length=1, max_length=200)]

For rules over several fields use pydantic's ``@model_validator(mode="after")``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from uuid_utils.compat import uuid7

from relay.bus.errors import InvalidCommand, InvalidQuery

Answer = TypeVar("Answer")

_MODEL = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
_MAX_FIELDS_SHOWN = 3
_RECORDED = "_recorded_events"


class Command(BaseModel, Generic[Answer]):
    """A request to change something. ``Answer`` is what its handler returns. Raises InvalidCommand."""

    model_config = _MODEL

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidCommand(_describe(type(self), error), field=_field(error)) from None


class Query(BaseModel, Generic[Answer]):
    """A question that changes nothing. ``Answer`` is what it finds. Raises InvalidQuery."""

    model_config = _MODEL

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidQuery(_describe(type(self), error), field=_field(error)) from None


class DomainEvent(BaseModel):
    """Something that happened to an aggregate. It is handled inside the service, in the same transaction.

    It carries no correlation. Events that leave the service get their correlation from the request context, and
    this event's ``id`` as their causation.
    """

    model_config = _MODEL

    id: UUID = Field(default_factory=uuid7)
    occurred_at: datetime = Field(default_factory=lambda: datetime.now(UTC))


class AggregateRoot:
    """A mix-in for entities: records domain events until the unit of work takes them.

    It needs no ``__init__``, which SQLAlchemy does not run for a loaded entity. The bus takes the events of saved
    aggregates after the command's handler has returned.
    """

    def record(self, event: DomainEvent) -> None:
        """Record that ``event`` has happened."""
        vars(self).setdefault(_RECORDED, []).append(event)

    def pull_events(self) -> Sequence[DomainEvent]:
        """Return the events recorded since the last call, and forget them."""
        events: Sequence[DomainEvent] = vars(self).pop(_RECORDED, ())
        return events


def _describe(model: type[BaseModel], error: ValidationError) -> str:
    """Which fields are wrong and why, without their values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields = [": ".join(filter(None, (_path(item["loc"]), item["msg"]))) for item in found[:_MAX_FIELDS_SHOWN]]
    more = f" (and {len(found) - _MAX_FIELDS_SHOWN} more)" if len(found) > _MAX_FIELDS_SHOWN else ""
    return f"{model.__name__} is not valid: {'; '.join(fields)}{more}"


def _field(error: ValidationError) -> str | None:
    return _path(error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]) or None


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(map(str, location))
