"""A value is taken out of whatever form it stands in, and nothing else changes."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from relay.domain.errors import InvalidRequest
from relay.domain.redaction import REDACTED, Redaction

ANN, JO = "ann@example.org", "joann@example.org"
VALUES = (ANN, "Änne Müller", 'say "hi"/now', "back\\slash value", "+49 151 2345", "4915123456789")


def forms(value: str) -> dict[str, str]:
    """JSON text with a value, in every form in which a producer may write it."""
    ascii_, plain = json.dumps({"a": value}), json.dumps({"a": value}, ensure_ascii=False)
    return {
        "ascii": ascii_,
        "utf-8": plain,
        "upper": ascii_.replace("\\u00", "\\U00").upper().replace('"A"', '"a"').replace("\\U00", "\\u00")
        if value != value.lower() and value.isascii()
        else ascii_,
        "in a text": json.dumps({"a": f"write to {value}, soon"}),
        "list": json.dumps([[1, value], {"b": [value]}]),
        "name": json.dumps({value: {"x": 1.50}}),
        "JSON in JSON": json.dumps({"original": ascii_, "other": json.dumps({"b": plain})}),
        "three deep": json.dumps({"original": json.dumps({"original": plain})}),
        "base64": json.dumps({"data_base64": base64.b64encode(plain.encode()).decode()}),
        "base64 of ASCII": json.dumps({"data_base64": base64.b64encode(b"  " + ascii_.encode()).decode()}),
        "hexadecimal": json.dumps({"body": "\\x" + plain.encode().hex()}),
        "base64 in hexadecimal": json.dumps(
            {"body": "\\x" + json.dumps({"d": base64.b64encode(plain.encode()).decode()}).encode().hex()}
        ),
    }


def strings(content: Any) -> list[str]:
    """All strings of JSON, and what they hold in turn."""
    if isinstance(content, dict):
        return [it for pair in content.items() for part in pair for it in strings(part)]
    if isinstance(content, list):
        return [it for part in content for it in strings(part)]
    if not isinstance(content, str):
        return [str(content)]
    found = [content]
    readers = (
        json.loads,
        lambda it: json.loads(base64.b64decode(it, validate=True)),
        lambda it: json.loads(bytes.fromhex(it.removeprefix("\\x"))),
    )
    for read in readers:
        try:
            inner = read(content)
        except ValueError:
            continue
        found += strings(inner) if isinstance(inner, dict | list) else []
    return found


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_found_and_taken_out_in_every_form(value: str) -> None:
    wanted = Redaction((value,))
    for name, text in forms(value).items():
        if value.upper() in text and value not in text:
            continue
        assert wanted.may_be_in(text.encode()), name
        new = wanted.anything(text)
        assert not any(value in it for it in strings(json.loads(new))), name
        assert any(REDACTED in it for it in strings(json.loads(new))), name
        assert wanted.anything(new) == new
        assert wanted.body(text.encode()) == new.encode()


def test_all_else_stays_as_it_is_byte_by_byte() -> None:
    text = (
        f'{{"n": 1.50, "big": 123456789012345678901234567890, "a":"{ANN}", "j": "{JO}", "u": "\\u00e9é", "s":[ ]}}'
    )
    assert Redaction((ANN,)).payload(text) == text.replace(f'"{ANN}"', f'"{REDACTED}"')


@pytest.mark.parametrize(
    "other", [JO, "x.ann@example.org", "ann@example.org.uk", "ann@example.organic", "x-" + ANN]
)
def test_a_longer_word_is_another_value(other: str) -> None:
    text = json.dumps({"a": other, "b": f"<{ANN}>, {ANN}."})
    found = Redaction((ANN,)).payload(text)
    assert json.loads(found) == {"a": other, "b": f"<{REDACTED}>, {REDACTED}."}


def test_with_paths_only_these_fields_of_payloads_change_and_all_that_is_no_payload() -> None:
    wanted = Redaction((ANN,), ("customer.email", "people.*.email"))
    payload = {
        "customer": {"email": ANN, "note": ANN},
        "people": [{"email": ANN}, {"name": ANN}],
        "email": ANN,
    }
    redacted = {
        "customer": {"email": REDACTED, "note": ANN},
        "people": [{"email": REDACTED}, {"name": ANN}],
        "email": ANN,
    }
    assert json.loads(wanted.payload(json.dumps(payload))) == redacted
    for member in ("payload", "data"):
        enveloped = {"message_id": "1", "actor": ANN, "event_type": "x", member: payload}
        assert json.loads(wanted.anything(json.dumps(enveloped))) == {
            **enveloped,
            "actor": REDACTED,
            member: redacted,
        }
    letter = {"reason": f"no {ANN}", "original": json.dumps({"payload": payload}), "original_subject": "s"}
    found = json.loads(wanted.anything(json.dumps(letter)))
    assert found["reason"] == f"no {REDACTED}"
    assert json.loads(found["original"]) == {"payload": redacted}


def test_a_number_becomes_null_and_bytes_that_are_no_text_are_searched_too() -> None:
    assert Redaction(("4915123456789",)).payload('{"phone": 4915123456789, "n": 49151234567891}') == (
        '{"phone": null, "n": 49151234567891}'
    )
    assert Redaction((ANN,)).body(b"\xff" + ANN.encode()) == b"\xff" + REDACTED.encode()
    assert Redaction((ANN,)).body(f"plain {ANN}".encode()) == f"plain {REDACTED}".encode()


def test_the_systems_own_words_are_no_values() -> None:
    row = {"id": "1", "status": "completed", "type": "completed", "payload": {"x": "completed"}}
    assert json.loads(Redaction(("completed",)).anything(json.dumps(row))) == {**row, "payload": {"x": REDACTED}}


@pytest.mark.parametrize(
    "values", [(), ("",), ("abc",), ("   a   ",), ("a\nbcd",), ("x" * 501,), ("redacted",), tuple("abcd" * 6)]
)
def test_values_that_cannot_be_looked_for_are_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest):
        Redaction(values)


@pytest.mark.parametrize("path", ["", ".", "a..b", "a."])
def test_a_path_that_is_none_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest):
        Redaction((ANN,), (path,))
