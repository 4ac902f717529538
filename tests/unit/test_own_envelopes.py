"""An envelope of the application's own: how it is found, and what its mistakes can do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.domain.envelopes import ENVELOPES, Envelope, decode, encode
from relay.domain.envelopes.own import guarded
from relay.domain.errors import ConfigurationError, InvalidEvent, MalformedMessage
from relay.envelopes import reader, writer
from tests.unit.envelope_support import EVENT, ID, SUBJECT
from tests.unit.settings_support import BASE, SUB, Load, loader, refusal

HEADERS = {"Nats-Msg-Id": ID}
MODULE = """
from relay.domain.envelopes import Envelope
from relay.domain.envelopes.raw import RAW
ENVELOPE = Envelope(lambda event: (event.payload, {"X-Form": "default"}), RAW.decode)
OTHER = Envelope(lambda event: (event.payload, {"X-Form": "other"}), RAW.decode)
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


@pytest.fixture
def wire_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    return write


def writes(name: str) -> str:
    return BASE.replace("[contexts.vibespro]", f'[contexts.vibespro]\nenvelope = "{name}"')


# --- how it is found ---


@pytest.mark.parametrize(("name", "form"), [("", "default"), (":ENVELOPE", "default"), (":OTHER", "other")])
def test_a_module_may_hold_several(load: Load, wire_module: Any, name: str, form: str) -> None:
    wire_module("forms_of_mine", MODULE)
    settings = load(writes(f"python:forms_of_mine{name}"))
    assert encode(writer(settings, "vibespro"), EVENT)[1]["X-Form"] == form


def test_a_subscription_reads_its_own(load: Load, wire_module: Any) -> None:
    wire_module("forms_to_read", MODULE)
    text = BASE.replace("handler =", 'envelope = "python:forms_to_read"\nhandler =')
    read = reader(load(text), "sea", "from_vibespro")
    assert decode(read, SUBJECT, HEADERS, b"[7]").payload == [7]
    assert reader(load(), "sea", "from_vibespro") is ENVELOPES["handler"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "python:nobody_has_this",
            r"relay.toml:8: contexts.vibespro.envelope: there is no module 'nobody_has_this'",
        ),
        ("python:json", "relay.toml:8: contexts.vibespro.envelope: json has no Envelope that is called ENVELOPE"),
        ("python:json:dumps", "json has no Envelope that is called dumps"),
    ],
)
def test_a_module_that_has_none_is_refused_with_its_line(load: Load, name: str, expected: str) -> None:
    settings = load(writes(name))
    with pytest.raises(ConfigurationError) as refused:
        writer(settings, "vibespro")
    assert expected in str(refused.value)


def test_the_line_of_a_subscription_is_told_too(load: Load) -> None:
    settings = load(BASE.replace("handler =", 'envelope = "python:nobody_has_this"\nhandler ='))
    with pytest.raises(ConfigurationError, match=rf"relay.toml:6: {SUB}.envelope: .*nobody_has_this"):
        reader(settings, "sea", "from_vibespro")


def test_an_error_inside_the_module_is_raised_unchanged(load: Load, wire_module: Any) -> None:
    wire_module("forms_that_miss_something", "import nobody_has_this_either")
    settings = load(writes("python:forms_that_miss_something"))
    with pytest.raises(ModuleNotFoundError, match="nobody_has_this_either"):
        writer(settings, "vibespro")


@pytest.mark.parametrize(
    "name", ["xml", "python:", "python:1st", "python:a:b:c", "python:a:1st", "python://a", ""]
)
def test_a_name_that_is_no_envelope_is_refused_when_settings_are_read(load: Load, name: str) -> None:
    assert "relay.toml:8: contexts.vibespro.envelope" in refusal(load, writes(name))


def test_settings_are_read_without_the_module(load: Load) -> None:
    assert load(writes("python:nobody_has_this")).contexts["vibespro"].envelope == "python:nobody_has_this"


# --- what its mistakes can do ---


def failing(*_: Any) -> Any:
    raise ZeroDivisionError("s3cret")


def leaving(*_: Any) -> Any:
    sys.exit("s3cret")


def broken(encode: Any = failing, decode: Any = failing, **parse: Any) -> Envelope:
    return guarded(Envelope(encode, decode, **parse), "python:mine")


@pytest.mark.parametrize(
    "encoder",
    [
        failing,
        lambda _: None,
        lambda _: ("{}",),
        lambda _: (7, {}),
        lambda _: ("\ud800", {}),
        lambda _: ("{}", {"Nats-Rollup": "all"}),
        lambda _: ("{}", {"a": "b\r\nNats-Rollup: all"}),
        lambda _: ("{}", {"a": 7}),
        lambda _: ("{}", {7: "a"}),
        lambda _: ("{}", ["a"]),
        lambda _: ("{}", {"Relay-Event-Id": ID}),
        lambda _: ("{}", {"relay-generation": "1"}),
        leaving,
        lambda _: ("{}", {f"h{n}": "" for n in range(33)}),
    ],
)
def test_an_encoder_that_fails_refuses_one_event(encoder: Any) -> None:
    with pytest.raises(InvalidEvent) as refused:
        encode(broken(encode=encoder), EVENT)
    assert "s3cret" not in str(refused.value)


def test_an_encoder_may_write_bytes_and_leave_headers_out() -> None:
    body, headers = encode(broken(encode=lambda _: (b"\xff", {"X-None": None})), EVENT)
    assert body == b"\xff"
    assert "X-None" not in headers


READ = {"event_type": "e", "event_version": 1, "payload": {}}


@pytest.mark.parametrize(
    "decoder",
    [
        failing,
        leaving,
        lambda *_: None,
        lambda *_: {},
        lambda *_: READ | {"event_type": 7},
        lambda *_: READ | {"event_version": "1"},
        lambda *_: READ | {"payload": {7: object()}},
        lambda *_: READ | {"payload": float("nan")},
        lambda *_: READ | {"occurred_at": object()},
        lambda *_: READ | {"payload": nested(200)},
        lambda *_: READ | {"payload": nested(5_000)},
    ],
)
def test_a_decoder_that_fails_refuses_one_message(decoder: Any) -> None:
    with pytest.raises(MalformedMessage) as refused:
        decode(broken(decode=decoder), SUBJECT, HEADERS, b"{}")
    assert "s3cret" not in str(refused.value)
    assert refused.value.field


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_body_may_be_anything_that_the_envelope_parses() -> None:
    hexed = broken(decode=lambda _s, _h, body: READ | {"payload": body}, parse=lambda _h, body: body.hex())
    assert decode(hexed, SUBJECT, HEADERS, b"\xff\x00").payload == "ff00"
    with pytest.raises(MalformedMessage, match=r"python:mine .*ZeroDivisionError"):
        decode(broken(parse=failing), SUBJECT, HEADERS, b"{}")
