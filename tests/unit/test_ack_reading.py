"""Messages for a listener are read whole and in order, wherever the socket cuts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from relay.adapters.jetstream.client import RelayClient

ACK = b'{"stream":"S","seq":1}'
PLAIN = b"MSG _INBOX.a.1 7 22\r\n" + ACK + b"\r\n"
LINES = b"MSG _INBOX.a.2 7 4\r\n\r\n\r\n\r\n"
LOOKALIKE = b"MSG _INBOX.a.3 7 24\r\n12\r\nMSG _INBOX.a.9 7 1\r\n\r\n"
HEADERS = b"HMSG _INBOX.a.4 7 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
REPLY = b"MSG _INBOX.a.5 7 reply 2\r\nok\r\n"
STRANGE = b"HMSG s.\x0b\r\xff\x00 7 $JS.ACK.1 12 14\r\nNATS/1.0\r\n\r\n{}\r\n"
BLANK = b"MSG s.\x0c 7 reply 0\r\n\r\n"
WIRE = PLAIN + LINES + b"+OK\r\n" + PLAIN + LOOKALIKE + HEADERS + STRANGE + REPLY + BLANK + b"PONG\r\n" + PLAIN
Heard = tuple[bytes, bytes, bytes, bytes | None]
EXPECTED: list[Heard] = [
    (b"_INBOX.a.1", b"", ACK, None),
    (b"_INBOX.a.2", b"", b"\r\n\r\n", None),
    (b"_INBOX.a.1", b"", ACK, None),
    (b"_INBOX.a.3", b"", b"12\r\nMSG _INBOX.a.9 7 1\r\n", None),
    (b"_INBOX.a.4", b"", b"", b"NATS/1.0 503\r\n\r\n"),
    (b"s.\x0b\r\xff\x00", b"$JS.ACK.1", b"{}", b"NATS/1.0\r\n\r\n"),
    (b"_INBOX.a.5", b"reply", b"ok", None),
    (b"s.\x0c", b"reply", b"", None),
    (b"_INBOX.a.1", b"", ACK, None),
]


def heard(pieces: Iterator[bytes]) -> list[Heard]:
    """What a listener of subscription 7 hears of a stream of bytes."""
    messages = list[Heard]()

    async def read() -> None:
        client = RelayClient("nats://127.0.0.1")
        client._listeners[7] = lambda *message: messages.append(message)
        for piece in pieces:
            await client._ps.parse(piece)

    asyncio.run(read())
    return messages


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, 50, 100])
def test_pieces_of_any_size_make_the_same_messages(size: int) -> None:
    assert heard(WIRE[at : at + size] for at in range(0, len(WIRE), size)) == EXPECTED


def test_a_cut_anywhere_makes_the_same_messages() -> None:
    for at in range(len(WIRE) + 1):
        assert heard(iter([WIRE[:at], WIRE[at:]])) == EXPECTED


def test_a_plain_message_does_not_take_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        pytest.fail("took the long way")

    monkeypatch.setattr("nats.protocol.parser.Parser.parse", refuse)
    assert len(heard(iter([PLAIN * 3]))) == 3
