"""Reads messages of JetStream as they arrive on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

from relay.domain.reading import read_subject
from relay.ports import Delivery

_SPACE: Final = " \t\r\n\v\f"
#: Number of tokens in the reply subject of a delivery: the short form, and the form with domain and account, which
#: may have more tokens at the end.
_BARE, _LONG = 9, 11


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
