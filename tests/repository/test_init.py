"""`relay init`: what it writes, and that the parts of the project fit each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from relay.cli import create_app
from relay.cli.init import project
from relay.devstack import configuration
from relay.domain.errors import InvalidRequest
from relay.settings import load_settings

ROOT = Path(__file__).parents[2]


def test_it_writes_the_project_and_replaces_nothing(tmp_path: Path) -> None:
    first = CliRunner().invoke(create_app(["init"]), ["init", str(tmp_path / "new" / "shop")])
    assert first.exit_code == 0
    assert f"cd {tmp_path / 'new' / 'shop'}" in first.stdout
    written = {it.name: it.read_text() for it in (tmp_path / "new" / "shop").iterdir()}
    assert written == project()
    assert {"relay.toml", "producer.py", "handlers.py", "shipping.py", "docker-compose.yml", ".gitignore"} <= {
        *written
    }
    (tmp_path / "handlers.py").write_text("mine")
    second = CliRunner().invoke(create_app(["init"]), ["init", str(tmp_path)])
    assert isinstance(second.exception, InvalidRequest)
    assert (tmp_path / "handlers.py").read_text() == "mine"
    assert not (tmp_path / "relay.toml").exists()


def test_its_producer_says_what_it_wants_when_it_is_told_nothing(tmp_path: Path) -> None:
    for name, text in project().items():
        (tmp_path / name).write_text(text)
    found = subprocess.run(
        [sys.executable, "producer.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert found.returncode == 1
    assert found.stderr == 'Place an order: python producer.py "a book" 12\n'


def test_its_answer_as_json(tmp_path: Path) -> None:
    found = CliRunner().invoke(create_app(["init"]), ["init", str(tmp_path), "--json"])
    assert json.loads(found.stdout) == {"directory": str(tmp_path), "files": [*project()]}


def test_relay_dev_calls_its_python_handler_and_samples_shipping(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(project()["relay.toml"])
    assert configuration.sampled(tmp_path / "relay.toml", {}, everything=False) == {"shipping": ["orders"]}


def test_its_containers_read_its_configuration(tmp_path: Path) -> None:
    files = project()
    compose = yaml.safe_load(files["docker-compose.yml"])
    (tmp_path / "relay.toml").write_text(files["relay.toml"])
    for name in ("prepare", "scheduler", "worker", "shipping"):
        settings = load_settings(tmp_path / "relay.toml", compose["services"][name]["environment"])
        assert settings.contexts["shipping"].subscriptions["orders"].handler == "http://shipping:8001/handle"
        databases = {it.database_url.get_secret_value().rpartition("/")[2] for it in settings.contexts.values()}
        assert databases == set(re.findall(r"CREATE DATABASE (\w+)", files["databases.sql"]))
    mounted = re.findall(r"- \./([\w.-]+):", files["docker-compose.yml"])
    assert mounted
    assert {*mounted, "requirements.txt"} <= files.keys()
    assert compose["services"]["shipping"]["command"][1] == "shipping:app"


def test_what_it_requires_is_what_the_wheel_offers() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [named] = re.findall(r"jetrelay\[([\w,]+)\]", project()["requirements.txt"])
    assert {*named.split(",")} <= extras.keys()


@pytest.mark.parametrize("name", [name for name in project() if name.endswith(".py")])
def test_its_modules_hide_none_of_ours(name: str) -> None:
    assert not (ROOT / name.removesuffix(".py")).exists()
