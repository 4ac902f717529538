"""The wire form of a publish, and what the broker's answers mean."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.adapters.jetstream.publisher import _FULL, publish_head, read_puback
from relay.domain.policies import NoStream, OutcomeUnknown, Published, PublishOutcome, RowRejected


def test_a_command_counts_the_bytes_of_its_headers_and_body() -> None:
    head = b"NATS/1.0\r\nNats-Msg-Id: 7\r\n\r\n"
    sent = publish_head("a.b", "_INBOX.1", {"Nats-Msg-Id": "7"}, 2)
    assert sent == b"HPUB a.b _INBOX.1 %d %d\r\n" % (len(head), len(head) + 2) + head


def test_header_values_that_are_not_ascii_are_counted_in_bytes() -> None:
    line, _, rest = publish_head("a", "r", {"X": "é"}, 0).partition(b"\r\n")
    assert line == b"HPUB a r %d %d" % (len(rest), len(rest))


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
        publish_head(subject, "r", headers, 0)


def refusal(code: int, description: str = "no", status: int = 400) -> bytes:
    return json.dumps({"error": {"code": status, "err_code": code, "description": description}}).encode()


@pytest.mark.parametrize(
    ("data", "headers", "outcome"),
    [
        (b'{"stream":"S","seq":12}', None, Published("S", 12)),
        (b'{"stream":"S","seq":12,"duplicate": true}', None, Published("S", 12, duplicate=True)),
        (b'{"stream":"S","domain":"hub","seq":12}', None, Published("S", 12)),
        (b"", b"NATS/1.0 503\r\n\r\n", NoStream.missing("a.b")),
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
        (refusal(10097), None, RowRejected("no (10097)", final=False)),
    ],
)
def test_every_answer_has_a_meaning(data: bytes, headers: bytes | None, outcome: PublishOutcome) -> None:
    assert read_puback(data, headers, "a.b", {"Nats-Expected-Stream": "S"}) == outcome


#: What other programs may answer on the subject of an event.
FOREIGN = [
    b"",
    b"?",
    b"5",
    b"null",
    b"[]",
    b'"x"',
    b"{}",
    b"+OK",
    b"\xff",
    b"[" * 100_000,
    b'{"a":' * 3_000,
    b'{"seq":' + b"9" * 5_000 + b"}",
    b'{"error":5}',
    b'{"error":null}',
    b'{"error":{}}',
    b'{"error":{"code":400,"err_code":[],"description":"x"}}',
    b'{"error":{"code":400,"err_code":10097,"description":5}}',
    b'{"stream":null,"seq":"abc"}',
    b'{"stream":"S"}',
    b'{"seq":5}',
    b'{"stream":5,"seq":5}',
    b'{"stream":"","seq":5}',
    b'{"stream":"a b","seq":5}',
    b'{"stream":"S.*","seq":5}',
    b'{"stream":"\\u0000","seq":5}',
    b'{"stream":"\\ud800","seq":5}',
    b'{"stream":"S","seq":0}',
    b'{"stream":"S","seq":-5}',
    b'{"stream":"S","seq":1.5}',
    b'{"stream":"S","seq":true}',
    b'{"stream":"S","seq":9223372036854775808}',
    b'{"stream":"S","seq":99999999999999999999}',
    b'{"stream":"S","seq":5,"duplicate":"yes"}',
    b'{"stream":"ELSEWHERE","seq":5}',
    json.dumps({"stream": "x" * 256, "seq": 5}).encode(),
]


@pytest.mark.parametrize("data", FOREIGN)
def test_an_answer_that_no_server_gives_means_nothing(data: bytes) -> None:
    assert read_puback(data, None, "a.b", {"Nats-Expected-Stream": "S"}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
LIKE_AN_ANSWER = st.fixed_dictionaries(
    {},
    optional={
        "stream": JSON | st.just("S"),
        "seq": JSON | st.integers(-(2**65), 2**65),
        "duplicate": JSON,
        "error": JSON | st.fixed_dictionaries({}, optional={"code": JSON, "err_code": JSON, "description": JSON}),
    },
)


@given(st.binary() | (JSON | LIKE_AN_ANSWER).map(lambda value: json.dumps(value).encode()))
def test_whatever_the_answer_is_reading_it_never_fails_and_ends_no_event(data: bytes) -> None:
    outcome: Any = read_puback(data, None, "a.b", {})
    assert not (isinstance(outcome, RowRejected) and outcome.final)
    if isinstance(outcome, Published):
        assert 0 < outcome.seq < 2**63
        assert outcome.stream.encode().isascii() or outcome.stream.isprintable()
        assert type(outcome.duplicate) is bool
