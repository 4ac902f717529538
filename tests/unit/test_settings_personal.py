"""Personal fields and master keys in relay.toml: what is read, what is refused, what an outbox sees."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from relay.domain.errors import ConfigurationError
from relay.domain.personal import PersonalFields
from relay.settings import declared_masters, declared_personal, effective
from tests.unit.settings_support import BASE, Load, loader, refusal

KEY = base64.b64encode(bytes(range(32))).decode()
MASTERS = f'[personal]\nmaster = "b"\n[personal.masters.a]\nkey = "{KEY}"\n[personal.masters.b]\nkey = "{KEY}"\n'
FIELDS = '[contexts.sea.personal]\norder_placed = {subject = "customer_id", fields = ["email", "address.*"]}\n'


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def test_fields_and_keys_are_read_and_keys_are_not_shown(load: Load) -> None:
    settings = load(BASE + MASTERS + FIELDS)
    masters = settings.personal.value()
    assert masters is not None
    assert (masters.present, {*masters.keys}) == ("b", {"a", "b"})
    assert settings.contexts["sea"].personal["order_placed"].value().fields == ("email", "address.*")
    assert KEY not in str(effective(settings))
    assert KEY not in repr(settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MASTERS.replace('master = "b"', 'master = "c"'), "personal: .*one of masters"),
        (MASTERS.replace('master = "b"\n', ""), "personal: .*one of masters"),
        ('[personal]\nmaster = "b"\n', "personal: .*one of masters"),
        (MASTERS.replace(KEY, KEY[:-8], 1), "personal.masters.a.key: .*32 bytes"),
        (MASTERS.replace(f'key = "{KEY}"', 'kms = "alias/relay"', 1), "personal.masters.a: .*kms and sealed"),
        (MASTERS.replace(f'key = "{KEY}"', 'region = "eu"', 1), "personal.masters.a: .*kms and sealed"),
        (MASTERS.replace("key =", 'kms = "a"\nsealed = "AA=="\nkey =', 1), "personal.masters.a: .*kms and sealed"),
        (MASTERS.replace("key =", 'kms = "a"\nsealed =', 1).replace(KEY, "?", 1), "masters.a.sealed: .*base64"),
        (FIELDS.replace("email", "e mail"), "order_placed: .*e mail"),
        (FIELDS.replace('"email"', '"customer_id"'), "order_placed: .*subject itself"),
        (FIELDS.replace("customer_id", "*"), "order_placed: .*name of a field"),
    ],
)
def test_what_cannot_be_is_refused(load: Load, text: str, expected: str) -> None:
    found = refusal(load, BASE + text)
    assert re.search(expected, found, re.DOTALL), found
    assert KEY[:-8] not in found


def test_a_service_gets_plain_values_only_if_there_is_a_key(load: Load) -> None:
    text = BASE.replace("handler =", 'personal = "plain"\nhandler =')
    assert "from_vibespro.personal" in refusal(load, text)
    assert load(text + MASTERS)


def test_an_outbox_reads_them_without_the_rest(tmp_path: Path) -> None:
    file, secret = tmp_path / "relay.toml", tmp_path / "key"
    secret.write_text(f"{KEY}\n")
    file.write_text(MASTERS.replace(f'key = "{KEY}"', f'key_file = "{secret}"') + "[contexts.sea]\n" + FIELDS)
    environ = {"RELAY_CONFIG": str(file)}
    assert declared_personal("sea", environ) == {
        "order_placed": PersonalFields("customer_id", ("email", "address.*"))
    }
    assert declared_personal("vibespro", environ) == {}
    masters = declared_masters(environ)
    assert masters is not None
    assert masters.keys["a"] == bytes(range(32))
    by_variable = {
        "RELAY_CONFIG": str(file),
        "RELAY_PERSONAL__MASTER": "a",
        "RELAY_CONTEXTS__SEA__PERSONAL__ORDER_PLACED__FIELDS": "name",
    }
    assert declared_personal("sea", by_variable)["order_placed"].fields == ("name",)
    masters = declared_masters(by_variable)
    assert masters is not None
    assert masters.present == "a"
    assert declared_masters({"RELAY_CONFIG": str(tmp_path / "nothing.toml")}) is None


def test_an_outbox_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(MASTERS.replace(KEY, "short") + "[contexts.sea]\n" + FIELDS.replace("email", "e mail"))
    environ = {"RELAY_CONFIG": str(file)}
    with pytest.raises(ConfigurationError, match=r"contexts\.sea\.personal\.order_placed"):
        declared_personal("sea", environ)
    with pytest.raises(ConfigurationError, match="32 bytes") as error:
        declared_masters(environ)
    assert "short" not in str(error.value)
