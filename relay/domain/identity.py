"""Ids of messages and of the operations they belong to: text outside, UUIDs in tables and jobs.

A producer may use ids of any form, for example ``evt_01HQGX8K9JNPQR5MWTVYZ3F4BC``. `Identity` gives each text its
UUID. The readers here accept UUIDs only: a message with another id is a dead letter under its `stand_in_id`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

from relay.domain.errors import MalformedMessage

# These must never change: all versions and processes must find the same UUID.
_TEXTS: Final = UUID("b1f3a8d4-6f0e-5c52-9a57-2f0c5b7f9e61")
_PLACES: Final = UUID("7c1d2f1e-5b1c-5b9e-9d8b-7f3a64c1b0aa")
_GENERATION: Final = re.compile(r"[1-9][0-9]{0,8}")


class Identity(NamedTuple):
    """An id: the ``text`` that its maker wrote, and the UUID that stands for it.

    ``derived``: the text is no UUID, so the UUID is made from it (UUIDv5): the same text has the same UUID.
    """

    text: str
    uuid: UUID
    derived: bool

    @classmethod
    def of(cls, text: str) -> Identity:
        """The identity of any text."""
        try:
            return cls(text, UUID(text), derived=False)
        except ValueError:
            # JSON may hold half a surrogate pair, which has no bytes of its own.
            return cls(text, uuid5(_TEXTS, text.encode(errors="backslashreplace").decode()), derived=True)

    @property
    def canonical(self) -> bool:
        """Whether the text is a UUID as usually written. Braces, URNs and missing hyphens are other forms."""
        return self.text.lower() == str(self.uuid)


def read_id(value: Any, field: str) -> UUID:
    """Read an id that must be a UUID, in any form. Raises MalformedMessage."""
    if not isinstance(value, str) or (identity := Identity.of(value)).derived:
        raise MalformedMessage("is not a UUID", field=field)
    return identity.uuid


def read_optional_id(value: Any, field: str) -> UUID | None:
    """Read an id, if there is one. Raises MalformedMessage."""
    return None if value is None else read_id(value, field)


@dataclass(frozen=True, slots=True)
class NatsMsgId:
    """The value of ``Nats-Msg-Id``: the id of the outbox event and, for a replay, its generation.

    Generation 0 is the UUID alone. A replay carries ``{uuid}.{generation}``. So the stream's duplicate window
    accepts it, and consumers still recognise the event.
    """

    event_id: UUID
    generation: int = 0

    @property
    def value(self) -> str:
        """The header's text."""
        return str(self.event_id) if self.generation == 0 else f"{self.event_id}.{self.generation}"

    @classmethod
    def parse(cls, value: str) -> NatsMsgId:
        """Read a header value. Raises MalformedMessage if it is not a UUID with an optional generation."""
        text, dot, generation = value.partition(".")
        identity = Identity.of(text)
        if not identity.canonical or (dot and not _GENERATION.fullmatch(generation)):
            raise MalformedMessage("is not the id of an event: a UUID", field="Nats-Msg-Id")
        return cls(identity.uuid, int(generation or 0))


def stand_in_id(stream: str, seq: int) -> UUID:
    """The id for a message without a usable id. It is made from the message's place, so it is always the same."""
    return uuid5(_PLACES, f"{stream}/{seq}")
