"""Codes of reasons: a word for each kind of failure, so that all failures of a kind are found together.

A code is read from the text of a reason, so rows of any age have one. The patterns use only what Python and
PostgreSQL read in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: The code of a text that fits no other.
OTHER: Final = "other"
#: Precedes the reason of the last attempt, and the reason of an event that became dead.
_BEFORE: Final = "(exhausted: [0-9]+ attempts, the last one: |unrecoverable: )?"
#: A class of an exception, and what `relay.domain.disclosure.safe_text` writes after it: place, codes, text.
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
        "exhausted: [0-9]+ attempts, the last one without an answer",
        "the worker died in the last attempt",
    ),
    Code("unconfirmed", "unconfirmed: ", "a dead letter came, but no message died so"),
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
    Code("cancelled", "CANCELLED: ", "its producer took it back"),
    Code("expired", "EXPIRED: ", "its time was over before its turn came"),
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
_ANSWERED: Final = "HTTP [0-9]{3}"
#: All in one, as thousands of reasons are counted for a page; the first that fits names its group.
_NAMES: Final = "|".join(f"(?P<{code.name}>{code.pattern})" for code in CODES)
_ANY: Final = re.compile(f"{_BEFORE}((?P<status>{_ANSWERED})|{_NAMES}|(?P<raised>{_RAISED}))")


def code_of(reason: str | None) -> str:
    """Return the code of a reason; nothing if there is no reason."""
    if not reason:
        return ""
    if (found := _ANY.match(reason)) is None:
        return OTHER
    named = {name: text for name, text in found.groupdict().items() if text is not None}
    [(name, text)] = named.items()
    if name == "status":
        return f"status_{text.removeprefix('HTTP ')}"
    return f"raised_{re.split('[^A-Za-z0-9_]', text, maxsplit=1)[0]}" if name == "raised" else name


def cause(reason: str) -> str:
    """A reason without the words before it that all reasons of spent attempts begin with."""
    return re.sub(f"^{_BEFORE}", "", reason)


def in_short(reason: str) -> str:
    """A reason in a few words: a status, the class of an exception, or what its code says. It holds no payload."""
    code = code_of(reason)
    if (status := _STATUS.fullmatch(code)) is not None:
        return f"HTTP {status[1]}"
    return code.removeprefix("raised_") if code.startswith("raised_") else code.replace("_", " ")


@dataclass(frozen=True, slots=True)
class ReasonFilter:
    """Which reasons an operator asks for: those that fit ``pattern`` and none of ``unless``. None: any row.

    Short patterns, none of which looks ahead for all others: PostgreSQL then needs a third of the time.
    """

    pattern: str | None = None
    unless: Sequence[str] = ()

    def fits(self, reason: str) -> bool:
        """Whether a reason is one of them, as PostgreSQL says it."""
        fits = self.pattern is None or re.search(self.pattern, reason) is not None
        return fits and not any(re.search(it, reason) for it in self.unless)


def reason_filter(asked: str | None) -> ReasonFilter:
    """Return the reasons that an operator asks for, by a code or by a part of the text, in any case.

    ``connection refused`` and ``time-out`` are read as the codes that they name.
    """
    if asked is None:
        return ReasonFilter()
    name = re.sub("[^a-z0-9]+", "_", asked.strip().lower())
    name = {"time_out": "timeout"}.get(name, name)
    known = {code.name: code.pattern for code in CODES}
    if name in known:
        return ReasonFilter(f"^{_BEFORE}{known[name]}")
    if name == OTHER:
        return ReasonFilter("", [*_others(), f"^{_BEFORE}{_RAISED}"])
    if status := _STATUS.fullmatch(name):
        return ReasonFilter(f"^{_BEFORE}HTTP {status[1]}")
    if raised := _RAISED_CODE.fullmatch(asked.strip()):
        return ReasonFilter(f"^{_BEFORE}{raised[1]}([^A-Za-z0-9_]|$)", _others(raised[1]))
    return ReasonFilter(f"(?i){re.escape(asked)}")


def _others(name: str | None = None) -> list[str]:
    """The patterns of all codes but those of exceptions: the quick ones as one.

    ``name``: without slow ones that begin with another name than this.
    """
    slow = [code.pattern for code in CODES if ".*" in code.pattern]
    slow = [it for it in slow if name is None or name.startswith(re.split("[^A-Za-z]", it, maxsplit=1)[0])]
    quick = [_ANSWERED, *(code.pattern for code in CODES if ".*" not in code.pattern)]
    return [f"^{_BEFORE}({'|'.join(quick)})", *(f"^{_BEFORE}{pattern}" for pattern in slow)]
