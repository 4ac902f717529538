"""Messages that no client library would send, and a way to send them: nats-server takes nearly any bytes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit
from uuid import UUID

from tests.integration.consuming import Subscription


@dataclass(frozen=True)
class Raw:
    """A message as bytes. ``headers`` None: sent without any; what is no header block is stored as well."""

    subject: bytes
    headers: bytes | None
    body: bytes


async def publish_raw(url: str, messages: Sequence[Raw]) -> None:
    """Send messages over a socket, with nobody who checks them."""
    server = urlsplit(url)
    reader, writer = await asyncio.open_connection(server.hostname, server.port)
    who = {"user": server.username, "pass": server.password}
    options = {"verbose": False, "pedantic": False, "headers": True, **who}
    writer.write(b"CONNECT %b\r\n" % json.dumps(options).encode())
    for it in messages:
        if it.headers is None:
            writer.write(b"PUB %b %d\r\n%b\r\n" % (it.subject, len(it.body), it.body))
        else:
            head, size = len(it.headers), len(it.headers) + len(it.body)
            writer.write(b"HPUB %b %d %d\r\n%b%b\r\n" % (it.subject, head, size, it.headers, it.body))
    writer.write(b"PING\r\n")
    answer = b""
    while b"PONG" not in answer:
        data = await asyncio.wait_for(reader.read(65_536), 60)
        assert data, f"the server cut the connection: {answer[-200:]!r}"
        answer += data
    writer.close()
    assert b"-ERR" not in answer, answer


def block(**headers: bytes) -> bytes:
    """A header block; an underscore in a name stands for a hyphen."""
    lines = [b"%b: %b" % (name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return b"\r\n".join([b"NATS/1.0", *lines, b"", b""])


def content(**values: object) -> bytes:
    """The body of a good message, but for ``values``."""
    return json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {}, **values}).encode()


def good(sub: Subscription, number: int, **headers: bytes) -> tuple[UUID, Raw]:
    id = UUID(int=2**100 + number, version=4)
    return id, Raw(sub.subject.encode(), block(Nats_Msg_Id=str(id).encode(), **headers), content())


def hostile(sub: Subscription) -> dict[str, Raw]:
    """Messages that cannot be handled, each for one reason, by its name."""
    numbers = iter(range(10**6, 10**7))
    prefix = f"{sub.name}.event.".encode()

    def own_id() -> bytes:
        return str(UUID(int=2**101 + next(numbers), version=4)).encode()

    subjects = {
        "NUL": b"a\x00b.v1",
        "no UTF-8": b"a\xffb.v1",
        "a lone surrogate": b"a\xed\xa0\x80b.v1",
        "a vertical tab": b"a\x0bb.v1",
        "a carriage return": b"a\rb.v1",
        "a space that is no space": b"a\xc2\xa0b.v1",
        "a backslash and NUL": b"a\\x00\x00b.v1",
        "long": b"\xff" * 3_500,
    }
    ids = {
        "none": block(Other=b"1"),
        "NUL": block(Nats_Msg_Id=b"\x00"),
        "no UTF-8": block(Nats_Msg_Id=b"\xff\xfe"),
        "long": block(Nats_Msg_Id=b"7" * 5_000),
        "an absurd generation": block(Nats_Msg_Id=own_id() + b"." + b"9" * 5_000),
        "no block": b"XXXX",
        "a status": b"NATS/1.0 404 No Messages\r\n\r\n",
        "a bare line": b"NATS/1.0",
        "60 kB": block(**{f"H{n}": b"\xff" * 60 for n in range(900)}),
    }
    beside = {
        "NUL": {"Actor_Id": b"a\x00b"},
        "NUL in the key": {"Relay_Partition_Key": b"a\x00b"},
        "an escaped NUL in the key": {"Relay_Partition_Key": b"a%00b"},
        "NUL in a name": {"Act\x00or": b"a"},
    }
    bodies = {
        "a number too long to read": content(event_version=7).replace(b"7", b"7" * 5_000),
        "an absurd version": content(event_version=10**400),
        "a version that is true": content(event_version=True),
        "a type with NUL": content(event_type="a\x00b"),
        "a type with a lone surrogate": content(event_type="\ud800"),
        "a correlation with a lone surrogate": content(correlation_id="\udfff" * 32),
        "a correlation that is an object": content(correlation_id={}),
        "a time that is a number": content(occurred_at=10**30),
        "a time before time": content(occurred_at="0001-01-01T00:00:00+23:59"),
        "a time with a lone surrogate": content(occurred_at="2026-01-01T00:00:00\ud800"),
        "deep": content(payload=0).replace(b"0}", b"[" * 60_000 + b"]" * 60_000 + b"}"),
        "infinite": content(payload=0).replace(b"0}", b"1e999}"),
        "another encoding": "{".encode("utf-32"),
        "nothing": b"",
    }
    return {
        **{
            f"subject: {name}": Raw(prefix + it, block(Nats_Msg_Id=own_id()), content())
            for name, it in subjects.items()
        },
        **{f"id: {name}": Raw(sub.subject.encode(), headers, content()) for name, headers in ids.items()},
        "id: no headers": Raw(sub.subject.encode(), None, content()),
        **{
            f"headers: {name}": Raw(sub.subject.encode(), block(Nats_Msg_Id=own_id(), **headers), content())
            for name, headers in beside.items()
        },
        **{
            f"body: {name}": Raw(sub.subject.encode(), block(Nats_Msg_Id=own_id()), body)
            for name, body in bodies.items()
        },
    }


def noise(sub: Subscription, seed: int, count: int) -> list[Raw]:
    """Good messages with a few bytes of subject, headers or body changed."""
    random, found = Random(seed), []
    for number in range(count):
        _, it = good(sub, 10**5 + number, Actor_Id=b"ann", Relay_Partition_Key=b"k")
        head = bytearray(it.headers or b"")
        tail, body = bytearray(b"vibe_created.v1"), bytearray(it.body)
        part = random.choice([head, tail, body])
        for _ in range(random.randint(1, 4)):
            part[random.randrange(len(part))] = random.choice([0, 9, 10, 11, 13, 32, 46, 92, 127, 128, 237, 255])
        # What would end the line of the command, or divide it, is not part of the subject.
        subject = bytes(tail).translate(None, b" \t\n").strip(b".\r").replace(b"..", b".") or b"x"
        found.append(Raw(f"{sub.name}.event.".encode() + subject, bytes(head), bytes(body)))
    return found
