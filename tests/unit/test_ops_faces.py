"""What the command line asks and does, the HTTP API does, too: a new command needs a route, or a reason here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from relay.cli import create_app as command_line
from tests.unit.test_ops_access import routes

_CONTEXT = "/api/v1/contexts/{context}/"
#: Where the routes of a group of commands are, if not in a place of its name.
PLACES = {
    "outbox": f"{_CONTEXT}events",
    "dlq": f"{_CONTEXT}dead-letters",
    "schedule run": f"{_CONTEXT}schedule/{{name}}/run",
    "schedule pause": f"{_CONTEXT}schedule/{{name}}/pause",
    "schedule resume": f"{_CONTEXT}schedule/{{name}}/resume",
    "queues jobs": "/api/v1/queues/{queue}/jobs",
    "queues requeue": "/api/v1/queues/{queue}/requeue",
    "queues delete": "/api/v1/queues/{queue}/delete",
    "queues list": "/api/v1/queues",
    "streams show": "/api/v1/streams",
    "streams diff": "/api/v1/streams",
    "fleet status": "/api/v1/fleet",
    "doctor": "/api/v1/doctor",
    "explain": "/api/v1/explain",
    "backlog": "/api/v1/backlogs",
}
#: Commands that have no route, by what they are.
ELSEWHERE = {
    "starts or makes something": {"init", "demo", "dev", "chaos", "ops"},
    "is about this machine": {"config", "version", "schema list", "schema message-envelope"},
    "needs the rights of an administrator": {"db upgrade", "db grant", "streams ensure"},
    "is of a deployment": {"db status", "db sql", "streams permissions", "handler check"},
    "is what /readyz answers": {"health"},
    "is a duty of the scheduler, too, and takes as long as it takes": {"reconcile", "archive run"},
}


def commands(found: Any, *names: str) -> Iterator[str]:
    """Every command that can be given, with its group."""
    if not hasattr(found, "commands"):
        yield " ".join(names)
        return
    for name, below in found.commands.items():
        yield from commands(below, *names, name)


def place(command: str) -> str:
    """The path of the route that does what a command does."""
    if command in PLACES:
        return PLACES[command]
    group, _, verb = command.partition(" ")
    base = PLACES.get(group, f"{_CONTEXT}{group}")
    return {"list": base, "show": f"{base}/{{id}}"}.get(verb, f"{base}/{verb}")


def test_each_command_has_a_route_or_a_reason() -> None:
    given = {*commands(get_command(command_line()))}
    reasons = set[str]().union(*ELSEWHERE.values())
    paths = {path for _, path in routes()}
    assert reasons <= given
    assert {it: place(it) for it in given - reasons if place(it) not in paths} == {}
