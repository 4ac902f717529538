"""Secrets from files, and the rules of who may prove themselves how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from relay.domain.errors import ConfigurationError
from relay.settings import OWN_SERVERS, Settings, effective, names_server
from relay.settings.section import Section
from relay.settings.sources import secret_of
from relay.settings.urls import hide_url
from tests.unit.settings_support import BASE, SUB, SUB_ENV, Load, loader, refusal, refused, source


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A file with a secret, as an editor leaves it."""
    path = tmp_path / "secret"
    path.write_text("hunter2\n")
    return str(path)


SECRETS = {
    "NATS_URL": "nats_url",
    "NATS_PASSWORD": "nats.password",
    "NATS_TOKEN": "nats.token",
    "RELAY_NATS__MONITOR": "nats.monitor",
    "REDIS_URL": "redis_url",
    "DATABASE_URL": "contexts.vibespro.database_url",
    "RELAY_NATS_URL": "nats_url",
    "RELAY_REDIS_URL": "redis_url",
    "RELAY_NATS__PASSWORD": "nats.password",
    "RELAY_NATS__TOKEN": "nats.token",
    "RELAY_REDIS__PASSWORD": "redis.password",
    "RELAY_CONTEXTS__SEA__DATABASE_URL": "contexts.sea.database_url",
    "RELAY_CONTEXTS__SEA__POOLER_URL": "contexts.sea.pooler_url",
    "RELAY_CONTEXTS__SEA__ALERTS__WEBHOOK": "contexts.sea.alerts.webhook",
    "RELAY_CONTEXTS__SEA__ALERTS__TOKEN": "contexts.sea.alerts.token",
    "RELAY_CONTEXTS__SEA__ALERTS__SIGNING_SECRET": "contexts.sea.alerts.signing_secret",
    f"{SUB_ENV}__TOKEN": f"{SUB}.token",
    f"{SUB_ENV}__SIGNING_SECRET": f"{SUB}.signing_secret",
}
URLS = {"nats": "nats://u:hunter2@h", "redi": "redis://u:hunter2@h", "data": "postgresql://u:hunter2@h/sea"}
URLS["pool"] = URLS["data"]


@pytest.mark.parametrize("variable", SECRETS)
def test_every_secret_comes_from_a_file_too(load: Load, tmp_path: Path, variable: str) -> None:
    key = SECRETS[variable]
    text = URLS.get(
        key.rpartition(".")[2][:4], "https://h/hunter2" if key.endswith(("webhook", "monitor")) else "hunter2"
    )
    (tmp_path / "secret").write_text(f"{text}\r\n")
    given = {f"{variable}_FILE": str(tmp_path / "secret")}
    if key == "nats.password":
        given["NATS_USER"] = "u"
    if ".alerts." in key and not key.endswith("webhook"):
        given["RELAY_CONTEXTS__SEA__ALERTS__WEBHOOK"] = "https://h/x"
    base = BASE.replace('database_url = "postgresql://db/vibespro"\n', "") if variable == "DATABASE_URL" else BASE
    settings = load(base, **given)
    value = settings
    for part in key.split("."):
        value = value[part] if isinstance(value, dict) else getattr(value, part)
    assert value.get_secret_value() == text
    shown, origin = source(settings, key)
    assert origin == f"file {tmp_path}/secret (env {variable}_FILE)"
    assert "hunter2" not in shown + repr(effective(settings)) + repr(settings)


def test_all_secrets_of_the_model_are_among_those_that_were_tried() -> None:
    def keys(section: type[Section], path: tuple[str, ...]) -> set[str]:
        return {".".join((*path, key)) for key in section.model_fields if secret_of(section, (f"{key}_file",))}

    fields = Settings.model_fields
    context = load_type(fields["contexts"].annotation)
    subscription = load_type(context.model_fields["subscriptions"].annotation)
    found = keys(Settings, ()) | keys(context, ("contexts", "sea")) | keys(subscription, tuple(SUB.split(".")))
    for name in ("nats", "redis"):
        found |= keys(fields[name].annotation, (name,))
    found |= keys(context.model_fields["alerts"].annotation, ("contexts", "sea", "alerts"))
    assert found == set(SECRETS.values()) - {"contexts.vibespro.database_url"}


def load_type(annotation: object) -> type[Section]:
    return annotation.__args__[1]


def test_relay_toml_names_files_too(load: Load, secret: str) -> None:
    settings = load(BASE.replace("handler =", f'token_file = "{secret}"\nhandler ='))
    token = settings.contexts["sea"].subscriptions["from_vibespro"].token
    assert token is not None
    assert token.get_secret_value() == "hunter2"
    assert source(settings, f"{SUB}.token") == ("***", f"file {secret} (relay.toml:6)")


def test_a_stronger_source_overrides_a_file_unread(load: Load, secret: str) -> None:
    text = '[nats]\ntoken_file = "/nowhere/token"\n' + BASE
    assert source(load(text, NATS_TOKEN="other"), "nats.token") == ("***", "env NATS_TOKEN")
    settings = load('[nats]\ntoken = "other"\n' + BASE, NATS_TOKEN_FILE=secret)
    assert source(settings, "nats.token")[1] == f"file {secret} (env NATS_TOKEN_FILE)"


def test_the_common_database_in_a_file_stands_for_each_context(load: Load, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:hunter2@h/{context}\n")
    text = BASE.replace('database_url = "postgresql://db/vibespro"\n', "")
    settings = load(text, DATABASE_URL_FILE=str(tmp_path / "url"))
    assert settings.contexts["vibespro"].database_url.get_secret_value() == "postgresql://u:hunter2@h/vibespro"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot read {path}: No such file or directory"),
        (b"", "{path} is empty"),
        (b"\n", "{path} is empty"),
        (b"hunter2\xff", "{path} is not UTF-8 text"),
        (b"hunter2" * 10_000, "{path} is longer than 65536 bytes"),
    ],
)
def test_a_file_without_a_secret_is_refused(
    load: Load, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    told = refusal(load, NATS_TOKEN_FILE=str(path))
    assert f"env NATS_TOKEN_FILE: nats.token: {expected.format(path=path)}" in told
    assert "hunter2" not in told


def test_a_folder_and_a_relative_path_are_no_files(load: Load, tmp_path: Path) -> None:
    assert f"cannot read {tmp_path}: not a file" in refusal(load, NATS_TOKEN_FILE=str(tmp_path))
    assert refused(load, NATS_TOKEN_FILE="token").field == "nats.token"


def test_a_bad_secret_is_told_by_its_file_and_never_shown(load: Load, secret: str) -> None:
    told = refusal(load, REDIS_URL_FILE=secret)
    assert f"file {secret} (env REDIS_URL_FILE): redis_url: " in told
    assert "hunter2" not in told


@pytest.mark.parametrize("variable", ["NATS_TOKEN", "REDIS_URL", "DATABASE_URL", f"{SUB_ENV}__TOKEN"])
def test_a_secret_and_a_file_with_it_contradict_each_other(load: Load, secret: str, variable: str) -> None:
    told = refusal(load, **{variable: "redis://x/y", f"{variable}_FILE": secret})
    assert re.search(rf"env {variable}_FILE: \S+_file: ", told)


def test_so_they_do_in_the_file(load: Load, secret: str) -> None:
    told = refusal(load, f'[nats]\ntoken = "hunter3"\ntoken_file = "{secret}"\n' + BASE)
    assert "nats.token_file: " in told
    assert "hunter" not in told


def test_what_is_no_secret_is_in_no_file(load: Load, secret: str) -> None:
    assert refused(load, RELAY_NATS__USER_FILE=secret).field == "nats.user_file"


# --- who proves themselves how ---


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[nats]\ntoken = "t"\ncredentials = "/c"', "nats.credentials"),
        ('[nats]\nuser = "u"\npassword = "p"\nnkey = "/n"', "nats.nkey"),
        ('[nats]\nuser = "u"', "nats.password"),
        ('[nats]\npassword = "p"', "nats.user"),
        (
            'nats_url = "nats://u:p@h"\n[nats]\ntoken = "t"',
            "nats.token",
        ),
        ('nats_url = "ws://h"\n[nats]\nca = "/ca"', "nats.ca"),
        ('[nats]\nkey = "/k"', "nats.certificate"),
        ('[nats]\nca = "ca.pem"', "nats.ca"),
        ('[nats]\ninbox_prefix = "a.>"', "nats.inbox_prefix"),
        ('redis_url = "redis://u:p@h"\n[redis]\npassword = "x"', "redis.password"),
        ('[redis]\nuser = "u"', "redis.password"),
        ('[redis]\nca = "/ca"', "redis.ca"),
    ],
)
def test_servers(load: Load, text: str, expected: str) -> None:
    assert refused(load, f"{text}\n{BASE}").field == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('ca = "/ca"', f"{SUB}.ca"),
        ('token_header = "x-api-key"', f"{SUB}.token"),
        (
            'token = "t"\ntoken_header = "Idempotency-Key"',
            f"{SUB}.token_header",
        ),
        ('token = "t"\ntoken_header = "x y"', f"{SUB}.token_header"),
        ('token = "hunter2\\r\\nx: y"', f"{SUB}.token"),
        ('token = ""', f"{SUB}.token"),
        (
            'signing_secret = "old whsec_hunter2!"',
            f"{SUB}.signing_secret",
        ),
    ],
)
def test_handlers(load: Load, lines: str, expected: str) -> None:
    error = refused(load, BASE.replace("handler =", f"{lines}\nhandler ="))
    assert error.field == expected
    assert "hunter2" not in str(error)


def test_a_python_handler_is_called_by_nobody_else(load: Load) -> None:
    text = BASE.replace("http://127.0.0.1:8000/handle", "python:myapp").replace(
        "handler =", 'token = "t"\nhandler ='
    )
    assert refused(load, text).field == f"{SUB}.token"


def test_the_key_of_an_alert_without_a_webhook_is_without_effect(load: Load) -> None:
    assert refused(load, BASE + '[contexts.sea.alerts]\ntoken = "t"\n').field == "contexts.sea.alerts.token"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://app:12,secret@db/sea", "postgresql://***@db/sea"),
        ("postgresql://app:12?secret@db/sea", "postgresql://***"),
        ("postgresql://db/sea?password=sec@ret", "postgresql://***"),
        ("nats://u:secret@a,tls://u:se,cret@b", "nats://***@a,tls://***@b"),
        ("postgresql://u:secret@a:1,b:2/sea?sslmode=verify-full", "postgresql://***@a:1,b:2/sea?***"),
    ],
)
def test_no_part_of_a_password_is_shown(url: str, shown: str) -> None:
    assert hide_url(url) == shown


def test_the_query_of_a_handler_is_not_shown(load: Load) -> None:
    settings = load(BASE.replace("/handle", "/handle?key=hunter2"))
    assert source(settings, f"{SUB}.handler")[0] == "http://127.0.0.1:8000/handle?***"


def test_a_development_fleet_needs_no_access_to_other_servers(load: Load) -> None:
    text = f"""\
[nats]
credentials = "/nowhere/creds"
[redis]
password_file = "/nowhere/password"
{BASE.replace("handler =", 'token_file = "/nowhere/token"' + chr(10) + "handler =")}"""
    with pytest.raises(ConfigurationError, match="/nowhere/password"):
        load(text)
    settings = load(text, **{OWN_SERVERS: "1"})
    assert (settings.nats.credentials, settings.redis.password) == (None, None)
    assert names_server("NATS_CREDS")
    assert names_server("RELAY_REDIS__PASSWORD_FILE")
    assert not names_server("RELAY_LOG_LEVEL")
