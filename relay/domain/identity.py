"""Ids of messages and of the operations they belong to: any text outside, UUIDs in tables and jobs.

A UUID in the usual form stands for itself. For any other text, such as ``evt_01HQGX8K9JNPQR5MWTVYZ3F4BC``, a UUID
is made from it. The text is kept in ``originals``, by the names `ID`, `CORRELATION_ID`, `CAUSATION_ID`.

A row that SQL has written may have any UUID, because PostgreSQL has no SHA-1 to make it from the text. So an event
is looked up by its text in ``originals``, never by the UUID made from it. Only an id of our own is taken apart:
``order.7`` is an id, and no seventh replay.

A message is known by its subscription and its id. If another subscription has the row of that id already, the row
of this one gets an id made from both (`view_id`), and keeps the id in ``source_id`` and ``originals``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID, uuid5

from relay.domain.errors import InvalidKey, MalformedMessage
from relay.domain.limits import MAX_KEY_BYTES

#: The header with the id by which JetStream drops copies.
MSG_ID: Final = "Nats-Msg-Id"
#: The row of the outbox and its generation, if ``Nats-Msg-Id`` does not name them.
EVENT_ID: Final = "Relay-Event-Id"
GENERATION: Final = "Relay-Generation"
#: The names of the texts in ``originals``.
ID: Final = "id"
CORRELATION_ID: Final = "correlation_id"
CAUSATION_ID: Final = "causation_id"

#: The texts of ids that are no UUIDs, by name. Most messages have none.
Originals: TypeAlias = Mapping[str, str]
NO_ORIGINALS: Final[Originals] = {}
_NAMES: Final = frozenset({ID, CORRELATION_ID, CAUSATION_ID})
#: An id as people and handlers see it: a UUID, or the text that its maker wrote.
Id: TypeAlias = UUID | str

Kept = TypeVar("Kept", UUID, UUID | None)

# These must never change: all versions and processes must find the same UUID.
_TEXTS: Final = UUID("b1f3a8d4-6f0e-5c52-9a57-2f0c5b7f9e61")
_PLACES: Final = UUID("7c1d2f1e-5b1c-5b9e-9d8b-7f3a64c1b0aa")
_VIEWS: Final = UUID("0d7a6c1b-93e2-5f0e-8a44-5c9f2b1de7a3")
_UUID: Final = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
#: What stands for bytes that are not text. Different ids with it may look the same.
_NO_TEXT: Final = "\ufffd"
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
        """The identity of any text. Braces, URNs and missing hyphens make a text that is no UUID."""
        if _UUID.fullmatch(text):
            return cls(text, UUID(text), derived=False)
        # JSON may hold half a surrogate pair, which UTF-8 cannot encode.
        return cls(text, uuid5(_TEXTS, text.encode(errors="backslashreplace").decode()), derived=True)

    @property
    def shown(self) -> str:
        """The text to show and to send. A UUID has small letters."""
        return self.text if self.derived else self.text.lower()

    @property
    def value(self) -> Id:
        """The id as handlers see it."""
        return self.text if self.derived else self.uuid


def shown(id: Kept, originals: Originals, name: str) -> Kept | str:
    """An id as people and handlers see it: its text if that is no UUID."""
    return originals.get(name, id)


def check_id(value: object, field: str) -> Identity:
    """The identity of an id that a program gave us: a UUID, or 1 to 200 bytes of printable text.

    The text neither begins nor ends with a space, because headers would lose it. Raises InvalidKey.
    """
    if problem := _problem(value):
        raise InvalidKey(problem, field=field)
    return Identity.of(str(value))


def identified(id: Any, correlation_id: Any, causation_id: Any) -> tuple[list[Any], Originals]:
    """Three ids with a UUID for each text, and the texts of those that are not UUIDs.

    Raises InvalidKey, naming the id. A value that is not text stays as it is.
    """
    ids, originals = [id, correlation_id, causation_id], {}
    if not (isinstance(id, str) or isinstance(correlation_id, str) or isinstance(causation_id, str)):
        return ids, NO_ORIGINALS
    for place, name in enumerate((ID, CORRELATION_ID, CAUSATION_ID)):
        if isinstance(ids[place], str):
            text, ids[place], derived = check_id(ids[place], name)
            if derived:
                originals[name] = text
    return ids, originals or NO_ORIGINALS


def is_id(value: object) -> bool:
    """Whether a value is text that can be an id."""
    return _problem(value) is None


def read_id(value: Any, field: str) -> Identity:
    """Read the id of a received message; the same rule as `check_id`. Raises MalformedMessage."""
    if type(value) is str and _UUID.fullmatch(value):
        return Identity(value, UUID(value), derived=False)
    if problem := _problem(value):
        raise MalformedMessage(problem, field=field)
    return Identity.of(value)


def read_optional_id(value: Any, field: str) -> Identity | None:
    """Read an id, if there is one. Raises MalformedMessage."""
    return None if value is None else read_id(value, field)


def _problem(value: object) -> str | None:
    """Why a value is no id."""
    if not isinstance(value, str):
        return "is no text"
    if not value:
        return "is empty"
    if len(value) > MAX_KEY_BYTES or (not value.isascii() and len(value.encode(errors="replace")) > MAX_KEY_BYTES):
        return f"is longer than {MAX_KEY_BYTES} bytes"
    if not value.isprintable() or _NO_TEXT in value:
        return "holds a character that cannot be printed"
    if value[0] == " " or value[-1] == " ":
        return "begins or ends with a space"
    return None


def originals_of(name: Identity, key: UUID, correlation: Identity | None, causation: Identity | None) -> Originals:
    """The texts of ids that are not UUIDs; that of the message also if its ``key`` is not made from it."""
    found = {}
    if name.derived or (name.uuid is not key and name.uuid != key):
        found[ID] = name.shown
    if correlation is not None and correlation.derived:
        found[CORRELATION_ID] = correlation.text
    if causation is not None and causation.derived:
        found[CAUSATION_ID] = causation.text
    return found or NO_ORIGINALS


def known_originals(stored: object) -> Originals:
    """The texts of ids in a row. Other programs write rows, too, so what is stored there may be anything."""
    if not isinstance(stored, dict):
        return NO_ORIGINALS
    return {name: it for name, it in stored.items() if name in _NAMES and isinstance(it, str)} or NO_ORIGINALS


class NatsMsgId(NamedTuple):
    """What ``Nats-Msg-Id`` and the headers beside it say about the identity of a message.

    ``id``: that of the event, without the generation. Generation 0 is the text alone. A replay carries
    ``{text}.{generation}``. So the stream's duplicate window accepts it, and consumers still recognise the event.
    ``event_id``: the row of the outbox that it came from; None if another program sent it.
    """

    id: Identity
    generation: int = 0
    event_id: UUID | None = None

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> NatsMsgId | None:
        """Read the headers of a message; None without an id. Raises MalformedMessage.

        Only our own ids are split: ``order.7`` of another program is an id, not a seventh replay.
        """
        if (value := headers.get(MSG_ID)) is None:
            return None
        row = headers.get(EVENT_ID)
        if row is not None and _UUID.fullmatch(row):
            text, generation = _split(value, headers.get(GENERATION, ""))
            return cls(read_id(text, MSG_ID), generation, UUID(row))
        text, dot, number = value.partition(".")
        if _UUID.fullmatch(text) and (not dot or _GENERATION.fullmatch(number)):
            id = UUID(text)
            return cls(Identity(text, id, derived=False), int(number or 0), id)
        return cls(read_id(value, MSG_ID))


def _split(value: str, generation: str) -> tuple[str, int]:
    if _GENERATION.fullmatch(generation) and value.endswith(f".{generation}"):
        return value[: -len(generation) - 1], int(generation)
    return value, 0


def generated(text: str, generation: int) -> str:
    """The value of ``Nats-Msg-Id``: an id with the generation of its replay."""
    return text if generation == 0 else f"{text}.{generation}"


def stand_in_id(stream: str, seq: int) -> UUID:
    """The id for a message without a usable id. It is made from the message's place, so it is always the same."""
    return uuid5(_PLACES, f"{stream}/{seq}")


def content_id(stream: str, seq: int, body: bytes) -> UUID:
    """The id for such a message whose place another one had: the stream was made anew."""
    return uuid5(_PLACES, f"{stream}/{seq}/{sha256(body).hexdigest()}")


def view_id(subscription: str, id: UUID) -> UUID:
    """The id of a subscription's row for a message, if another subscription has the row ``id``."""
    return uuid5(_VIEWS, f"{subscription}/{id}")
