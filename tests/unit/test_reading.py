"""The JSON of a received body means the same, whichever library reads it: a fast one, or the standard library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.errors import MalformedMessage
from relay.domain.reading import read_json

#: What the standard library makes of each body. A fast library rounds or refuses some of them.
READ: dict[bytes, Any] = {
    b"18446744073709551615": 2**64 - 1,
    b"18446744073709551616": 2**64,
    b"-9223372036854775809": -(2**63) - 1,
    b'{"a":{"b":[123456789012345678901234567890]}}': {"a": {"b": [123456789012345678901234567890]}},
    b'["0123456789012345678901234567890", 1]': ["0123456789012345678901234567890", 1],
    b"1" * 400: int("1" * 400),
    b"100000000000000000000000.0": 1e23,
    b"-0": 0,
    b"-0.0": -0.0,
    b"1e-400": 0.0,
    b"4.9e-324": 5e-324,
    rb'"\ud800"': "\ud800",
    rb'{"\ud800": 1}': {"\ud800": 1},
    b'"\xed\xa0\x80"': "\ud800",
    rb'"\ud83d\ude00\u0000"': "😀\x00",
    b'{"a":1,"b":2,"a":3}': {"a": 3, "b": 2},
    b"\xef\xbb\xbf1": 1,
    '["é"]'.encode("utf-16"): ["é"],
    " \t\r\n null\n".encode("utf-32-le"): None,
    b"null": None,
    b"[" * 101 + b"]" * 101: json.loads("[" * 101 + "]" * 101),
}
REFUSED = [
    *(b"NaN", b"[Infinity]", b"-Infinity", b"1e400", b"-1e999", b"1" * 310 + b".0", b"0x1", b"01", b"1.", b".5"),
    *(b"", b"\x00", b"\xff", b'"\xff"', b'"\x01"', b'"\n"', rb'"\x"', b"[1,]", b"{'a':1}", b"true false", b"tru"),
    *(b"[" * 102 + b"]" * 102, b'{"a":' * 150 + b"1" + b"}" * 150, b"[" * 100_000, b"1" * 5_000),
]


def exactly(value: Any) -> str:
    """A value with its types and the order of its names."""
    return repr(value)


@pytest.mark.parametrize("body", READ, ids=lambda it: it[:40])
def test_a_body_is_read_as_the_standard_library_reads_it(body: bytes) -> None:
    assert exactly(read_json(body)) == exactly(READ[body])


@pytest.mark.parametrize("body", REFUSED, ids=lambda it: it[:40])
def test_what_is_no_json_or_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_json(body)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@settings(max_examples=60, deadline=None)
@given(VALUES, st.booleans())
def test_any_value_is_read_as_it_was_written(value: Any, plain: bool) -> None:
    assert exactly(read_json(json.dumps(value, ensure_ascii=plain).encode(errors="surrogatepass"))) == exactly(
        value
    )
