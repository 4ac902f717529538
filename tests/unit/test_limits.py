"""What may enter the outbox: keys, headers, payloads, sizes. And the second check, before the broker."""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.domain.errors import InvalidEvent, InvalidHeader, InvalidKey, InvalidPayload, PayloadTooLarge
from relay.domain.limits import (
    check_headers,
    check_key,
    check_payload_text,
    check_size,
    encode_payload,
    nests_deeper,
)

quick = settings(max_examples=100, deadline=None)


def nested(depth: int, innermost: Any = 1) -> Any:
    """Lists and objects in turn, ``depth`` of them, around a value."""
    value = innermost
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


# --- keys ---


@pytest.mark.parametrize("key", ["a", "vibe:42", "a b", "é", "日本", "🎷", "a\nb", "x" * 200, "é" * 100])
def test_a_key_is_any_text_of_at_most_200_bytes(key: str) -> None:
    assert check_key(key, "aggregate_id") == key


@pytest.mark.parametrize(
    "key", ["", None, 42, b"a", ["a"], "x" * 201, "é" * 101, "🎷" * 51, "a\x00", "\x00", "\ud800", "a\udfff"]
)
def test_a_key_that_cannot_be_stored_is_refused_with_its_field(key: object) -> None:
    with pytest.raises(InvalidKey) as raised:
        check_key(key, "aggregate_id")
    assert (raised.value.code, raised.value.field) == ("INVALID_KEY", "aggregate_id")


# --- headers ---


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "X-Empty": ""},
        {"a" * 64: " ~!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}", "Natsy": "1", "X-Nats-Rollup": "1"},
        {f"h{number}": "v" for number in range(32)},
    ],
)
def test_plain_headers_are_taken(headers: dict[str, str]) -> None:
    check_headers(headers)


@pytest.mark.parametrize(
    "name", ["Nats-Rollup", "nats-rollup", "NATS-ROLLUP", "nAtS-rOlLuP", "Nats-Msg-Id", "Nats-", "nats-x"]
)
def test_a_header_that_steers_the_broker_is_refused_in_any_case(name: str) -> None:
    with pytest.raises(InvalidHeader, match="reserved") as raised:
        check_headers({"ok": "1", name: "all"})
    assert (raised.value.code, raised.value.field) == ("INVALID_HEADER", f"headers.{name}")


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a:", "a\r\nNats-Rollup", "a\n", " Nats-Rollup", "é", "a.b", "a\x00", "x" * 65, 1, None],
)
def test_a_header_name_of_another_alphabet_is_refused(name: Any) -> None:
    with pytest.raises(InvalidHeader):
        check_headers({name: "v"})


@pytest.mark.parametrize(
    "value", ["a\r\nNats-Rollup: all", "a\r", "a\n", "\n", "\t", "\x00", "\x7f", "é", "\ud800", 1, None, b"v"]
)
def test_a_header_value_that_could_end_the_line_or_be_misread_is_refused(value: Any) -> None:
    with pytest.raises(InvalidHeader) as raised:
        check_headers({"X-Name": value})
    assert raised.value.field == "headers.X-Name"


@pytest.mark.parametrize("headers", [None, [("a", "b")], "a"])
def test_headers_are_names_with_values(headers: Any) -> None:
    with pytest.raises(InvalidHeader, match="mapping"):
        check_headers(headers)


def test_there_are_at_most_32_headers() -> None:
    with pytest.raises(InvalidHeader, match="33 headers"):
        check_headers({f"h{number}": "v" for number in range(33)})


def test_all_headers_together_take_at_most_8192_bytes_with_their_separators() -> None:
    check_headers({"abc": "x" * (8_192 - 3 - 4)})
    with pytest.raises(InvalidHeader, match="8193 bytes"):
        check_headers({"abc": "x" * (8_192 - 3 - 4 + 1)})


@quick
@given(st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=3))
@example({"a": "b\r\nc"})
def test_headers_that_pass_cannot_make_a_second_line(headers: dict[str, str]) -> None:
    try:
        check_headers(headers)
    except InvalidHeader:
        return
    for text in [*headers, *headers.values()]:
        assert text.isascii()
        assert not set(text) & {"\r", "\n", "\x00"}


# --- payloads: what is taken ---


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"a": [1, 2.5, None, True]}, '{"a": [1, 2.5, null, true]}'),
        ("é🎷", '"é🎷"'),
        ((1, 2), "[1, 2]"),
        ([], "[]"),
        (None, "null"),
        (9_223_372_036_854_775_807, "9223372036854775807"),
        (-9_223_372_036_854_775_808, "-9223372036854775808"),
        (1e-300, "1e-300"),
        (9e18, "9e+18"),
    ],
)
def test_a_payload_becomes_the_text_postgresql_would_show(payload: Any, text: str) -> None:
    assert encode_payload(payload) == text


@pytest.mark.parametrize("innermost", [1, "x", [], {}, ""])
def test_a_hundred_levels_pass_both_checks(innermost: Any) -> None:
    levels = 100 if not isinstance(innermost, list | dict) else 99
    check_payload_text(encode_payload(nested(levels, innermost)))


@pytest.mark.parametrize("depth", [101, 102, 1_500])
@pytest.mark.parametrize("innermost", [1, [], {}])
def test_a_hundred_and_one_levels_pass_neither(depth: int, innermost: Any) -> None:
    payload = nested(depth if innermost == 1 else depth - 1, innermost)
    checks = (lambda: encode_payload(payload), lambda: check_payload_text("[" * depth + "]" * depth))
    for check in checks:
        with pytest.raises(InvalidPayload, match="nested deeper than 100"):
            check()


def test_a_payload_that_holds_itself_is_too_deep() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(InvalidPayload):
        encode_payload(payload)


# --- payloads: what is refused, and where it is ---


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"a": math.nan}, "payload.a"),
        ({"a": [0, math.inf]}, "payload.a[1]"),
        (-math.inf, "payload"),
        ({"a": {"b": "x\x00y"}}, "payload.a.b"),
        ({"a\x00": 1}, "payload"),
        (["\ud800"], "payload[0]"),
        ({"\udfff": 1}, "payload"),
        (9_223_372_036_854_775_808, "payload"),
        ([-9_223_372_036_854_775_809], "payload[0]"),
        ({"n": 10**400}, "payload.n"),
        (1e300, "payload"),
        ({"n": [-1e300]}, "payload.n[0]"),
        (9_223_372_036_854_775_808.0, "payload"),
        ({1: "a"}, "payload"),
        ({"a": {None: 1}}, "payload.a"),
        ({"a": {1, 2}}, "payload.a"),
        ({"a": b"x"}, "payload.a"),
        (Decimal("1.5"), "payload"),
        ({"id": UUID(int=1)}, "payload.id"),
    ],
)
def test_a_value_json_or_postgresql_has_no_form_for_is_refused_by_its_path(payload: Any, field: str) -> None:
    with pytest.raises(InvalidPayload) as raised:
        encode_payload(payload)
    assert (raised.value.code, raised.value.field) == ("INVALID_PAYLOAD", field)


def test_a_bad_payload_is_an_invalid_event() -> None:
    assert issubclass(InvalidPayload, InvalidEvent)


# --- the second check, on the text of rows that any program may have inserted ---


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775807",
        "-9223372036854775808",
        "0." + "0" * 299 + "1",
        "[1234567890123456789, 0.12345678901234567890123, 12345678901234567890.5]",
        '"99999999999999999999999999"',
        '{"a\\"99999999999999999999999999": "\\\\"}',
        '"' + "[" * 1_500 + '"',
        '{"a": "\\"' + "{[" * 200 + '"}',
        "[" + "[], " * 500 + "[]]",
    ],
)
def test_a_text_with_long_numbers_or_brackets_only_in_harmless_places_passes(text: str) -> None:
    check_payload_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "9223372036854775808",
        "-9223372036854775809",
        "1" + "0" * 300,
        '{"a": [1, 99999999999999999999], "b": "x"}',
        '["\\"", 99999999999999999999]',
        "[-99999999999999999999]",
        '[99999999999999999999, "' + "x" * 5_000 + '"]',
        '["' + "x" * 5_000 + '", 99999999999999999999, "x"]',
        "[" + '"x", ' * 2_000 + "99999999999999999999]",
        "[" * 101 + '"' + "x" * 5_000 + '"' + "]" * 101,
        "[" * 101 + "]" * 101,
        '{"a": ' * 1_500 + "1" + "}" * 1_500,
    ],
)
def test_a_text_with_an_integer_or_a_depth_beyond_the_limit_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload) as raised:
        check_payload_text(text)
    assert raised.value.field == "payload"


def as_postgresql(value: Any) -> str:
    """Render JSON the way jsonb does: a number never has an exponent."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {as_postgresql(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_postgresql(item) for item in value) + "]"
    return f"{Decimal(repr(value)):f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


# One float is left out: -2.0**63 is refused at first, and PostgreSQL would show it as an integer that fits.
floats = st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: number != -(2.0**63))
edges = st.integers(min_value=-3, max_value=3).map(lambda near: 2**63 + near)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
scalars = st.none() | st.booleans() | st.integers() | edges | edges.map(lambda edge: -edge) | floats | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a["{\\9'), inner)
)
deep = st.builds(nested, st.integers(min_value=97, max_value=104), scalars | st.just([]))


def passes(check: Callable[[Any], object], value: Any) -> bool:
    try:
        check(value)
    except InvalidPayload:
        return False
    return True


@quick
@given(values | deep)
@example(2.0**63)
@example(9.2e18)
@example(1e-300)
def test_both_checks_agree_on_every_payload(payload: Any) -> None:
    assert passes(encode_payload, payload) == passes(check_payload_text, as_postgresql(payload))


# --- sizes ---


def test_a_message_leaves_a_kilobyte_below_the_limit_of_the_broker_free() -> None:
    check_size(1_048_576 - 1_024, 1_048_576)
    with pytest.raises(PayloadTooLarge) as raised:
        check_size(1_048_576 - 1_023, 1_048_576)
    assert (raised.value.code, raised.value.field) == ("PAYLOAD_TOO_LARGE", "payload")
    assert "1047552" in str(raised.value)


def test_depth_is_told_of_parsed_json_too() -> None:
    assert not nests_deeper([[[1]]], 3)
    assert nests_deeper([[{"a": []}]], 3)
    assert not nests_deeper("[[[[[", 0)
    assert nests_deeper({}, 0)


@pytest.mark.parametrize("before", range(20))
@pytest.mark.parametrize("digits", ["9" * 19, "9223372036854775808"])
def test_a_long_integer_is_found_wherever_it_stands(before: int, digits: str) -> None:
    with pytest.raises(InvalidPayload):
        check_payload_text(f'["{"x" * before}", {digits}]')


def allowed(text: str) -> bool:
    """What the check has to say, found by parsing."""

    def read(digits: str) -> int:
        if len(digits) > 20 or not -(2**63) <= int(digits) < 2**63:
            raise InvalidPayload("integer outside 64 bits", field="payload")
        return 0

    try:
        return not nests_deeper(json.loads(text, parse_int=read), 100)
    except InvalidPayload:
        return False


tricky = st.text(st.sampled_from('[]{}"\\9,: -.eEü'), max_size=8) | st.integers(17, 22).map(
    lambda count: "9" * count
)
leaves = tricky | st.sampled_from([0, -1, 1.5]) | edges | edges.map(lambda edge: -edge) | floats
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(tricky, inner, max_size=4)
)
towers = st.builds(nested, st.integers(min_value=95, max_value=104), trees)


@quick
@given(st.lists(trees | towers, max_size=4), st.booleans(), st.sampled_from([0, 1, 70]))
@example([-(2**63), "\\", '"[', 2**63 - 1], True, 0)
@example(["99999999999999999999", 2**63], True, 0)
@example(["99999999999999999999", 2**63], False, 1)
@example(["99999999999999999999"], False, 70)
def test_the_text_is_judged_as_if_it_were_parsed(payload: list[Any], crowded: bool, strings: int) -> None:
    # Beside so many others brackets are counted, where otherwise there may be too few to look at. What the first
    # strings of a long text hold is not looked at.
    text = as_postgresql([['[\\"99999999999999999999' * 200] * strings, payload, [[]] * 101 if crowded else []])
    assert passes(check_payload_text, text) == allowed(text)


MB = 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        '"' + "[" * MB + '"',
        '"' + '\\"' * (MB // 2) + '"',
        '"' + "\\\\" * (MB // 2) + '"',
        "[" + '"[", ' * (MB // 5) + "1]",
        "[" + '"\\"[", ' * (MB // 7) + "1]",
        "[" + "[], " * (MB // 4) + "1]",
        "[" + ("[" * 98 + "]" * 98 + ",") * (MB // 197) + "1]",
        "[" * (MB // 2) + "]" * (MB // 2),
        "1" * MB,
        '"' + "1" * MB + '"',
        "[" + "123456789012345678, " * (MB // 20) + "1]",
        '"' + random.Random(1).randbytes(MB // 2).hex() + '"',
    ],
)
def test_no_payload_is_looked_at_character_by_character(text: str) -> None:
    steps = 0

    def count(*_: Any) -> Any:
        nonlocal steps
        steps += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        passes(check_payload_text, text)
    finally:
        sys.settrace(before)
    assert steps < 1_000
