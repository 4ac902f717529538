"""Where the events and dead letters of a context go: from type or topic to subject, from subject to stream.

JetStream stores a message in the stream that has a pattern for its subject. So whoever publishes needs the subject
only. The names of streams are for those who read, audit and permit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from relay.domain.subject import MAX_SUBJECT, EventSubject, check_subject

DEFAULT_TEMPLATE: Final = "{context}.event.{name}.v{version}"

_PLACEHOLDER: Final = re.compile(r"\{(context|name|version)\}")
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]+")
#: What the placeholders of a template stand for, after `re.escape`.
_FILLED: Final = {r"\{name\}": "[A-Za-z0-9_-]{1,64}", r"\{version\}": "[1-9][0-9]{0,8}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The rule of one context.

    ``template``: makes the subject of an event without a topic, from {context}, {name} and {version}. ``streams``:
    the subject patterns of each stream, by the stream's name.
    """

    context: str
    template: str = DEFAULT_TEMPLATE
    streams: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def subject(self, event_type: str, version: int, topic: str | None) -> str:
        """The subject of an event. Raises InvalidSubject."""
        return _subject(self.template, self.context, event_type, version, topic)

    def stream(self, subject: str) -> str | None:
        """The stream that stores a subject; None if none does.

        A template stands for the subjects of its events: the stream stores some of them.
        """
        filled = re.escape(subject.replace("{context}", self.context))
        for placeholder, meaning in _FILLED.items():
            filled = filled.replace(placeholder, meaning)
        tokens = filled.split(r"\.")
        for name, patterns in self.streams.items():
            if any(_meets(tokens, pattern) for pattern in patterns):
                return name
        return None


@lru_cache(maxsize=4_096)
def _subject(template: str, context: str, event_type: str, version: int, topic: str | None) -> str:
    """The subject of an event. It is cached, because a context has few kinds of events. Errors are not cached."""
    named = EventSubject(context, event_type, version)
    if topic is not None:
        return check_subject(topic)
    if template == DEFAULT_TEMPLATE:
        return named.value
    return check_subject(template.format(context=context, name=event_type, version=version), "subject")


def _meets(tokens: Sequence[str], pattern: str) -> bool:
    """Whether a pattern matches some subject of these tokens, each of which is a regular expression."""
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
    return len(template) <= MAX_SUBJECT and all(map(_SAFE.fullmatch, plain.split(".")))


def event_subjects(context: str) -> str:
    """The pattern of the subjects that the default template makes."""
    return f"{context}.event.>"


def dead_letter_subject(context: str, original_subject: str) -> str:
    """The subject of a dead letter: ``{context}.dlq.{original subject}`` (EVT-047-002).

    The original subject stays readable at the end, so ``sea.dlq.vibespro.>`` selects by origin. A foreign
    subject may have any length. It is cut, because nats-server closes a connection with a line over 4,096 bytes.
    A pattern of original subjects makes the pattern of their dead letters.
    """
    return f"{context}.dlq.{original_subject[: 2 * MAX_SUBJECT].rstrip('.')}"
