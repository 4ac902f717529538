"""Messages as JetStream sends them: what is read is what nats-py reads, at a fraction of its time."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.aio.msg import Msg

from relay.adapters.jetstream.client import Arrived, read_delivery, read_headers
from relay.domain.reading import read_subject
from relay.ports import Delivery

LINES = st.lists(st.binary() | st.text(st.sampled_from("Aa-: \tü\x00\n\u2028\xa0")).map(str.encode))


@given(LINES)
@example(
    [b"Nats-Msg-Id: 1", b"Nats-Msg-Id:2", b"no header", b"in valid: 3", b"Gr\xc3\xbc\xc3\x9fe: 4", b" a :\t\xff "]
)
def test_headers(lines: list[bytes]) -> None:
    raw = b"\r\n".join(lines)
    assert read_headers(b"NATS/1.0\r\n" + raw + b"\r\n\r\n") == Client._parse_header_lines(raw)


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (None, {}),
        (b"NATS/1.0\r\n\r\n", {}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 409 Consumer Deleted\r\n\r\n", {"Status": "409", "Description": "Consumer Deleted"}),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\n\r\n",
            {"Status": "408", "Description": "Request Timeout", "Nats-Pending-Messages": "7"},
        ),
    ],
)
def test_statuses(raw: bytes | None, found: dict[str, str]) -> None:
    assert read_headers(raw) == found


@given(
    st.binary() | st.text(st.characters(exclude_categories=())).map(lambda it: it.encode("utf-8", "surrogatepass"))
)
@example(b"a\\x00.\x00\xff\xc2\xa0\x0b")
def test_a_subject_that_is_no_text_is_escaped_and_can_be_undone(raw: bytes) -> None:
    subject, legible = read_subject(raw)
    assert not re.search(r"[\s\x00-\x1f]", subject)
    assert legible == (subject.encode() == raw)
    if not legible:
        undone = re.sub(
            rb"\\(\\|x[0-9a-f]{2})",
            lambda it: b"\\" if it[1] == b"\\" else bytes.fromhex(it[1][1:].decode()),
            subject.encode(),
        )
        assert undone == raw


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.SEA.down.1.1234.56.1763723456789012345.100",
        "$JS.ACK.hub.ACCOUNT.SEA.down.1.1234.56.1763723456789012345.100",
        "$JS.ACK._.ACCOUNT.SEA.down.1.1234.56.1763723456789012345.100.random",
    ],
)
def test_the_place_of_a_delivery_is_in_its_reply_subject(reply: str) -> None:
    metadata = Msg.Metadata._from_reply(reply)
    assert read_delivery(
        Arrived(b"sea.event.x.v1", reply.encode(), b"{}", b"NATS/1.0\r\nA: 1\r\n\r\n")
    ) == Delivery(
        subject="sea.event.x.v1",
        reply=reply,
        headers={"A": "1"},
        body=b"{}",
        stream=metadata.stream,
        stream_seq=metadata.sequence.stream,
        consumer_seq=metadata.sequence.consumer,
        stored_at=metadata.timestamp,
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"_INBOX.abc.1",
        b"$JS.ACK.SEA.down",
        b"$JS.ACK.SEA.down.a.b.c.d.e",
        b"$JS.ACK.\xff.down.1.1.1.1.1",
        b"a.b.c.d.e.f.g.h.i",
        b"a.b.c.d.e.f.g.h.i.j.k",
    ],
)
def test_a_message_that_no_consumer_sent_is_no_delivery(reply: bytes) -> None:
    assert read_delivery(Arrived(b"x", reply, b"", None)) is None
