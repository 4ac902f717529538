"""Who caused an event (SR-MESSAGE-CONTRACTS §2): a person, an agent or a system, by its id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from urllib.parse import unquote

from relay.domain.errors import InvalidActor, InvalidKey, MalformedMessage
from relay.domain.identity import check_id
from relay.domain.quoting import quoted

#: The headers that keep an event's actor: in the outbox, and on the wire where the envelope has no place for it.
ACTOR_ID: Final = "Relay-Actor-Id"
ACTOR_KIND: Final = "Relay-Actor-Kind"

_SPELLED: Final = {name.lower(): name for name in (ACTOR_ID, ACTOR_KIND)}


class ActorKind(StrEnum):
    """What an actor is."""

    HUMAN = "HUMAN"
    AGENT = "AGENT"
    SYSTEM = "SYSTEM"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: ``Actor("user_42", "HUMAN")``. The id is text as `relay.domain.identity` allows.

    Raises InvalidActor, naming the field.
    """

    id: str
    kind: ActorKind | str

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "id", check_id(self.id, "actor_id").shown)
        except InvalidKey as error:
            raise InvalidActor(error.message, field=error.field) from None
        if self.kind not in tuple(ActorKind):
            raise InvalidActor(f"is none of {', '.join(ActorKind)}", field="actor_kind")
        object.__setattr__(self, "kind", ActorKind(self.kind))

    @property
    def headers(self) -> dict[str, str]:
        """The headers that say who acts."""
        return {ACTOR_ID: quoted(self.id), ACTOR_KIND: str(self.kind)}


def actor_of(headers: Mapping[str, str]) -> Actor | None:
    """The actor that headers name; None if they name none. Raises InvalidActor if a part is missing or wrong."""
    if ACTOR_ID not in headers and ACTOR_KIND not in headers:
        return None
    return Actor(unquote(headers.get(ACTOR_ID, "")), headers.get(ACTOR_KIND, ""))


def check_actor(headers: Mapping[str, str]) -> None:
    """Refuse headers of an event that name an actor which is not valid, or in another spelling.

    Names of headers are case-sensitive on NATS, so the actor would be lost silently. Raises InvalidActor.
    """
    for name in headers:
        if (meant := _SPELLED.get(name.lower(), name)) != name:
            raise InvalidActor(f"is spelled {meant}", field=f"headers.{name}")
    actor_of(headers)


def read_actor(id: Any, kind: Any) -> Actor:
    """The actor of a received message. Raises MalformedMessage, naming the field."""
    try:
        return Actor(id, kind)
    except InvalidActor as error:
        raise MalformedMessage(error.message, field=error.field) from None
