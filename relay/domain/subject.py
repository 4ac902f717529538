"""The NATS subjects of events (SDS-047 §2.2, `{context}.event.{name}.v{n}`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from relay.domain.errors import InvalidSubject

MAX_SUBJECT: Final = 255

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_EVENT = re.compile(r"([A-Za-z0-9_-]{1,64})\.event\.([A-Za-z0-9_-]{1,64})\.v([1-9][0-9]{0,8})\Z")


def check_token(value: object, field: str) -> str:
    """Return ``value`` if it may be one token of a subject, between two dots.

    Raises InvalidSubject for wildcards, dots, spaces and non-ASCII letters. nats-server would accept them, and
    then such a subject would match, or escape, the filters of others.
    """
    if not isinstance(value, str) or not _TOKEN.match(value):
        shown = str(value)[:80]
        raise InvalidSubject(f"{shown!r} is not 1 to 64 characters of A-Z, a-z, 0-9, _ and -", field=field)
    return value


def check_subject(value: object, field: str = "topic") -> str:
    """Return ``value`` if it is a complete subject of safe tokens with at most 255 characters.

    Raises InvalidSubject.
    """
    if not isinstance(value, str) or len(value) > MAX_SUBJECT:
        raise InvalidSubject(f"a subject has at most {MAX_SUBJECT} characters", field=field)
    for token in value.split("."):
        check_token(token, field)
    return value


def check_version(value: object) -> int:
    """Return ``value`` if it is a schema version: a whole number from 1. Raises InvalidSubject."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
        raise InvalidSubject("must be a whole number from 1", field="event_version")
    return value


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The value object EventSubject of SDS-047: context, event name and schema version."""

    context: str
    name: str
    version: int

    def __post_init__(self) -> None:
        check_token(self.context, "context")
        check_token(self.name, "event_type")
        check_version(self.version)

    @classmethod
    def parse(cls, value: str) -> EventSubject:
        """Read ``{context}.event.{name}.v{n}``. Raises InvalidSubject for anything else."""
        if (found := cls.find(value)) is None:
            raise InvalidSubject(f"{value[:80]!r} is not {{context}}.event.{{name}}.v{{n}}", field="subject")
        return found

    @classmethod
    def find(cls, value: str) -> EventSubject | None:
        """The event that a subject names; None if the subject has another form."""
        match = _EVENT.match(value)
        return None if match is None else cls(match[1], match[2], int(match[3]))

    @property
    def value(self) -> str:
        """The subject's text."""
        return f"{self.context}.event.{self.name}.v{self.version}"

    def __str__(self) -> str:
        return self.value
