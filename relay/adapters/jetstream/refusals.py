"""What nats-server refuses, and what an operator has to grant.

A missing permission closes no connection and raises no error. The server reports it once, and the answer to the
request never comes. So the report is noted here; otherwise only time-outs would be seen.
"""

from __future__ import annotations

import re
import ssl
import time
from dataclasses import dataclass
from typing import Final, Literal

from relay.domain.errors import BrokerRefused, BrokerUnreachable

_REFUSED: Final = re.compile(r'Permissions Violation for (Publish|Subscription) (?:to|with Reply of) "([^"]*)"')
#: A refusal explains a missing answer for this time, in seconds. No caller waits longer for an answer.
_RECENT_S: Final = 10.0
#: How many different refusals are remembered on a connection.
_MAX_REFUSALS: Final = 200
#: The server's words for credentials that it does not accept.
_CREDENTIALS: Final = ("authorization", "authentication")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A subject that this user may not publish or subscribe to. ``grant`` is what it lacks."""

    verb: Literal["publish", "subscribe"]
    subject: str
    grant: str
    inbox: bool = False
    #: Whether this is the first one of its kind on the connection.
    first: bool = True

    def __str__(self) -> str:
        more = ", or give it an inbox_prefix of its own" if self.inbox else ""
        return f"NATS lets this user not {self.verb} to {self.subject}; grant it: {self.verb} {self.grant}{more}"


class ClosedAfterHandshakeError(ConnectionResetError):
    """The server closed a connection right after the TLS handshake, and its reason did not arrive."""


class Refusals:
    """The refusals of one connection."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()
        self._latest: tuple[float, Refusal] | None = None
        #: The refusal of the inbox, below which all answers arrive.
        self.inbox: Refusal | None = None

    def note(self, text: str, inbox_prefix: str) -> Refusal | None:
        """Note the refusal in the server's text. None if the text is no refusal of a subject."""
        report = _REFUSED.search(text)
        if report is None:
            return None
        subject = report[2]
        inbox = subject.startswith(f"{inbox_prefix}.")
        grant = f"{inbox_prefix}.>" if inbox else _wide(subject)
        verb: Literal["publish", "subscribe"] = "publish" if report[1] == "Publish" else "subscribe"
        first = (verb, grant) not in self._seen and len(self._seen) < _MAX_REFUSALS
        refusal = Refusal(verb, subject, grant, inbox and verb == "subscribe", first)
        if first:
            self._seen.add((verb, grant))
        self._latest = (time.monotonic(), refusal)
        if refusal.inbox:
            self.inbox = refusal
        return refusal

    def latest(self) -> Refusal | None:
        """The last refusal, if it is recent."""
        if self._latest is None or time.monotonic() - self._latest[0] > _RECENT_S:
            return None
        return self._latest[1]


def telling(before: Exception, error: Exception) -> Exception:
    """Which of two errors of connection attempts says more.

    A server that does not accept the credentials or the certificate closes at once. If it had more to read, the
    reset arrives before its reason.
    """
    text = str(before).lower()
    says_more = isinstance(before, ssl.SSLError | ClosedAfterHandshakeError) or any(
        it in text for it in _CREDENTIALS
    )
    return before if says_more and isinstance(error, ConnectionResetError) else error


def unreachable(error: Exception) -> BrokerUnreachable:
    """Why there is no connection: no answer, certificates not accepted, or credentials not accepted."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError | ClosedAfterHandshakeError):
        return BrokerUnreachable(f"NATS: no TLS connection: {text}", hint="see ca, certificate and key of [nats]")
    if any(sign in text.lower() for sign in _CREDENTIALS):
        return BrokerRefused(
            f"NATS refuses the credentials: {text.removeprefix('nats: ')}", hint="see [nats] and nats_url"
        )
    return BrokerUnreachable(f"NATS is not reachable: {text}", hint="is nats_url (NATS_URL) right?")


def _wide(subject: str) -> str:
    """The subject to grant. Each acknowledgement has a subject of its own, so for these it ends in a wildcard."""
    tokens = subject.split(".")
    return ".".join([*tokens[:4], ">"]) if tokens[:2] == ["$JS", "ACK"] and len(tokens) > 5 else subject
