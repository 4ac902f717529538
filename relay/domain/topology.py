"""The streams and durable consumers that the broker must have, and the rules of NATS subjects.

A pattern is a subject whose tokens may be ``*`` (exactly one token) or, at the end, ``>`` (one or more tokens).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias

from relay.domain.routing import dead_letter_subject

_PATTERN_TOKEN = re.compile(r"[A-Za-z0-9_$-]+|\*")
MAX_PATTERN_CHARS: Final = 255
StartAt: TypeAlias = Literal["beginning", "now"] | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """The required form of a stream. Always: file storage, retention ``limits``, discard ``new``.

    ``max_age`` None keeps messages for ever. ``max_bytes`` and ``max_msgs_per_subject`` are -1 for no
    limit. A full stream refuses new messages instead of dropping old ones. ``no_ack``: it confirms nothing.
    ``message_ttl``: it removes messages that expire; a stream that does so already goes on.
    """

    name: str
    subjects: tuple[str, ...]
    max_age: timedelta | None
    max_bytes: int
    max_msgs_per_subject: int = -1
    replicas: int = 1
    duplicate_window: timedelta = timedelta(seconds=120)
    no_ack: bool = False
    message_ttl: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """The required form of a durable pull consumer. Always: explicit acknowledgement.

    ``max_deliver`` and ``max_ack_pending`` are -1 for no limit. ``start_at``: which messages a new consumer gets:
    all that the stream has, those from now on, or those from a time on.
    """

    stream: str
    durable: str
    filter_subject: str
    ack_wait: timedelta
    max_deliver: int
    max_ack_pending: int
    start_at: StartAt = "beginning"


ADVISORY_SUBJECT: Final = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"

#: Keeps the server's advisories about messages that it no longer delivers (max_deliver). The server sends each
#: advisory once and stores it nowhere, and afterwards the consumer's lag looks healthy (reliability.md §2).
RELAY_ADVISORIES: Final = StreamSpec(
    name="RELAY_ADVISORIES",
    subjects=(ADVISORY_SUBJECT,),
    max_age=timedelta(days=7),
    max_bytes=256 * 1024**2,
)


def is_pattern(value: str) -> bool:
    """Whether ``value`` is a usable subject pattern: 1 to 255 characters of safe tokens, ``>`` only last."""
    if not 0 < len(value) <= MAX_PATTERN_CHARS:
        return False
    *front, last = value.split(".")
    return all(map(_PATTERN_TOKEN.fullmatch, front)) and (last == ">" or bool(_PATTERN_TOKEN.fullmatch(last)))


def subjects_overlap(a: str, b: str) -> bool:
    """Whether some subject matches both patterns."""
    left, right = a.split("."), b.split(".")
    for one, other in zip(left, right, strict=False):
        if ">" in (one, other):
            return True
        if one != other and "*" not in (one, other):
            return False
    return len(left) == len(right)


def covers(pattern: str, subject: str) -> bool:
    """Whether ``pattern`` matches every subject that ``subject``, which may be a pattern, matches."""
    wide, narrow = pattern.split("."), subject.split(".")
    for one, other in zip(wide, narrow, strict=False):
        if one == ">":
            return True
        if other == ">" or one not in ("*", other):
            return False
    return len(wide) == len(narrow)


def subject_pattern(subject: str) -> str:
    """Return a regular expression of the subjects that ``subject``, which may be a pattern, matches.

    It means the same to Python and to PostgreSQL.
    """
    parts = ["[^.]+" if part == "*" else re.escape(part) for part in subject.split(".")]
    if parts[-1] == ">":
        parts[-1] = ".+"
    return f"^{'[.]'.join(parts)}$"


def dead_letter_consumer(context: str, stream: str) -> ConsumerSpec:
    """Return the durable that reads a context's dead letters, to record them as incidents (DESIGN §7)."""
    return _own(stream, f"{context}__dead_letters", dead_letter_subject(context, ">"))


def advisory_consumer(consumer: ConsumerSpec) -> ConsumerSpec:
    """Return the durable that reads advisories about messages of ``consumer`` beyond ``max_deliver``."""
    about = f"{ADVISORY_SUBJECT.removesuffix('>')}{consumer.stream}.{consumer.durable}"
    return _own(RELAY_ADVISORIES.name, f"{consumer.stream}__{consumer.durable}", about)


def _own(stream: str, name: str, filter_subject: str) -> ConsumerSpec:
    """Return a durable of the relay's own, whose messages are redelivered until they are dealt with."""
    return ConsumerSpec(
        stream=stream,
        durable=f"relay__{name}",
        filter_subject=filter_subject,
        ack_wait=timedelta(seconds=30),
        max_deliver=-1,
        max_ack_pending=1_000,
    )
