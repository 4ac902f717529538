"""Where the events and dead letters of a context go: from type or topic to subject, from subject to stream.

JetStream stores a message in the stream that has a pattern for its subject. So a publisher needs only the subject.
The names of streams serve to read, audit and give rights, and for events that must be in one stream and in no
other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from relay.domain.errors import ForeignSubject, InvalidSubject
from relay.domain.subject import MAX_SUBJECT_CHARS, EventSubject, check_event_subject, command_name

#: The header that names a stream. If another stream would store the message, JetStream refuses it.
EXPECTED_STREAM: Final = "Nats-Expected-Stream"
DEFAULT_TEMPLATE: Final = "{context}.event.{name}.v{version}"

_PLACEHOLDER: Final = re.compile(r"\{(context|name|version)\}")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+")
#: What the placeholders of a template stand for, after `re.escape`.
_FILLED: Final = {r"\{name\}": "[A-Za-z0-9_-]{1,64}", r"\{version\}": "[1-9][0-9]{0,8}"}


class Destination(NamedTuple):
    """The subject of an event, and the stream that must store it; None if any stream may."""

    subject: str
    stream: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A row of the table of routes: which events, and where they go.

    ``types``: names of events without a topic; a last ``*`` stands for any rest. ``topics``: patterns of topics.
    ``subject``: a template; None leaves the subject as it is without the row. ``stream``: the stream that must
    store them.
    """

    types: Sequence[str] = ()
    topics: Sequence[str] = ()
    subject: str | None = None
    stream: str | None = None

    def fits(self, event_type: str, topic: str | None) -> bool:
        """Whether the row is for an event."""
        if topic is not None:
            return any(_meets(topic.split("."), pattern) for pattern in self.topics)
        return any(
            event_type.startswith(name[:-1]) if name.endswith("*") else event_type == name for name in self.types
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The rules of one context.

    ``routes``: the first row that fits an event decides. ``template``: makes the subject of an event without a
    topic that no row fits, from {context}, {name} and {version}. ``streams``: the subject patterns of each stream,
    by the stream's name. ``unconfirmed``: the patterns of streams that confirm nothing: no event may go there.
    ``letters``: the patterns of the stream of dead letters: no event may go there either.

    A producer may have no right but INSERT, and the fleet publishes what it writes. So a topic goes only to the
    context's own streams and where a row of the table says, apart from commands, which are for other contexts.
    Without ``streams`` nothing is known of that, and any topic may leave.
    """

    context: str
    template: str = DEFAULT_TEMPLATE
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)
    routes: Sequence[Route] = ()
    unconfirmed: Sequence[str] = ()
    letters: Sequence[str] = ()
    #: Where an event of this type, version and topic goes. Cached, because a context has few kinds of events.
    #: Raises InvalidSubject and ForeignSubject, which are not cached.
    destination: Callable[[str, int, str | None], Destination] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "destination", lru_cache(maxsize=4_096)(self._find))

    def subject(self, event_type: str, version: int, topic: str | None) -> str:
        """The subject of an event. Raises InvalidSubject."""
        return self.destination(event_type, version, topic).subject

    def stream(self, subject: str) -> str | None:
        """The stream that stores a subject; None if none does.

        A template stands for the subjects of its events: the stream stores some of them.
        """
        return next((name for name, patterns in self.streams.items() if self.takes(patterns, subject)), None)

    def takes(self, patterns: Sequence[str], subject: str) -> bool:
        """Whether a stream with these patterns stores a subject, or some subject of a template."""
        filled = re.escape(subject.replace("{context}", self.context))
        for placeholder, meaning in _FILLED.items():
            filled = filled.replace(placeholder, meaning)
        tokens = filled.split(r"\.")
        return any(_meets(tokens, pattern) for pattern in patterns)

    def _find(self, event_type: str, version: int, topic: str | None) -> Destination:
        named = EventSubject(self.context, event_type, version)
        if topic is not None:
            check_event_subject(topic)
        route = next((row for row in self.routes if row.fits(event_type, topic)), _NO_ROUTE)
        if topic is not None and route is _NO_ROUTE:
            self._check_own(topic)
        template = self.template if topic is None and route.subject is None else route.subject
        subject = topic or "" if template is None else _made(template, named)
        if any(_meets(subject.split("."), pattern) for pattern in self.unconfirmed):
            raise InvalidSubject(f"the stream of {subject} confirms nothing, so it takes no events", field="topic")
        if any(_meets(subject.split("."), pattern) for pattern in self.letters):
            raise InvalidSubject(f"{subject} is for dead letters, so no event goes there", field="topic")
        return Destination(subject, route.stream)

    def _check_own(self, topic: str) -> None:
        if self.streams and self.stream(topic) is None and command_name(topic) is None:
            raise ForeignSubject(
                f"{topic} is no subject of the streams of {self.context}, and no route of it has this topic",
                field="topic",
                hint=f"if it may go there, declare it: [[contexts.{self.context}.routes]] with topics and stream,"
                " then relay outbox retry",
            )


_NO_ROUTE: Final = Route()


def _made(template: str, named: EventSubject) -> str:
    if template == DEFAULT_TEMPLATE:
        return named.value
    return check_event_subject(
        template.format(context=named.context, name=named.name, version=named.version), "subject"
    )


def _meets(tokens: Sequence[str], pattern: str) -> bool:
    """Whether a pattern matches some subject of these tokens. Each token is a regular expression."""
    wanted = pattern.split(".")
    for token, want in zip(tokens, wanted, strict=False):
        if want == ">":
            return True
        if want != "*" and not re.fullmatch(token, want):
            return False
    return len(tokens) == len(wanted)


def is_template(template: str) -> bool:
    """Whether a template with known placeholders makes subjects."""
    plain = _PLACEHOLDER.sub("x", template)
    return len(template) <= MAX_SUBJECT_CHARS and all(map(_SAFE.fullmatch, plain.split(".")))


def event_subjects(context: str) -> str:
    """The pattern of the subjects that the default template makes."""
    return f"{context}.event.>"


def dead_letter_subject(context: str, original_subject: str) -> str:
    """The subject of a dead letter: ``{context}.dlq.{original subject}`` (EVT-047-002).

    The original subject stays readable at the end, so ``sea.dlq.vibespro.>`` selects by origin. A foreign
    subject may have any length. It is cut, because nats-server closes a connection with a line over 4,096 bytes.
    A pattern of original subjects makes the pattern of their dead letters.
    """
    return f"{context}.dlq.{original_subject[: 2 * MAX_SUBJECT_CHARS].rstrip('.')}"
