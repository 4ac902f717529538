"""What application code gives to the outbox: plain events, or pydantic models registered as events or commands.

    @command("iteration.start", to="sr", aggregate_id="iteration_id")
    class StartIteration(BaseModel):
        iteration_id: str

    outbox.add(session, StartIteration(iteration_id="iter_1"))      # to sr.commands.iteration.start

An event says what has happened, and any service may read it. A command asks one context to do something, and one
handler there does it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints, is_typeddict
from weakref import WeakSet

from pydantic import (
    AliasChoices,
    BaseModel,
    PlainSerializer,
    RootModel,
    SecretBytes,
    SecretStr,
    ValidationError,
    WrapSerializer,
)
from pydantic.fields import FieldInfo
from uuid_utils.compat import uuid7

from relay.domain.errors import InvalidEvent, InvalidPayload
from relay.domain.identity import Id
from relay.domain.limits import encode_payload
from relay.domain.model import Lifespan
from relay.domain.personal import PersonalFields
from relay.domain.subject import check_token, check_version, command_name, command_subject

Model = TypeVar("Model", bound=BaseModel)

_ATTRIBUTE: Final = "__relay_event__"
_SECRETS: Final = {SecretStr, SecretBytes}


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
    filled in; the database fills in ``occurred_at``. ``personal``: the fields that are encrypted with a key of
    the person they are about. ``deliver_at``: as ``available_at``, or how long after the transaction. An event
    that is not published ``expires_in`` so long after it is due, or before ``expires_at``, is stale: nobody gets
    it.
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
    personal: PersonalFields | None = None
    deliver_at: datetime | timedelta | None = None
    expires_at: datetime | None = None
    expires_in: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Registration:
    """What a class is registered as. ``aggregate_id``: a field; None for a command about no aggregate.

    ``topic``: the subject of a command; None for an event. ``personal``: the fields that are encrypted.
    ``expires_in``: how long it is worth publishing.
    """

    event_type: str
    event_version: int
    aggregate_type: str
    aggregate_id: str | None
    topic: str | None = None
    personal: PersonalFields | None = None
    expires_in: timedelta | None = None

    @property
    def command(self) -> str | None:
        """The name of a command, ``domain.action``; None for an event."""
        return None if self.topic is None else command_name(self.topic)


#: The commands that are declared in this process: each subject with its version.
declared_commands: Final[set[tuple[str, int]]] = set()
#: The classes that are registered in this process.
declared_classes: Final[WeakSet[type[BaseModel]]] = WeakSet()
#: The versions that functions of this process turn into the next one: each type with its version.
declared_upcasts: Final[set[tuple[str, int]]] = set()


def event(
    event_type: str,
    *,
    version: int = 1,
    aggregate_type: str,
    aggregate_id: str,
    expires_in: timedelta | None = None,
    subject: str | None = None,
    personal: Sequence[str] = (),
) -> Callable[[type[Model]], type[Model]]:
    """Register a pydantic class as an event.

    ``aggregate_id`` names the field that holds the aggregate's id. ``expires_in``: how long after it is due an
    event is worth publishing and handling; None for ever. ``personal`` names fields of the payload that
    are encrypted with a key of the person they are about, such as ``email`` or ``address.*``, and ``subject`` the
    field with that person's id. Raises InvalidEvent when the class has no such field, and InvalidSubject when the
    name or version is not allowed in a subject.
    """
    check_token(event_type, "event_type")
    check_version(version)
    Lifespan(expires_in=expires_in)
    found = _personal(subject, personal)
    return _register(
        Registration(event_type, version, aggregate_type, aggregate_id, personal=found, expires_in=expires_in)
    )


def _personal(subject: str | None, fields: Sequence[str]) -> PersonalFields | None:
    if subject is None and not fields:
        return None
    if subject is None or not fields or isinstance(fields, str):
        raise InvalidEvent(
            "needs both: the field that names the person, and a list of the fields that are about this person",
            field="personal",
        )
    return PersonalFields(subject, tuple(fields))


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
        _check_names(model, name)
        if registration.personal is not None:
            _check_personal(model, registration.personal)
        setattr(model, _ATTRIBUTE, registration)
        declared_classes.add(model)
        return model

    return register


def _check_personal(model: type[BaseModel], personal: PersonalFields) -> None:
    """Refuse fields that the class does not write: a misspelt one would stay plain. Raises InvalidEvent."""
    if issubclass(model, RootModel):
        raise InvalidEvent(f"{model.__name__} has no fields of its own", field="personal")
    written = {it.serialization_alias or name for name, it in model.model_fields.items() if not it.exclude}
    written |= {it.alias or name for name, it in model.model_computed_fields.items()}
    for field_, names in (("subject", [personal.subject]), ("personal", personal.fields)):
        for name in names:
            if (first := name.partition(".")[0]) != "*" and first not in written:
                raise InvalidEvent(f"{model.__name__} writes no field {first!r}", field=field_)


def _check_names(model: type[BaseModel], aggregate_id: str | None) -> None:
    """Refuse a class if it, or a class of its fields, cannot read what it writes. Raises InvalidEvent."""
    found = model.model_fields.get(aggregate_id or "")
    if found is not None and found.exclude:
        raise InvalidEvent(f"{model.__name__} writes no {aggregate_id!r}: it is excluded", field="aggregate_id")
    for kind in _kinds(model, set()):
        if (problem := next(_unreadable(kind), None)) is not None:
            raise InvalidEvent(
                f"{kind.__name__} {problem}, so it cannot read what it writes",
                field="event",
                hint="give each field one name for both directions, for example Field(alias=...)",
            )


def _unreadable(kind: type) -> Iterator[str]:
    """What a class writes and does not read, or reads and does not write."""
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", None) or {}
    by_alias = config.get("validate_by_alias", True)
    by_name = config.get("validate_by_name", config.get("populate_by_name", not by_alias))
    for name, it in _fields(kind).items():
        if it.exclude:
            if it.is_required():
                yield f"needs {name!r} and leaves it out"
            continue
        if _is_secret(kind, name, it):
            yield f"writes asterisks for {name!r}"
        written, choices = it.serialization_alias or name, it.validation_alias
        aliases = choices.choices if isinstance(choices, AliasChoices) else [choices]
        if not (by_alias and written in aliases) and not ((by_name or choices is None) and written == name):
            yield f"writes {name!r} as {written!r} and reads it under another name"
    if config.get("extra") == "forbid":
        yield from (f"writes {name!r} and forbids it" for name in getattr(kind, "model_computed_fields", ()))


def _is_secret(kind: type, name: str, found: FieldInfo) -> bool:
    """Whether a field holds a secret of pydantic, which no serializer of its own writes."""
    decorators = getattr(kind, "__pydantic_decorators__", None)
    own = decorators.field_serializers.values() if decorators is not None else ()
    written = any(name in it.info.fields or "*" in it.info.fields for it in own)
    written = written or any(isinstance(it, PlainSerializer | WrapSerializer) for it in found.metadata)
    return not written and not _SECRETS.isdisjoint(_parts(found.annotation))


def _parts(annotation: Any) -> Iterator[Any]:
    yield get_origin(annotation) or annotation
    for part in get_args(annotation):
        yield from _parts(part)


def _fields(kind: type) -> Mapping[str, FieldInfo]:
    """The fields of a class of pydantic, of a dataclass or of a TypedDict, as pydantic sees them."""
    if issubclass(kind, BaseModel):
        return kind.model_fields
    if (found := getattr(kind, "__pydantic_fields__", None)) is not None:
        return dict(found)
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # a class that is not there yet: the first event looks again
        return {}
    return {name: FieldInfo.from_annotation(hint) for name, hint in hints.items()}


def _kinds(annotation: Any, seen: set[type]) -> Iterator[type]:
    """The classes with fields in an annotation, and those of their fields."""
    for part in get_args(annotation):
        yield from _kinds(part, seen)
    if not isinstance(annotation, type) or annotation in seen:
        return
    if issubclass(annotation, BaseModel) or is_dataclass(annotation) or is_typeddict(annotation):
        seen.add(annotation)
        yield annotation
        for it in _fields(annotation).values():
            yield from _kinds(it.annotation, seen)


#: Classes whose first event was read back.
_proven: Final[WeakSet[type]] = WeakSet()


def _prove(model: type[BaseModel], registration: Registration, payload: Any) -> None:
    """Read back the first event of a class: serializers, and classes that came later, are seen only here.

    Raises InvalidEvent and InvalidPayload.
    """
    if model in _proven:
        return
    _check_names(model, registration.aggregate_id)
    try:
        model.model_validate_json(encode_payload(payload))
    except ValidationError as error:
        misfits = ", ".join(".".join(map(str, it["loc"])) for it in error.errors(include_url=False)[:3])
        raise InvalidEvent(
            f"{model.__name__} cannot read what it writes: {misfits}"[:500],
            field="event",
            hint="its validators must take what its serializers write",
        ) from None
    _proven.add(model)


def plain(payload: object) -> object:
    """The JSON form of a pydantic model: under its aliases, and with all fields of the objects that it holds.

    Everything else stays as it is. Raises InvalidPayload.
    """
    if not isinstance(payload, BaseModel):
        return payload
    try:
        return payload.model_dump(mode="json", by_alias=True, polymorphic_serialization=True)
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(str(error), field="payload") from error


def registration_of(model: type) -> Registration | None:
    """What a class is registered as; None if it is neither an event nor a command.

    A subclass is not what its parent is. A generic class with its parameters is what the class is.
    """
    found = vars(model).get(_ATTRIBUTE)
    origin = getattr(model, "__pydantic_generic_metadata__", {}).get("origin")
    if found is None and origin is not None:
        found = vars(origin).get(_ATTRIBUTE)
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
            hint="pass an Event, or register the pydantic class itself with @event(...) or @command(...)",
        )
    plain_event = Event(
        event_type=registration.event_type,
        event_version=registration.event_version,
        aggregate_type=registration.aggregate_type,
        aggregate_id="",
        payload=(payload := plain(value)),
        topic=registration.topic,
        personal=registration.personal,
        expires_in=registration.expires_in,
    )
    _prove(type(value), registration, payload)
    if registration.aggregate_id is None:
        id = uuid7()
        return replace(plain_event, id=id, aggregate_id=str(id), partition_key=None)
    return replace(plain_event, aggregate_id=_id_on_the_wire(type(value), registration.aggregate_id, payload))


def _id_on_the_wire(model: type[BaseModel], name: str, payload: Any) -> str:
    """The value of the field as consumers read it in the payload, as text."""
    written = model.model_fields[name].serialization_alias or name
    if issubclass(model, RootModel):
        value = payload
    elif isinstance(payload, dict) and written in payload:
        value = payload[written]
    else:
        raise InvalidEvent(f"{model.__name__} has not written {written!r}", field="aggregate_id")
    # A row that is not flushed has the id None. It becomes "", which is refused later, not the text "None".
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict | list):
        raise InvalidEvent(f"{name!r} is no plain value in the payload", field="aggregate_id")
    return json.dumps(value)
