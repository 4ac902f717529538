"""Personal values: which fields they are, their form on the wire, and that only their key reads them."""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from relay import event
from relay.adapters import aes_gcm
from relay.domain.errors import InvalidEvent, InvalidPayload, MasterKeyMissing, PersonalDamaged
from relay.domain.personal import (
    MARK,
    Encrypted,
    Masters,
    PersonalFields,
    bound,
    decrypt,
    encrypt,
    encrypted,
    in_short,
    places,
)

VECTORS = json.loads((Path(__file__).parents[1] / "personal_values.json").read_text())
KEY = base64.b64decode(VECTORS["key"]["key"])
ID = UUID(VECTORS["key"]["id"])
MASTERS = Masters("2026", {"2026": base64.b64decode(VECTORS["master"]["key"])})


def opened(payload: Any, key: bytes = KEY) -> Any:
    root = {"": copy.deepcopy(payload)}
    for place, value in encrypted(root[""]):
        decrypt(place, value, aes_gcm.decrypting(key))
    return root[""]


# --- the form on the wire ---


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda it: it["name"])
def test_the_vectors_are_read(case: Any) -> None:
    assert opened(case["encrypted"]) == case["payload"]
    assert MARK in json.dumps(case["encrypted"]).encode()
    found = {place.pointer: value for place, value in encrypted(copy.deepcopy(case["encrypted"]))}
    assert sorted(found) == sorted(it["pointer"] for it in case["values"])
    for it in case["values"]:
        value = found[it["pointer"]]
        assert (value.context, value.key, value.data[:12].hex()) == ("shop", ID, it["nonce"])
        assert bound("shop", ID, it["pointer"]).decode() == it["additional_data"]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda it: it["name"])
def test_what_is_written_is_what_the_vectors_say_but_for_the_nonces(case: Any) -> None:
    payload, fields = copy.deepcopy(case["payload"]), PersonalFields("customer_id", tuple(case["fields"]))
    said: list[tuple[str, str]] = []

    def cipher(plain: bytes, bound: bytes) -> bytes:
        said.append((plain.decode(), bound.decode()))
        return aes_gcm.encrypt(KEY, plain, bound)

    encrypt(places(payload, fields), "shop", ID, cipher)
    assert said == [(it["plain"], it["additional_data"]) for it in case["values"]]
    assert opened(payload) == case["payload"]


def test_the_wrapped_key_is_read_with_its_master_key_only() -> None:
    wrapped = base64.b64decode(VECTORS["key"]["wrapped"])
    assert aes_gcm.unwrap(MASTERS, ID, "2026", wrapped) == KEY
    with pytest.raises(MasterKeyMissing, match="2025"):
        aes_gcm.unwrap(MASTERS, ID, "2025", wrapped)
    with pytest.raises(PersonalDamaged):
        aes_gcm.unwrap(MASTERS, uuid4(), "2026", wrapped)
    with pytest.raises(PersonalDamaged):
        aes_gcm.unwrap(Masters("2026", {"2026": bytes(32)}), ID, "2026", wrapped)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(payload=st.dictionaries(st.sampled_from(["a", "b", "c/d", "~"]), VALUES))
def test_any_payload_comes_back(payload: Any) -> None:
    before = copy.deepcopy(payload)
    encrypt(places(payload, PersonalFields("id", ("a", "b.*", "*.*.a"))), "shop", ID, aes_gcm.encrypting(KEY))
    assert opened(payload) == before


@pytest.mark.parametrize(
    "other", ["another place", "another context", "another key", "a changed byte", "cut short"]
)
def test_a_value_that_was_touched_is_not_read(other: str) -> None:
    payload: Any = {"email": "ann@example.org"}
    encrypt(places(payload, PersonalFields("id", ("email",))), "shop", ID, aes_gcm.encrypting(KEY))
    (_, value), *_ = encrypted(payload)
    match other:
        case "another place":
            payload = {"name": payload["email"]}
        case "another context":
            payload = {"email": value._replace(context="sea").json}
        case "another key":
            payload = {"email": value._replace(key=uuid4()).json}
        case "a changed byte":
            payload = {"email": value._replace(data=value.data[:-1] + bytes([value.data[-1] ^ 1])).json}
        case "cut short":
            payload = {"email": value._replace(data=value.data[:9]).json}
    with pytest.raises(PersonalDamaged):
        opened(payload)


@pytest.mark.parametrize(
    "inner",
    [
        None,
        {},
        {"v": 2, "context": "shop", "key": str(ID), "data": ""},
        {"v": True, "context": "shop", "key": str(ID), "data": ""},
        {"v": 1, "context": 7, "key": str(ID), "data": ""},
        {"v": 1, "context": "shop", "key": "no uuid", "data": ""},
        {"v": 1, "context": "shop", "key": str(ID), "data": "*"},
    ],
)
def test_what_only_looks_like_a_personal_value_stays(inner: object) -> None:
    assert Encrypted.read({"relay:personal": inner}) is None
    assert encrypted({"email": {"relay:personal": inner}}) == []


def test_people_see_that_a_value_is_personal_and_nothing_else() -> None:
    payload: Any = {"id": 7, "email": "ann@example.org", "lines": [{"name": "Ann"}]}
    encrypt(places(payload, PersonalFields("id", ("email", "lines.*.name"))), "shop", ID, aes_gcm.encrypting(KEY))
    text = json.dumps(payload)
    assert in_short(text[:-60]) != text[:-60], "also in a text that is cut off"
    assert json.loads(in_short(text)) == {"id": 7, "email": "(personal)", "lines": [{"name": "(personal)"}]}


def test_no_key_is_shown() -> None:
    for shown in (repr(MASTERS), str(MASTERS), repr(aes_gcm.encrypting(KEY)), repr(aes_gcm.decrypting(KEY))):
        assert repr(KEY)[2:-1] not in shown
        assert "\\x" not in shown


# --- which fields ---


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (["email"], ["/email"]),
        (["nobody"], []),
        (["null"], []),
        (["address.*"], ["/address/city", "/address/street"]),
        (["address"], ["/address"]),
        (["address", "address.*"], ["/address"]),
        (["lines.*.name"], ["/lines/0/name", "/lines/1/name"]),
        (["*.city"], ["/address/city"]),
        (["email.inner"], []),
    ],
)
def test_a_field_names_values(fields: list[str], found: list[str]) -> None:
    payload = {
        "id": "c-7",
        "email": "e",
        "null": None,
        "address": {"city": "c", "street": "s"},
        "lines": [{"name": "a"}, {"name": "b"}, {"sku": 1}],
    }
    assert sorted(it.pointer for it in places(payload, PersonalFields("id", tuple(fields)))) == found


@pytest.mark.parametrize("fields", [(), ("",), ("a b",), ("a..b",), ("id",), ("*",), ("person",), ("person.*",)])
def test_fields_that_cannot_be_are_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(InvalidEvent):
        PersonalFields("person.id" if fields and fields[0].startswith("person") else "id", fields)


@pytest.mark.parametrize(("payload", "subject"), [({"a": {"id": "c-7"}}, "c-7"), ({"a": {"id": 7}}, "7")])
def test_the_subject_is_text(payload: object, subject: str) -> None:
    assert PersonalFields("a.id", ("email",)).subject_of(payload) == subject


@pytest.mark.parametrize(
    "payload", [{}, {"a": 1}, {"a": {"id": None}}, {"a": {"id": ""}}, {"a": {"id": True}}, []]
)
def test_a_payload_without_its_subject_is_refused(payload: object) -> None:
    with pytest.raises(InvalidPayload, match=r"a\.id"):
        PersonalFields("a.id", ("email",)).subject_of(payload)


def test_a_class_declares_fields_that_it_writes() -> None:
    class Placed(BaseModel):
        order_id: str
        customer_id: str
        email: str

    def declare(**options: Any) -> None:
        event("placed", aggregate_type="order", aggregate_id="order_id", **options)(Placed)

    declare(subject="customer_id", personal=["email"])
    for wrong in (
        {"subject": "customer_id"},
        {"personal": ["email"]},
        {"subject": "customer_id", "personal": "email"},
        {"subject": "customer_id", "personal": ["e_mail"]},
        {"subject": "customer", "personal": ["email"]},
    ):
        with pytest.raises(InvalidEvent):
            declare(**wrong)
