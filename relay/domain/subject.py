"""The NATS subjects of events (SDS-047 §2.2, `{context}.event.{name}.v{n}`) and of commands.

A command's subject is `{context}.commands.{domain}.{action}` (SR-MESSAGE-CONTRACTS §4.2); the context is the one
that executes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from relay.domain.errors import InvalidSubject

MAX_SUBJECT_CHARS: Final = 255
#: Names of streams and consumers, as we write them.
STREAM: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TYPE = re.compile(r"[A-Za-z0-9_-]{1,64}(?:\.[A-Za-z0-9_-]{1,64})*\Z")
_COMMAND = re.compile(r"[A-Za-z0-9_-]{1,64}\.commands\.([A-Za-z0-9_-]{1,64}\.[A-Za-z0-9_-]{1,64})\Z")
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


def check_type(value: object) -> str:
    """Return ``value`` if it may be the type of a received event: tokens with dots between them.

    Types of other producers have dots, for example ``com.example.opened``. Our own have none, because they are a
    token of a subject. Raises InvalidSubject.
    """
    if not isinstance(value, str) or len(value) > MAX_SUBJECT_CHARS or not _TYPE.match(value):
        raise InvalidSubject(f"{str(value)[:80]!r} is not tokens of A-Z, a-z, 0-9, _ and -", field="event_type")
    return value


def check_subject(value: object, field: str = "topic") -> str:
    """Return ``value`` if it is a complete subject of safe tokens with at most 255 characters.

    Raises InvalidSubject.
    """
    if not isinstance(value, str) or len(value) > MAX_SUBJECT_CHARS:
        raise InvalidSubject(f"a subject has at most {MAX_SUBJECT_CHARS} characters", field=field)
    for token in value.split("."):
        check_token(token, field)
    return value


def check_event_subject(value: object, field: str = "topic") -> str:
    """Return ``value`` if it is a subject, and neither one of dead letters nor one of answers.

    Raises InvalidSubject. Subjects of the server begin with ``$``, which no subject of ours has.
    """
    subject = check_subject(value, field)
    if subject.startswith("_INBOX"):
        raise InvalidSubject(f"{subject[:80]!r} is for answers, so no event goes there", field=field)
    if is_letter_subject(subject):
        raise InvalidSubject(f"{subject[:80]!r} is for dead letters, so no event goes there", field=field)
    return subject


def check_stream(value: object) -> str:
    """Return ``value`` if it can name a stream. Raises InvalidSubject."""
    if not isinstance(value, str) or not STREAM.fullmatch(value):
        shown = str(value)[:80]
        raise InvalidSubject(f"{shown!r} is not 1 to 128 characters of A-Z, a-z, 0-9, _ and -", field="stream")
    return value


def check_version(value: object) -> int:
    """Return ``value`` if it is a schema version: a whole number from 1. Raises InvalidSubject."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 10**9:
        raise InvalidSubject("must be a whole number from 1", field="event_version")
    return value


def topic_name(topic: str) -> str:
    """The event type of a topic, as in the view of MicroDAO: its last 64 characters, with underscores."""
    return topic.replace(".", "_")[-64:]


#: The pattern of the subjects of all commands.
ALL_COMMANDS: Final = "*.commands.>"

#: The pattern of the subjects of all dead letters.
ALL_LETTERS: Final = "*.dlq.>"
_LETTER = re.compile(r"[^.]+\.dlq\..")


def is_letter_subject(subject: str) -> bool:
    """Whether a subject is one of dead letters, of whatever context."""
    return _LETTER.match(subject) is not None


def command_subject(context: str, name: str) -> str:
    """The subject of a command for a context; ``name`` is ``domain.action``. Raises InvalidSubject."""
    subject = f"{check_token(context, 'to')}.commands.{name}"
    if command_name(subject) is None:
        raise InvalidSubject(f"{name[:80]!r} is not {{domain}}.{{action}}", field="name")
    return subject


def command_name(subject: str) -> str | None:
    """The ``domain.action`` that a subject names; None if it is not the subject of a command."""
    match = _COMMAND.match(subject)
    return None if match is None else match[1]


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
