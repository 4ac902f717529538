"""Messages of JetStream on the wire: what arrives, the command of a publish, and the meaning of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from relay.domain.policies import NoStream, OutcomeUnknown, Published, PublishOutcome, RowRejected
from relay.domain.reading import read_subject
from relay.domain.routing import EXPECTED_STREAM
from relay.ports import Delivery

_SPACE: Final = " \t\r\n\v\f"
#: Number of tokens in the reply subject of a delivery: the short form, and the form with domain and account, which
#: may have more tokens at the end.
_BARE, _LONG = 9, 11
#: Server errors that are due to the message itself (nats-server error codes), and whether they are final.
#: 10054: the message is too large for its stream, whose limit can be changed. 10097: its headers are too large for
#: any stream.
_ROW_ERRORS: Final = {10054: False, 10097: True}
#: Transient errors: the stream is full, or the server has no room or no leader now.
_PASSING_ERRORS: Final = {10077, 10122, 10023, 10008, 10009, 10039, 10074, 10203}
_OTHER_STREAM: Final = 10060
#: A message cannot be stored. If the text says so, a limit of the stream is reached (discard new).
_NOT_STORED: Final = 10077
_LIMIT_REACHED: Final = "maximum "
_FULL: Final = "the stream is full, and events wait: raise its limits or shorten its max_age"
#: The form of nearly every answer. All others are parsed as JSON.
_ACK: Final = re.compile(rb'\{"stream":"([A-Za-z0-9_-]+)","seq":([0-9]+)\}')
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_ANY_SPACE: Final = re.compile(r"\s")


class Arrived(NamedTuple):
    """A message as it arrived."""

    subject: bytes
    reply: bytes
    body: bytes
    headers: bytes | None


def read_headers(raw: bytes | None) -> dict[str, str]:
    """The headers of a message; for a status also its number and text. Other lines are left out."""
    if not raw:
        return {}
    first, *lines = raw.decode("utf-8", "replace").split("\r\n")
    found = _status(first)
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.strip(_SPACE)
        if colon and name.isascii() and len(name.split()) <= 1:
            found[name] = value.strip(_SPACE)
    return found


def _status(line: str) -> dict[str, str]:
    """The status in the first line, after its version, if there is one."""
    _, _, text = line.partition(" ")
    number, _, description = text.strip(_SPACE).partition(" ")
    if not number:
        return {}
    return {"Status": number, "Description": description} if description else {"Status": number}


class Place(NamedTuple):
    """The fields of a delivery's reply subject. ``at``: when it was stored, in nanoseconds of Unix time."""

    stream: str
    stream_seq: int
    consumer_seq: int
    at: int
    pending: int


def read_place(reply: bytes) -> Place | None:
    """The place of a message in its stream and consumer. None if no consumer sent it."""
    tokens = reply.split(b".")
    if len(tokens) != _BARE:
        tokens = [*tokens[:2], *tokens[4:]] if len(tokens) >= _LONG else []
    if tokens[:2] != [b"$JS", b"ACK"]:
        return None
    try:
        return Place(tokens[2].decode(), *map(int, tokens[5:9]))
    except ValueError:
        return None


def read_delivery(message: Arrived) -> Delivery | None:
    """The delivery in a message. None if no consumer sent it."""
    if (place := read_place(message.reply)) is None:
        return None
    subject, legible = read_subject(message.subject)
    return Delivery(
        subject=subject,
        reply=message.reply.decode("utf-8", "replace"),
        headers=read_headers(message.headers),
        body=message.body,
        stream=place.stream,
        stream_seq=place.stream_seq,
        consumer_seq=place.consumer_seq,
        legible=legible,
        stored_at=datetime.fromtimestamp(place.at / 1e9, UTC),
    )


# --- publishing ---


def publish_command(subject: str, reply: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """The HPUB command of a message. Raises ValueError for a header or subject that would break its line."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    line = f"HPUB {_checked(subject)} {reply} {len(head)} {len(head) + len(body)}\r\n"
    return b"".join((line.encode(), head, body, b"\r\n"))


@lru_cache(maxsize=4_096)
def _checked(subject: str) -> str:
    if not subject or _ANY_SPACE.search(subject):
        raise ValueError("a subject is empty or contains white space")
    return subject


def read_puback(
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
    if code == _NOT_STORED and str(error.get("description")).startswith(_LIMIT_REACHED):
        return OutcomeUnknown(f"{text}: {_FULL}")
    if code in _PASSING_ERRORS or error.get("code") == 503:
        return OutcomeUnknown(text)
    return NoStream(text)
