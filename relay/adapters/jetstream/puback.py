"""The command of a publish on the wire, and the meaning of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from relay.domain.policies import NoStream, OutcomeUnknown, Published, PublishOutcome, RowRejected
from relay.domain.routing import EXPECTED_STREAM

#: Server errors that are due to the message itself (nats-server error codes), and whether they are final.
#: 10054: the message is too large for its stream, whose limit can be changed. 10097: its headers are too large for
#: any stream.
_ROW_ERRORS: Final = {10054: False, 10097: True}
#: Transient errors: the stream is full, or the server has no room or no leader now.
_PASSING_ERRORS: Final = {10077, 10122, 10023, 10008, 10009, 10039, 10074, 10203}
_OTHER_STREAM: Final = 10060
#: The form of nearly every answer. All others are parsed as JSON.
_ACK: Final = re.compile(rb'\{"stream":"([A-Za-z0-9_-]+)","seq":([0-9]+)\}')
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_SPACE: Final = re.compile(r"\s")


def command(subject: str, reply: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The HPUB command of a message. Raises ValueError for a header or subject that would break its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    line = f"HPUB {_checked(subject)} {reply} {len(head)} {len(head) + len(body)}\r\n"
    return b"".join((line.encode(), head, body, b"\r\n"))


@lru_cache(maxsize=4_096)
def _checked(subject: str) -> str:
    if not subject or _SPACE.search(subject):
        raise ValueError("a subject is empty or contains white space")
    return subject


def read(
    data: bytes, headers: bytes | None, subject: str, sent: Mapping[str, str], seconds: float = 0.0
) -> PublishOutcome:
    """Turn the answer to a publish into an outcome. ``sent``: the headers. ``seconds``: how long it took."""
    if plain := _ACK.fullmatch(data):
        return Published(plain[1].decode(), int(plain[2]), duplicate=False, seconds=seconds)
    if not data and headers and headers.startswith(_NO_RESPONDERS):
        return NoStream.missing(subject)
    try:
        answer: dict[str, Any] = json.loads(data)
    except ValueError:
        return OutcomeUnknown("the answer is not a PubAck")
    if "error" in answer:
        if answer["error"].get("err_code") == _OTHER_STREAM:
            return NoStream.mismatch(subject, sent.get(EXPECTED_STREAM, "?"))
        return _refused(answer["error"])
    return Published(answer["stream"], answer["seq"], answer.get("duplicate", False), seconds)


def _refused(error: Mapping[str, Any]) -> PublishOutcome:
    code, text = error.get("err_code"), f"{error.get('description')} ({error.get('err_code')})"
    if code in _ROW_ERRORS:
        return RowRejected(text, final=_ROW_ERRORS[code])
    if code in _PASSING_ERRORS or error.get("code") == 503:
        return OutcomeUnknown(text)
    return NoStream(text)
