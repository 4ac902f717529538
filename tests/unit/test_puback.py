"""The wire form of a publish, and what the broker's answers mean."""

from __future__ import annotations

import json

import pytest

from relay.adapters.jetstream.publisher import _FULL, publish_command, read_puback
from relay.domain.policies import NoStream, OutcomeUnknown, Published, PublishOutcome, RowRejected


def test_a_command_counts_the_bytes_of_its_headers_and_body() -> None:
    wire = publish_command("a.b", "_INBOX.1", {"Nats-Msg-Id": "7"}, "é".encode())
    head = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    assert wire == b"HPUB a.b _INBOX.1 %d %d\r\n" % (len(head), len(head) + 2) + head + "é".encode() + b"\r\n"


def test_header_values_that_are_not_ascii_are_counted_in_bytes() -> None:
    wire = publish_command("a", "r", {"X": "é"}, b"")
    line, _, rest = wire.partition(b"\r\n")
    assert line == b"HPUB a r %d %d" % (len(rest) - 2, len(rest) - 2)


@pytest.mark.parametrize(
    ("subject", "headers"),
    [
        ("a b", {}),
        ("a\r\nPUB x 0", {}),
        ("", {}),
        ("a", {"X": "1\r\nY: 2"}),
        ("a", {"X": "1\nY: 2"}),
        ("a", {"X": "1\rY: 2"}),
        ("a", {"X\r\nY": "1"}),
    ],
)
def test_what_would_break_out_of_its_line_is_refused(subject: str, headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"line break|white space"):
        publish_command(subject, "r", headers, b"")


def refusal(code: int, description: str = "no", status: int = 400) -> bytes:
    return json.dumps({"error": {"code": status, "err_code": code, "description": description}}).encode()


@pytest.mark.parametrize(
    ("data", "headers", "outcome"),
    [
        (b'{"stream":"S","seq":12}', None, Published("S", 12)),
        (b'{"stream":"S","seq":12,"duplicate": true}', None, Published("S", 12, duplicate=True)),
        (b'{"stream":"S","domain":"hub","seq":12}', None, Published("S", 12)),
        (b"", b"NATS/1.0 503\r\n\r\n", NoStream.missing("a.b")),
        (b"?", None, OutcomeUnknown("the answer is not a PubAck")),
        (b"", None, OutcomeUnknown("the answer is not a PubAck")),
        (refusal(10054), None, RowRejected("no (10054)", final=False)),
        (refusal(10077), None, OutcomeUnknown("no (10077)")),
        (
            refusal(10077, "maximum bytes exceeded"),
            None,
            OutcomeUnknown(f"maximum bytes exceeded (10077): {_FULL}"),
        ),
        (refusal(1, status=503), None, OutcomeUnknown("no (1)")),
        (refusal(10060), None, NoStream.mismatch("a.b", "S")),
        (refusal(10061), None, NoStream("no (10061)")),
    ],
)
def test_every_answer_has_a_meaning(data: bytes, headers: bytes | None, outcome: PublishOutcome) -> None:
    assert read_puback(data, headers, "a.b", {"Nats-Expected-Stream": "S"}) == outcome
