"""Codes of reasons: a word for each kind of failure, so that all failures of a kind are found together.

A code is read from the text of a reason, so rows of any age have one. The patterns use only what Python and
PostgreSQL read in the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

#: The code of a text that fits no other.
OTHER: Final = "other"
#: Precedes the reason of the last attempt, and the reason of an event that became dead.
_BEFORE: Final = "(exhausted: [0-9]+ attempts, the last one: |unrecoverable: )?"
#: A class of an exception, and what `relay.domain.disclosure.told` writes after it: place, codes, text.
_RAISED: Final = (
    r"([A-Za-z_][A-Za-z0-9_]*( [0-9A-Z]{5})?( \(.*\))? at [^ ]+:[0-9]|([A-Z][a-z0-9]+){2,}(:|$)|Poison(:|$))"
)
#: The reason of a failed connection that was not simply refused.
_TLS: Final = "(SSL|TLS|certificate)"
_NAME: Final = "(Name or service|name resolution|nodename|DNS)"
_WAY: Final = "(unreachable|No route)"


@dataclass(frozen=True, slots=True)
class Code:
    """A code, what it means, and the pattern of its reasons (without their prefix)."""

    name: str
    pattern: str
    meaning: str


#: Every code. If several fit, the first one counts.
CODES: Final = (
    Code("timeout", "time-out: no answer", "no answer within the time-out"),
    Code("connect_timeout", "time-out: no connection", "no connection to the handler in time"),
    Code("tls", f"ConnectError: .*{_TLS}", "the TLS connection failed, or a certificate is not trusted"),
    Code("unknown_host", f"ConnectError: .*{_NAME}", "the host has no address"),
    Code("unreachable", f"ConnectError: .*{_WAY}", "no way to the host"),
    Code(
        "connection_refused",
        f"ConnectError: (?!.*({_TLS}|{_NAME}|{_WAY}))",
        "nothing listens at the address",
    ),
    Code(
        "connection_lost",
        "(ServerDisconnectedError|ClientOSError|ClientPayloadError|Connection[A-Za-z]*Error|BrokenPipeError): ",
        "the connection broke before the whole answer was there",
    ),
    Code(
        "no_http",
        "(ProtocolError|InvalidURL): ",
        "the server does not speak HTTP, or the address is no valid URL",
    ),
    Code("no_handler", "no handler for ", "no function is registered for the type"),
    Code(
        "does_not_fit",
        "(Poison: [^ ]+ v[0-9]+ )?does not fit its handler: ",
        "the payload does not fit the function's argument",
    ),
    Code(
        "worker_died",
        "exhausted: [0-9]+ attempts, the last one (without an answer|was cut short)",
        "the worker died in the last attempt",
    ),
    Code(
        "unreadable",
        "(MALFORMED_MESSAGE|MalformedMessage: |the dead letter itself cannot be read)",
        "no handler can read it",
    ),
    Code("stream_missing", "STREAM_MISSING", "no stream takes the subject"),
    Code("stream_mismatch", "STREAM_MISMATCH", "the subject belongs to another stream than the event names"),
    Code(
        "too_large",
        "(PAYLOAD_TOO_LARGE|over the server's limit|.* \\((10054|10097)\\)$)",
        "the event is larger than the broker or its stream takes",
    ),
    Code("invalid_event", "(INVALID_[A-Z]+|FUTURE_EVENT)", "its subject, header, payload or time is invalid"),
    Code("not_permitted", "NATS lets this user not ", "the user of NATS lacks a right"),
    Code(
        "row_refused",
        ".*, but its row cannot be settled: ",
        "the stream has the event, but the database refused to mark its row",
    ),
)
_STATUS: Final = re.compile("status_([0-9]{3})")
_RAISED_CODE: Final = re.compile("raised_([A-Za-z_][A-Za-z0-9_]*)")
#: Codes that hold a part of the reason, for help texts.
FAMILIES: Final = {
    "status_503": "the handler answered with this HTTP status; each status has such a code",
    "raised_KeyError": "the function raised this exception; each exception has such a code",
    OTHER: "no code fits",
}
_COMPILED: Final = [(code, re.compile(_BEFORE + code.pattern)) for code in CODES]
_ANSWERED: Final = "HTTP ([0-9]{3})"
_ANY_STATUS: Final = re.compile(_BEFORE + _ANSWERED)
_ANY_RAISED: Final = re.compile(_BEFORE + _RAISED)


def code_of(reason: str | None) -> str:
    """Return the code of a reason; nothing if there is no reason."""
    if not reason:
        return ""
    if (status := _ANY_STATUS.match(reason)) is not None:
        return f"status_{status[2]}"
    if (found := next((code.name for code, pattern in _COMPILED if pattern.match(reason)), None)) is not None:
        return found
    if (raised := _ANY_RAISED.match(reason)) is not None:
        return f"raised_{re.split('[^A-Za-z0-9_]', raised[2], maxsplit=1)[0]}"
    return OTHER


def pattern_of(asked: str | None) -> str | None:
    """Return a pattern for reasons: by a code or by a part of the text, in small or capital letters.

    ``connection refused`` and ``time-out`` are read as the codes that they name.
    """
    if asked is None:
        return None
    name = re.sub("[^a-z0-9]+", "_", asked.strip().lower())
    name = {"time_out": "timeout"}.get(name, name)
    known = {code.name: code.pattern for code in CODES}
    if name in known:
        return f"^{_BEFORE}{known[name]}"
    if name == OTHER:
        return f"^(?!{_BEFORE}({'|'.join([*known.values(), _ANSWERED, _RAISED])}))"
    if status := _STATUS.fullmatch(name):
        return f"^{_BEFORE}HTTP {status[1]}"
    if raised := _RAISED_CODE.fullmatch(asked.strip()):
        others = "|".join([*known.values(), _ANSWERED])
        return f"^(?!{_BEFORE}({others})){_BEFORE}{raised[1]}([^A-Za-z0-9_]|$)"
    return f"(?i){re.escape(asked)}"


def frequent(reasons: Iterable[str | None]) -> list[tuple[str, int]]:
    """Return how often each code is among reasons, the most frequent first."""
    return Counter(map(code_of, filter(None, reasons))).most_common()
