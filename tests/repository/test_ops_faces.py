"""What the command line asks and does, the HTTP API does, too: a new command needs a route, or a reason here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html import unescape
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from typer.main import get_command

from relay.cli import create_app as command_line
from relay.cli.rows import RowCommands, option_of
from relay.domain.queues import JobState
from relay.ops.console.render import _environment
from relay.ops.kinds import ARCHIVED, DEAD_JOBS, KINDS, OTHERS, Kind, Listing
from tests.unit.test_ops_access import app_of, routes

_CONTEXT = "/api/v1/contexts/{context}/"
#: Where the routes of a group of commands are, if not in a place of its name.
PLACES = {
    "outbox": f"{_CONTEXT}events",
    "dlq": f"{_CONTEXT}dead-letters",
    "schedule runs": f"{_CONTEXT}schedule/{{name}}/runs",
    "schedule run": f"{_CONTEXT}schedule/{{name}}/run",
    "schedule pause": f"{_CONTEXT}schedule/{{name}}/pause",
    "schedule resume": f"{_CONTEXT}schedule/{{name}}/resume",
    **{
        f"{group} {verb}": f"{_CONTEXT}controls/{verb}"
        for group in ("subscriptions", "tasks", "outbox")
        for verb in ("pause", "resume", "limit", "restore")
    },
    "tasks type": f"{_CONTEXT}task-types/{{id}}",
    "inbox replay": f"{_CONTEXT}replays",
    "inbox replays": f"{_CONTEXT}replays",
    "inbox stop-replay": f"{_CONTEXT}replays/{{id}}/stop",
    "queues jobs": "/api/v1/queues/{queue}/jobs",
    "queues requeue": "/api/v1/queues/{queue}/requeue",
    "queues delete": "/api/v1/queues/{queue}/delete",
    "queues list": "/api/v1/queues",
    "streams show": "/api/v1/streams",
    "streams diff": "/api/v1/streams",
    "fleet status": "/api/v1/fleet",
    "doctor": "/api/v1/doctor",
    "alarms": "/api/v1/alarms",
    "explain": "/api/v1/explain",
    "find": "/api/v1/find",
    "backlog": "/api/v1/backlogs",
    "retention": f"{_CONTEXT}retention",
    "top": f"{_CONTEXT}history",
    "forget": "/api/v1/forget",
    "export": "/api/v1/export",
    "audit undo": f"{_CONTEXT}audit/{{id}}/undo",
}
#: What is done to a whole context, seldom.
MOVES = ("check", "restore", "close", "compare", "open", "rename", "remove")
#: Commands that have no route, by what they are.
ELSEWHERE = {
    "starts or makes something": {"init", "demo", "dev", "chaos", "ops"},
    "is about this machine": {"config", "version", "schema list", "schema message-envelope"},
    "compares the code of a project": {"schema export", "schema check"},
    "needs the rights of an administrator": {"db upgrade", "db index", "db grant", "streams ensure"},
    "is done by upkeep every half minute": {"db repair"},
    "needs processes that are stopped": {f"context {it}" for it in MOVES},
    "publishes here and now, which the API leaves to workers": {"outbox publish"},
    "is of a deployment": {"db status", "db sql", "streams permissions", "handler check"},
    "takes as long as it takes, and reads the new master key": {"personal rotate"},
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


def test_each_answer_that_a_route_declares_has_a_body() -> None:
    """All are JSON, those of errors too, but downloads: who reads the document must know its form."""
    declared = app_of(guarded=True)._app._app._app.openapi()["paths"]
    answers = {
        (method, path, status): answer
        for path, methods in declared.items()
        for method, route in methods.items()
        for status, answer in route["responses"].items()
    }
    assert ("get", "/readyz", "503") in answers
    kinds = {it: {*answer.get("content", {})} for it, answer in answers.items()}
    downloads = {it for it, kind in kinds.items() if kind == {"application/octet-stream"}}
    assert {path.rpartition("/")[2] for _, path, _ in downloads} == {"payload"}
    assert [it for it, kind in kinds.items() if "application/json" not in kind and it not in downloads] == []


# --- each kind of rows is in each face, with all that its description has ---


def named(*parts: str) -> dict[str, Any]:
    """The options of a command, by their names without dashes, and its arguments."""
    command: Any = get_command(command_line())
    for part in parts:
        command = command.commands[part]
    return {(max(it.opts, key=len)).lstrip("-"): it for it in command.params} | {"": command}


def row_of(kind: Listing) -> dict[str, Any]:
    """A row whose every field has a value that is seen nowhere else."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    row: dict[str, Any] = {it.name: f"value-of-{it.name}" for it in kind.columns}
    row |= {it.name: 1_000 + n for n, it in enumerate(kind.columns) if it.show == "number"}
    row |= {it.name: 4_000 for it in kind.columns if it.show == "size"}
    row |= {it.name: at + timedelta(days=n) for n, it in enumerate(kind.columns) if it.show == "time"}
    return row | {"stack": [], "history": [], "cursor": "c", "seq": 7, getattr(kind, "order", "seq"): 7}


def page_of(kind: Listing, template: str | list[str], **values: Any) -> str:
    """A page as the console makes it, for somebody who may do all."""
    url = SimpleNamespace(path="/", query="")
    user = SimpleNamespace(operate=True, payloads=True, name="me")
    common = {"request": SimpleNamespace(url=url), "here": "/", "params": {}, "user": user, "kind": kind}
    common |= {"now": datetime.now(UTC), "runbook_at": ""}
    common |= {"contexts": ["sea"], "context": "sea", "theme": None, "actions": kind.actions, "id": "1"}
    return (
        _environment()
        .select_template([template] if isinstance(template, str) else template)
        .render({**common, **values})
    )


def list_page(kind: Kind, row: dict[str, Any]) -> str:
    paging = {
        "total": 1,
        "many": False,
        "reach": {},
        "thorough": False,
        "window": 1,
        "following": None,
        "unconfirmed": 0,
    }
    paging |= {
        "trail": [],
        "passed": [],
        "newest": "newest",
        "sizes": (50,),
        "limit": 50,
        "choices": {},
        "oldest": False,
    }
    more = {"one_of": None, "statuses": kind.usual, "narrowed": True, "filters": {}, "groups": False, "all_of": []}
    return page_of(kind, "list.html", items=[row], **paging, **more)


def seen(value: Any, html: str) -> bool:
    return (value.isoformat() if isinstance(value, datetime) else str(value)) in html


def operation(method: str, path: str) -> dict[str, Any]:
    found: dict[str, Any] = app_of(guarded=True)._app._app._app.openapi()["paths"][path][method]
    return found


def body_of(action: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the body of an action, and those of its filter."""
    schemas = app_of(guarded=True)._app._app._app.openapi()["components"]["schemas"]
    [content] = action["requestBody"]["content"].values()
    fields = schemas[content["schema"]["$ref"].rpartition("/")[2]]["properties"]
    narrowed = fields["filter"]["anyOf"][0]["$ref"].rpartition("/")[2]
    return fields, schemas[narrowed]["properties"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_filter_of_a_kind_is_in_all_faces(kind: Kind) -> None:
    typed = named(kind.command, "list")
    asked = {it["name"] for it in operation("get", f"{_CONTEXT}{kind.path}")["parameters"]}
    html = list_page(kind, row_of(kind))
    for it in kind.filters:
        assert option_of(it).lstrip("-") in typed or it.rest_of, it.name
        assert it.name in asked
        assert f'name="{it.name}"' in html
        for action in kind.actions:
            assert option_of(it).lstrip("-") in named(kind.command, action.name) or it.rest_of
            assert it.name in body_of(operation("post", f"{_CONTEXT}{kind.path}/{action.name}"))[1]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_column_of_a_kind_is_in_all_faces(kind: Kind) -> None:
    """The API answers with all columns; `test_ops_answers` compares them with the description."""
    rows = RowCommands(kind)
    assert {*rows.view.columns.values(), *rows.more} == {"context", *(it.name for it in kind.columns)}
    row = row_of(kind)
    html = list_page(kind, row) + page_of(
        kind, [f"{kind.path}-one.html", "one.html"], row=row, payload=None, shown=False
    )
    unseen = {it.name for it in kind.columns if not seen(row[it.name], html) and not it.states}
    assert unseen <= {"seq", "message_id"} - ({"message_id"} if kind.path == "dead-letters" else set())
    with_states = [it for it in kind.columns if it.states]
    for it in with_states:
        waiting = {**row, "status": it.states[0]}
        assert seen(row[it.name], page_of(kind, "one.html", row=waiting, payload=None, shown=False))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_each_action_of_a_kind_is_in_all_faces_with_its_arguments(kind: Kind) -> None:
    rows = list_page(kind, row_of(kind))
    for action in kind.actions:
        typed = named(kind.command, action.name)
        route = operation("post", f"{_CONTEXT}{kind.path}/{action.name}")
        assert typed[""].help == route["description"] == action.about
        assert typed["note"].required is action.needs_note
        assert f'formaction="//{action.name}"' in rows
        fields = SimpleNamespace(
            kind=kind, action=action, ids=["1"], arguments={}, filters=None, statuses=[], note=None
        )
        asked = {"ids": ["1"], "selection": "s", "some": [], "groups": [], "rarer": 0}
        form = page_of(kind, "confirm.html", chosen=fields, count=1, **asked, missing="", wrong=None)
        assert action.about in unescape(form)
        for it in action.arguments:
            assert typed[it.name.replace("_", "-")].required is not it.optional
            assert it.name in body_of(route)[0]
            assert f'name="{it.name}"' in form
        assert ("all" in typed) is not action.narrowed
        assert {*action.states} <= {*action.fits} <= {*kind.states}


# --- the kinds with pages of their own ---


def special_page(kind: Listing, row: dict[str, Any]) -> str:
    """The page of the console that lists a kind, with one row."""
    asked = SimpleNamespace(queue="q", state=JobState.DEAD, args=True)
    job = row | {"name": "a-job", "args": row.get("args") and [row["args"]]}
    one = SimpleNamespace(items=[job], total=1, next=None, jobs=[job, {**job, "paused_at": None}], leader="me")
    more = {"rows": [row], "batches": [row], "most": 9, "on": True, "found": one, "may": True, "asked": asked}
    template = {"queues": "jobs.html"}.get(kind.path, f"{kind.path}.html")
    return page_of(kind, template, pausable={"a-job"}, **more)


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_each_column_of_a_special_kind_is_on_the_command_line_and_in_the_console(kind: Listing) -> None:
    module = import_module(f"relay.cli.{kind.command}")
    view = module._JOBS if kind is DEAD_JOBS else module._VIEW
    assert {*view.columns.values()} - {"context"} == {*kind.table}
    # The last two only say more about the state of a job.
    assert {it.name for it in kind.columns} - {*kind.table} <= {"requested_at", "paused_at"}
    row = row_of(kind)
    html = special_page(kind, row)
    for it in kind.columns:
        assert f'data-label="{it.label}"' in html or not it.on_page, it.name
        assert it.name == "name" or it.show in ("number", "size") or seen(row[it.name], html), it.name


@pytest.mark.parametrize("kind", OTHERS.values(), ids=OTHERS)
def test_each_action_of_a_special_kind_is_in_all_faces(kind: Listing) -> None:
    html = special_page(kind, row_of(kind))
    listing = f"{kind.command} {'jobs' if kind is DEAD_JOBS else 'list'}"
    assert operation("get", place(listing))["description"].startswith(kind.listing)
    assert named(*listing.split())[""].help.startswith(kind.listing)
    for action in kind.actions:
        command = f"{kind.command} {action.name}"
        assert named(*command.split())[""].help.startswith(action.about)
        assert operation("post", place(command))["description"].startswith(action.about)
        # For rows that are chosen, and for all.
        assert html.count(f"/{action.name}") >= {"parked": 2, "queues": 2}.get(kind.path, 1)
        assert action.label in html


def test_each_filter_of_archived_rows_is_in_all_faces() -> None:
    for action in ARCHIVED.actions:
        typed = named("archive", action.name)
        narrowed = body_of(operation("post", f"{_CONTEXT}archive/{action.name}"))[1]
        html = page_of(
            ARCHIVED, "archive-ask.html", verb=action.name, action=action, wrong=None, nothing="", nouns={}
        )
        for it in ARCHIVED.filters:
            assert option_of(it).lstrip("-") in typed
            assert it.name in narrowed
            assert f'name="{it.name}"' in html
