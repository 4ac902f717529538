"""JSON that others wrote can always be shown as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.foreign_json import MAX_DEPTH, pretty_json, read_json

DIGITS = "7" * 5_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
)


def nested(depth: int, inner: str = "") -> str:
    return f"{'[' * depth}{inner}{']' * depth}"


@pytest.mark.parametrize(
    "text",
    [
        DIGITS,
        f"-{DIGITS}",
        f"[{DIGITS}.5, 1e400, -1e400]",
        "[NaN, Infinity, -Infinity]",
        nested(3_000),
        nested(100_000, '"]"'),
        '{"a": ' * 100_000 + "1" + "}" * 100_000,
        '["\\ud800", {"\\udfff": "a\\ud83d"}]',
    ],
    ids=lambda text: text[:12],
)
def test_whatever_postgresql_and_nats_take_is_shown(text: str) -> None:
    written = json.dumps(read_json(text), allow_nan=False)
    assert json.loads(written) == read_json(text)
    pretty_json(text).encode()


def test_what_lies_beside_it_is_shown_as_it_is() -> None:
    text = f'{{"a": {nested(200, "1")}, "b": [{DIGITS}, "]{{", 3], "c": "\\ud83d\\ude00 \\"["}}'
    found = read_json(text)
    assert found["b"] == [DIGITS, "]{", 3]
    assert found["c"] == '\U0001f600 "['
    inner = found["a"]
    for _ in range(MAX_DEPTH - 1):
        [inner] = inner
    assert inner == "(nested too deep to be shown)"


@given(VALUES)
def test_any_value_is_read_and_written(value: object) -> None:
    json.dumps(read_json(json.dumps(value)), allow_nan=False, ensure_ascii=False).encode()


@given(st.text(st.characters()))
def test_a_text_that_is_no_json_is_shown_as_it_is(text: str) -> None:
    pretty_json(text).encode()
