"""The example service on the development stack: each of its seven blocks does its part."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import psycopg
import pytest

from relay import Event, Outbox
from relay.devstack import processes
from relay.devstack.ports import free_port
from tests.acceptance.started import ROOT, Started, shell_variables
from tests.pages import code
from tests.waiting import wait_for

RELAY = ("-c", "from relay.cli import main; main()")
EXAMPLE = ROOT / "examples" / "cases_service"


class Service:
    """`relay dev` with the example's configuration, and its API."""

    def __init__(self, directory: Path, started: Started, api: httpx2.Client, variables: dict[str, str]) -> None:
        self.directory, self.started, self.api, self.variables = directory, started, api, variables

    def query(self, context: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        url = self.variables[f"RELAY_CONTEXTS__{context.upper()}__DATABASE_URL"]
        with psycopg.connect(url, autocommit=True) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def open(self, account: str, **headers: str) -> UUID:
        answer = self.api.post("/cases", json={"account": account, "title": "no light"}, headers=headers)
        assert answer.status_code == 201, answer.text
        return UUID(answer.json()["id"])

    def close_account(self, account: object) -> UUID:
        """Commit an event of the neighbour; returns its id."""
        url = self.variables["RELAY_CONTEXTS__ACCOUNTS__DATABASE_URL"]
        with psycopg.connect(url) as connection:
            return Outbox("accounts").add(
                connection,
                Event(
                    event_type="account_closed",
                    aggregate_type="account",
                    aggregate_id="1",
                    payload={"account": account},
                ),
            )

    def run(self, *arguments: str) -> None:
        """Run Python as in another shell."""
        environment = {**os.environ, **self.variables, "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, *arguments], cwd=self.directory, env=environment, check=True, timeout=60)

    def until(self, what: str, condition: Callable[[], object]) -> Any:
        def look() -> object:
            assert self.started.process.poll() is None, self.started.text
            return condition()

        return wait_for(what, look, 60)


@pytest.fixture(scope="module")
def service(server_root: Path) -> Iterator[Service]:
    directory, port = server_root / "cases", free_port()
    directory.mkdir()
    text = (EXAMPLE / "relay.toml").read_text()
    (directory / "relay.toml").write_text(text.replace("127.0.0.1:8000", f"127.0.0.1:{port}"))
    with Started(directory, "dev") as started:
        started.until_shown("ready after")
        variables = shell_variables(directory / ".relay" / "environment")
        with serving(directory, port, variables) as api:
            yield Service(directory, started, api, variables)


@contextmanager
def serving(directory: Path, port: int, variables: dict[str, str], *options: str) -> Iterator[httpx2.Client]:
    command = [
        "-m",
        "uvicorn",
        "--factory",
        "examples.cases_service.api:create_app",
        "--port",
        str(port),
        *options,
    ]
    environment = {**variables, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    log = directory / "api.log"
    process: subprocess.Popen[bytes] = processes.spawn(
        [sys.executable, *command], log=log, directory=directory, environment=environment
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20, trust_env=False) as client:

            def answers() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    return client.get("/openapi.json").status_code == 200
                except httpx2.TransportError:
                    return False

            wait_for("the API answers", answers, 60)
            yield client
    finally:
        processes.kill(process.pid)
        process.wait()


def test_a_case_is_opened_published_and_confirmed(service: Service) -> None:
    correlation = uuid4()
    id = service.open("ann", **{"X-Correlation-ID": str(correlation)})
    assert service.api.get(f"/cases/{id}").json() == {
        "id": str(id),
        "account": "ann",
        "title": "no light",
        "closed_because": None,
    }
    ids = "SELECT correlation_id, causation_id FROM"
    published = f"{ids} outbox_events WHERE aggregate_id = %s AND published_at IS NOT NULL"
    [(found, cause)] = service.until("it is published", lambda: service.query("cases", published, str(id)))
    assert found == correlation
    assert cause is not None
    confirmed = "SELECT 1 FROM confirmations WHERE case_id = %s"
    service.until("it is confirmed", lambda: service.query("cases", confirmed, id))
    task = f"{ids} task_outbox WHERE payload->>'case_id' = %s"
    assert service.query("cases", task, str(id)) == [(correlation, cause)]


def test_what_the_api_answers(service: Service) -> None:
    api, id = service.api, service.open("bob")
    close = {"reason": "it shines"}
    assert api.post("/cases", json={"account": "bob", "title": ""}).status_code == 422
    invalid = api.post(f"/cases/{id}/close", json={"reason": ""})
    assert (invalid.status_code, invalid.json()["code"]) == (422, "INVALID_COMMAND")
    assert api.post(f"/cases/{id}/close", json=close).status_code == 204
    refused = api.post(f"/cases/{id}/close", json=close)
    assert (refused.status_code, refused.json()["code"]) == (409, "CASE_IS_CLOSED")
    for missing in (api.post(f"/cases/{uuid4()}/close", json=close), api.get(f"/cases/{uuid4()}")):
        assert (missing.status_code, missing.json()["code"]) == (404, "UNKNOWN_CASE")
    assert [case["closed_because"] for case in api.get("/cases", params={"account": "bob"}).json()] == [
        "it shines"
    ]


def test_the_same_case_twice_is_one_case(service: Service) -> None:
    body = {"id": str(uuid4()), "account": "eve", "title": "again"}
    assert [service.api.post("/cases", json=body).status_code for _ in range(2)] == [201, 201]
    assert service.query("cases", "SELECT count(*) FROM outbox_events WHERE aggregate_id = %s", body["id"]) == [
        (1,)
    ]


def test_an_event_of_another_service_closes_cases(service: Service) -> None:
    id = service.open("carl")
    event = service.close_account("carl")
    closed = "SELECT causation_id FROM outbox_events WHERE aggregate_id = %s AND event_type = 'case_closed'"
    service.until("it is closed", lambda: service.query("cases", closed, str(id)))
    assert service.api.get(f"/cases/{id}").json()["closed_because"] == "the account was closed"
    processed = "SELECT processed_at FROM inbox_messages WHERE message_id = %s"
    [(at,)] = service.query("cases", processed, event)
    assert at is not None


def test_a_dead_letter_becomes_a_case(service: Service) -> None:
    service.close_account(["not", "a", "name"])

    def found() -> list[str]:
        cases = service.api.get("/cases", params={"account": "operations"}).json()
        return [
            case["title"] for case in cases if "dead letter " in case["title"] and "from_accounts" in case["title"]
        ]

    assert len(service.until("there is a case", found)) == 1


def test_the_scheduler_closes_what_is_stale(service: Service) -> None:
    stale, fresh = service.open("dora"), service.open("dora")
    service.query("cases", "UPDATE cases SET opened_at = opened_at - interval '91 days' WHERE id = %s", stale)
    service.run(*RELAY, "schedule", "run", "close_stale_cases", "--context", "cases")

    def reasons() -> dict[str, str | None]:
        cases = service.api.get("/cases", params={"account": "dora"}).json()
        return {case["id"]: case["closed_because"] for case in cases}

    service.until("it is closed", lambda: reasons()[str(stale)])
    assert reasons() == {str(stale): "nobody asked any more", str(fresh): None}


def test_the_commands_of_its_readme_exist(service: Service) -> None:
    service.open("ann")
    block = code("examples/cases_service/README.md", "sh", 3)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    for command, *arguments in lines:
        match command:
            case "relay":
                service.run(*RELAY, *arguments)
            case "python":
                service.run(*arguments)
            case _:
                assert command == "curl"
    service.until(
        "the cases of the account are closed",
        lambda: all(
            case["closed_because"] for case in service.api.get("/cases", params={"account": "ann"}).json()
        ),
    )


def test_without_a_database_it_says_so(server_root: Path) -> None:
    directory, port = server_root / "cases-alone", free_port()
    directory.mkdir()
    (directory / "relay.toml").write_text((EXAMPLE / "relay.toml").read_text())
    url = f"postgresql://127.0.0.1:{free_port()}/{{context}}"
    correlation = str(uuid4())
    with serving(directory, port, {"DATABASE_URL": url}, "--lifespan", "off") as api:
        answer = api.get(f"/cases/{uuid4()}", headers={"X-Correlation-ID": correlation})
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    assert answer.headers["x-correlation-id"] == correlation
    [line] = [line for line in (directory / "api.log").read_text().splitlines() if "not available" in line]
    assert correlation in line
