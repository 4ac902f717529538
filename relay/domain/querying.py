"""Request and reply over NATS: subjects, headers and codes of a query and its answer.

A query is a JSON object, its answer any JSON value; null says that nothing was found. An error has no body but the
headers of NATS services (ADR-32), so that other clients understand it.

Workers also listen at a second subject, `presence_subject`, which no stream takes. A stream over the query's own
subject counts as a listener, so there the server would never say that nobody answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from relay.domain.errors import MalformedMessage
from relay.domain.reading import read_json, read_object

ERROR: Final = "Nats-Service-Error"
ERROR_CODE: Final = "Nats-Service-Error-Code"
#: How long the asking program waits, in milliseconds.
TIMEOUT: Final = "Relay-Timeout-Ms"
#: The context that answers. A stream that answers instead sends no such header.
ANSWERED_BY: Final = "Relay-Answered-By"


class Raw(bytes):
    """An answer that is no JSON, for whoever asks for one."""


BUSY: Final = "QUERY_BUSY"
TOO_SLOW: Final = "QUERY_TIMEOUT"
FAILED: Final = "QUERY_FAILED"
UNREADABLE: Final = "MALFORMED_QUERY"
TOO_LARGE: Final = "ANSWER_TOO_LARGE"
NO_ANSWER: Final = "INVALID_ANSWER"

#: What each code says. The text of an exception is never sent.
TEXTS: Final[Mapping[str, str]] = {
    BUSY: "too many queries at once",
    TOO_SLOW: "the handler took too long",
    FAILED: "the handler failed",
    UNREADABLE: "the query cannot be read",
    TOO_LARGE: "the answer is larger than NATS takes",
    NO_ANSWER: "the handler's answer is not JSON",
}

_PRESENT: Final = "_RELAY.PRESENT"
_LONGEST: Final = timedelta(days=1)


def presence_subject(subject: str) -> str:
    """The subject at which workers that answer queries of ``subject`` say that they are present.

    No stream takes it. A stream that takes the query's own subject hides that nobody answers.
    """
    return f"{_PRESENT}.{subject}"


def query_subjects(context: str) -> str:
    """The pattern of the subjects at which a context answers by default."""
    return f"{context}.queries.>"


def keys_subject(context: str) -> str:
    """The subject at which the workers of a context answer for the keys of personal values."""
    return f"relay.keys.{context}"


def payloads_subject(context: str) -> str:
    """The subject at which the workers of a context answer for the content of large payloads."""
    return f"relay.payloads.{context}"


def error_headers(code: str, text: str = "") -> dict[str, str]:
    """The headers of an error."""
    return {ERROR: TEXTS.get(code) or text or "the query was refused", ERROR_CODE: code}


def read_query(body: bytes) -> dict[str, Any]:
    """The fields of a query; an empty body has none. Raises MalformedMessage."""
    return read_object(read_json(body)) if body else {}


def read_timeout(headers: Mapping[str, str], most: timedelta) -> timedelta:
    """How long an answer may take: ``most``, or less if the asking program waits less."""
    text = headers.get(TIMEOUT, "")
    if not text.isdecimal() or not text.isascii() or len(text) > 9:
        return most
    return min(most, timedelta(milliseconds=int(text)), _LONGEST)


def is_puback(body: bytes) -> bool:
    """Whether a reply looks like that of a stream, which stores a query and answers it itself."""
    if len(body) > 1_000:
        return False
    try:
        content = read_object(json.loads(body))
    except (ValueError, RecursionError, MalformedMessage):
        return False
    return isinstance(content.get("stream"), str) and isinstance(content.get("seq"), int)
