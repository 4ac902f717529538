"""Messages that no producer of ours would send, straight into the stream; nats-server takes all of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg

from chaos.deployment import CONSUMING, LETTER_READER, PRODUCING, STREAM
from chaos.history import Forged, Hostile
from chaos.stage import Stage
from relay.devstack.errors import DevStackError
from relay.domain.identity import stand_in_id
from relay.domain.letters import letter_id

_SECONDS: Final = 10.0
_BODY: Final = b'{"key": "hostile"}'
#: Subjects that the filters of the subscriptions take, and what is wrong with each.
SUBJECTS: Final = (
    f"{PRODUCING}.event.http.\0".encode(),
    f"{PRODUCING}.event.http.v1\0v1".encode(),
    f"{PRODUCING}.event.python.".encode() + b"\xff\xfe",
    f"{PRODUCING}.event.ordered.".encode() + b"\xc3\x28",
    f"{PRODUCING}.event.slow.\u202e.v1".encode(),
    f"{PRODUCING}.event.http.v1.".encode() + b"x" * 2_000,
)
_INBOX: Final = "_chaos.hostile"
#: Messages that wait, and some that do not.
_SOME: Final = """
SELECT message_id, subscription, requeues + 1 FROM inbox_messages WHERE subscription <> %s
ORDER BY processed_at IS NULL DESC, random() LIMIT 20
"""
_SAYS: Final = {"class": "exhausted", "reason": "forged", "attempts": 1, "original_subject": "forged"}


@contextmanager
def hostile_messages(stage: Stage, _target: str) -> Iterator[None]:
    """Subjects with a NUL, with bytes that are no text, in odd scripts, of thousands of characters."""
    with Client(stage.rig.nats.url) as client:
        for place, subject in enumerate(SUBJECTS):
            id = f"hostile-{stage.number}-{place}"
            seq = client.publish(subject, id)
            stage.history.write(Hostile(stage.number, id, seq, str(stand_in_id(STREAM, seq))))
    stage.note(f"{len(SUBJECTS)} messages")
    yield


@contextmanager
def forged_letters(stage: Stage, _target: str) -> Iterator[None]:
    """Letters about messages that are handled, or will die, and foreign messages under the ids of real letters."""
    with psycopg.connect(stage.rig.urls[CONSUMING], connect_timeout=5) as connection:
        rows = connection.execute(_SOME, [LETTER_READER]).fetchall()
    with Client(stage.rig.nats.url) as client:
        for place, (id, subscription, occurrence) in enumerate(rows):
            own = str(letter_id(CONSUMING, subscription, id, occurrence))
            letter = {"message_id": str(id), "occurrence": occurrence, "subscription": subscription, **_SAYS}
            for name, body in ((f"forged-{stage.number}-{place}", json.dumps(letter).encode()), (own, b"foreign")):
                client.publish(f"{CONSUMING}.dlq.forged".encode(), name, body)
    stage.history.write(Forged(stage.number, 2 * len(rows)))
    stage.note(f"{2 * len(rows)} letters")
    yield


class Client:
    """The small part of NATS that can publish bytes which no client library would send."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 4222), timeout=_SECONDS)
        self._lines = self._socket.makefile("rb")
        self._line(b"INFO")
        options: dict[str, Any] = {"verbose": False, "pedantic": False, "headers": True, "name": "chaos-hostile"}
        if parts.password is not None:
            options |= {"user": unquote(parts.username or ""), "pass": unquote(parts.password)}
        elif parts.username:
            options["auth_token"] = unquote(parts.username)
        self._socket.sendall(b"CONNECT " + json.dumps(options).encode() + f"\r\nSUB {_INBOX} 1\r\n".encode())

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()

    def publish(self, subject: bytes, id: str, body: bytes = _BODY) -> int:
        """Publish a message into the stream; returns its sequence number. Raises DevStackError and OSError."""
        headers = f"NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n".encode()
        sizes = f"{len(headers)} {len(headers) + len(body)}".encode()
        self._socket.sendall(
            b"HPUB " + subject + f" {_INBOX} ".encode() + sizes + b"\r\n" + headers + body + b"\r\n"
        )
        *_, size = self._line(b"MSG", b"HMSG").split()
        answer = self._lines.read(int(size) + 2)
        try:
            return int(json.loads(answer)["seq"])
        except (ValueError, KeyError) as error:
            raise DevStackError(f"the stream did not take a message to {subject!r}: {answer!r}") from error

    def _line(self, *wanted: bytes) -> bytes:
        while line := self._lines.readline():
            if line.startswith(b"PING"):
                self._socket.sendall(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise DevStackError(f"nats-server refused: {line!r}")
            elif line.startswith(wanted):
                return line
        raise DevStackError("nats-server hung up")
