"""Personal values: fields of a payload that are encrypted with a key of the person they are about.

On the wire and in rows an encrypted value is an object with one member, whose name is reserved:

    {"relay:personal": {"v": 1, "context": "shop", "key": "<uuid>", "data": "<base64>"}}

``data`` is the nonce of 12 bytes, the ciphertext and the tag of 16 bytes, by AES-256-GCM. The plain text is the
value as JSON in UTF-8. The additional data bind version, context, key and the place of the value, see `bound`. A
value that was moved to another place, or into another message's key, cannot be read. No cipher is here: the
functions take one.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from relay.domain.errors import InvalidEvent, InvalidPayload

#: The reserved name of a member, and what a message with encrypted values has in its bytes.
MEMBER: Final = "relay:personal"
MARK: Final = b'"relay:personal"'
VERSION: Final = 1
#: The context of a value in a task: that of the database it is in.
HERE: Final = "-"
#: How many bytes a key has, and how many a nonce and a tag take.
KEY_BYTES: Final = 32
OVERHEAD_BYTES: Final = 28
#: What stands for an encrypted value where people read.
SHOWN: Final = "(personal)"
MAX_SUBJECT_BYTES: Final = 200
_FIELD: Final = re.compile(r"(?:\*|[A-Za-z_][A-Za-z0-9_-]{0,63})(?:\.(?:\*|[A-Za-z_][A-Za-z0-9_-]{0,63})){0,9}")
_CONTEXT: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SUBJECT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}(?:\.[A-Za-z_][A-Za-z0-9_-]{0,63}){0,9}")
_VALUE: Final = re.compile(rf'\{{\s*"{MEMBER}"\s*:\s*\{{[^{{}}]*\}}\s*\}}')
#: The place of a value is a JSON pointer (RFC 6901).
_ESCAPES: Final = str.maketrans({"~": "~0", "/": "~1"})

#: Encrypts or decrypts bytes. The second argument is what the result is bound to.
Cipher = Callable[[bytes, bytes], bytes]


@dataclass(frozen=True, slots=True)
class PersonalFields:
    """Which fields of an event's payload are about a person. ``subject``: the field with the person's id.

    A field is a name, or names with dots between; ``*`` is each member of an object or list. Raises InvalidEvent.
    """

    subject: str
    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _SUBJECT.fullmatch(str(self.subject)):
            raise InvalidEvent("is not the name of a field; write customer_id or customer.id", field="subject")
        if not self.fields:
            raise InvalidEvent("names no field", field="personal")
        for it in self.fields:
            if not _FIELD.fullmatch(str(it)):
                raise InvalidEvent(
                    f"{str(it)[:80]!r} is not a field; write email, address.street or address.*", field="personal"
                )
            if _covers(it.split("."), self.subject.split(".")):
                raise InvalidEvent(f"{it!r} would encrypt the subject itself", field="personal")

    def subject_of(self, payload: object) -> str:
        """The id of the person. Raises InvalidPayload."""
        found: Any = payload
        for name in self.subject.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not found or len(found.encode()) > MAX_SUBJECT_BYTES:
            raise InvalidPayload(
                f"must be a number, or text of 1 to {MAX_SUBJECT_BYTES} bytes: it names whose data these are",
                field=f"payload.{self.subject}",
            )
        return found


def _covers(field: Sequence[str], name: Sequence[str]) -> bool:
    """Whether encrypting a field would encrypt the field of this name, too."""
    return len(field) <= len(name) and all(a in ("*", b) for a, b in zip(field, name, strict=False))


@dataclass(frozen=True, slots=True)
class SealedKey:
    """A master key that a key service has encrypted, and by which of its keys. Nothing of it is secret."""

    service_key: str
    sealed: bytes
    region: str | None = None
    endpoint: str | None = None


@dataclass(frozen=True, slots=True)
class Masters:
    """The master keys of a process by their names. ``present``: the one that wraps new keys."""

    present: str
    keys: Mapping[str, bytes | SealedKey] = field(repr=False)

    def is_sealed(self, name: str) -> bool:
        """Whether a key service has to open it: this may take seconds."""
        return isinstance(self.keys.get(name), SealedKey)


@dataclass(frozen=True, slots=True)
class Personal:
    """What an event needs to be encrypted before its row is written."""

    context: str
    subject: str
    fields: PersonalFields
    masters: Masters


class Encrypted(NamedTuple):
    """An encrypted value: whose context has its key, the key, and nonce, ciphertext and tag."""

    context: str
    key: UUID
    data: bytes

    @classmethod
    def read(cls, value: object) -> Encrypted | None:
        """Read a value; None if it is none that we can decrypt."""
        if not isinstance(value, dict) or len(value) != 1 or not isinstance(inner := value.get(MEMBER), dict):
            return None
        match inner:
            case {"v": 1, "context": str(context), "key": str(key), "data": str(data)} if inner["v"] is not True:
                try:
                    if not _CONTEXT.fullmatch(context):
                        return None
                    return cls(context, UUID(key), b64decode(data, validate=True))
                except ValueError:
                    return None
        return None

    @property
    def json(self) -> dict[str, Any]:
        """The value as it is in a payload."""
        data = b64encode(self.data).decode()
        return {MEMBER: {"v": VERSION, "context": self.context, "key": str(self.key), "data": data}}


class ValuePlace(NamedTuple):
    """A value in a payload, and its JSON pointer. ``holder``: the object or list that has it."""

    holder: Any
    name: Any
    pointer: str

    @property
    def value(self) -> Any:
        """What is there."""
        return self.holder[self.name]

    def put(self, value: object) -> None:
        """Replace the value."""
        self.holder[self.name] = value


def bound(context: str, key: UUID, pointer: str) -> bytes:
    """The additional data of a value: five lines."""
    return f"{MEMBER}\n{VERSION}\n{context}\n{key}\n{pointer}".encode()


def bound_key(key: UUID, master: str) -> bytes:
    """The additional data of a wrapped key: four lines."""
    return f"relay:key\n{VERSION}\n{key}\n{master}".encode()


def places(payload: object, fields: PersonalFields) -> list[ValuePlace]:
    """The personal values of a payload that are not encrypted yet. Null stays null."""
    found: dict[str, ValuePlace] = {}
    for it in fields.fields:
        for place in _at(payload, it.split("."), ""):
            if place.value is not None and Encrypted.read(place.value) is None:
                found[place.pointer] = place
    return [it for it in found.values() if not _inside(it.pointer, found)]


def _at(value: object, names: Sequence[str], pointer: str) -> Iterator[ValuePlace]:
    first, *rest = names
    for name, item in _members(value):
        if first in ("*", name):
            here = f"{pointer}/{str(name).translate(_ESCAPES)}"
            if rest:
                yield from _at(item, rest, here)
            else:
                yield ValuePlace(value, name, here)


def _members(value: object) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def _inside(pointer: str, others: Mapping[str, ValuePlace]) -> bool:
    parts = pointer.split("/")
    return any("/".join(parts[:end]) in others for end in range(2, len(parts)))


def encrypted(payload: object) -> list[tuple[ValuePlace, Encrypted]]:
    """The encrypted values of a payload, wherever they are."""
    found: list[tuple[ValuePlace, Encrypted]] = []
    root = {"": payload}
    waiting: list[ValuePlace] = [ValuePlace(root, "", "")]
    while waiting:
        place = waiting.pop()
        value = place.value
        if (read := Encrypted.read(value)) is not None:
            found.append((place, read))
        else:
            waiting += [
                ValuePlace(value, name, f"{place.pointer}/{str(name).translate(_ESCAPES)}")
                for name, item in _members(value)
                if isinstance(item, dict | list)
            ]
    return found


def encrypt(found: Sequence[ValuePlace], context: str, key: UUID, cipher: Cipher) -> None:
    """Encrypt the values at these places of a payload, in place."""
    for place in found:
        plain = json.dumps(place.value, ensure_ascii=False, separators=(",", ":")).encode()
        place.put(Encrypted(context, key, cipher(plain, bound(context, key, place.pointer))).json)


def decrypt(place: ValuePlace, value: Encrypted, cipher: Cipher) -> None:
    """Put the plain value in its place. Raises what the cipher raises."""
    place.put(json.loads(cipher(value.data, bound(value.context, value.key, place.pointer))))


def in_short(text: str) -> str:
    """JSON text as people see it: `SHOWN` instead of each encrypted value."""
    return _VALUE.sub(f'"{SHOWN}"', text)
