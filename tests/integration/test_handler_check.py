"""`relay handler check`: a good handler passes every case, and each case fails for a handler with its fault."""

from __future__ import annotations

import asyncio
import hmac
import json
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette
from starlette.routing import Route

from relay.adapters.http import sign
from relay.cli import main
from relay.commands.check_handler import CASES
from relay.devstack import sample
from relay.devstack.ports import free_port
from relay.handler import HandlerEndpoint
from tests.integration.publishing import query
from tests.pages import code, commands
from tests.waiting import wait_for

SECRET = "one two"
REASON = (b"relay-reason", b"because")
Check = Callable[..., tuple[int, str, str]]


class Handler:
    """A handler written against the contract and nothing of ours, as in another language; ``fault`` spoils it."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.done: set[str] = set()
        self.busy: set[str] = set()
        self.met: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        status = await self.answer(headers, body)
        await send({"type": "http.response.start", "status": status, "headers": [REASON]})
        await send({"type": "http.response.body", "body": b"null"})

    async def answer(self, headers: dict[str, str], body: bytes) -> int:
        if not self.signed(headers, body):
            return 401
        try:
            request = json.loads(body)
        except ValueError:
            return 400 if self.fault == "malformed JSON" else 422
        if refusal := self.refuses(request):
            return refusal
        return await self.take(request["message_id"], abandoned="user-agent" not in headers)

    def signed(self, headers: dict[str, str], body: bytes) -> bool:
        given = headers.get("webhook-signature")
        if given is None:
            return self.fault == "signature missing"
        stamp = int(headers["webhook-timestamp"])
        if abs(time.time() - stamp) > 300 and self.fault != "signature old":
            return False
        if self.fault == "signature wrong":
            return True
        good = sign(SECRET, headers["webhook-id"], stamp, body)["webhook-signature"]
        return hmac.compare_digest(good, given)

    def refuses(self, request: dict[str, Any]) -> int:
        for name in ("message_id", "event_type", "payload"):
            if name not in request:
                return 500 if self.fault == f"missing {name}" else 422
        if not isinstance(request["message_id"], str):
            return 400 if "no text" in self.fault else 422
        if not isinstance(request["payload"], dict):
            return 500 if self.fault == "wrong payload" else 422
        if request["event_type"] == "relay_check_unknown_event":
            return 404 if self.fault == "unknown event type" else 422
        if self.fault == "optional fields null" and request["occurred_at"] is None:
            return 422
        return 422 if self.fault == "unknown field" and "field_of_a_later_version" in request else 0

    async def take(self, message_id: str, *, abandoned: bool) -> int:
        if message_id in self.done:
            return 400 if self.fault == "repeated" else 409
        if self.fault == "four at once":
            await self.meet(message_id)
        elif message_id in self.busy:
            return 503
        self.busy.add(message_id)
        if self.fault == "caller gives up" and abandoned:
            return 500  # and busy for ever
        await asyncio.sleep(5 if self.fault == "good" else 0.02)
        if self.fault == "never":
            await asyncio.sleep(60)
        self.done.add(message_id)
        return 200

    async def meet(self, message_id: str) -> None:
        """Have requests that come at once be at work at once, however slow the machine."""
        met = self.met.setdefault(message_id, asyncio.Event())
        if message_id in self.busy:
            met.set()
        self.busy.add(message_id)
        with suppress(TimeoutError):
            await asyncio.wait_for(met.wait(), 2)


@contextmanager
def serving(app: Any) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait_for("it serves", lambda: server.started)
    yield f"http://127.0.0.1:{port}/handle"
    server.should_exit = True
    thread.join()


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", "handler", "check", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, printed.out, printed.err

    return run


def failed(output: str) -> list[str]:
    return [case["case"] for case in json.loads(output)["cases"] if not case["passed"]]


#: How many cases a handler is sent without a secret.
UNSIGNED = sum(not case.signed for case in CASES)


def passed(output: str) -> int:
    return sum(case["passed"] for case in json.loads(output)["cases"])


def test_a_good_handler_passes_every_case(check: Check) -> None:
    with serving(Handler()) as url:
        status, output, _ = check(url, "--secret", SECRET, "--json")
    assert (status, failed(output), json.loads(output)["passed"]) == (0, [], True)
    assert [case["case"] for case in json.loads(output)["cases"]] == [case.name for case in CASES]


@pytest.mark.parametrize("fault", [case.name for case in CASES if case.name not in ("good", "repeated")])
def test_each_case_fails_for_a_handler_with_its_fault_and_only_that_one(check: Check, fault: str) -> None:
    with serving(Handler(fault)) as url:
        status, output, _ = check(url, "--secret", SECRET, "--json")
    assert (status, failed(output)) == (1, [fault])


def test_a_handler_that_refuses_repeats_fails_wherever_something_is_repeated(check: Check) -> None:
    with serving(Handler("repeated")) as url:
        _, output, _ = check(url, "--secret", SECRET, "--json")
    assert failed(output) == ["repeated", "four at once", "caller gives up"]


def test_doing_it_again_is_allowed_and_said(check: Check) -> None:
    class Again(Handler):
        async def take(self, message_id: str, *, abandoned: bool) -> int:
            return 200

    with serving(Again()) as url:
        status, output, _ = check(url, "--secret", SECRET)
    assert status == 0
    assert "note: the handler does repeats again: this is right only if twice is the same as once" in output


def test_what_is_done_twice_by_one_that_knows_messages_fails(check: Check) -> None:
    class Racing(Handler):
        async def take(self, message_id: str, *, abandoned: bool) -> int:
            if message_id in self.done:
                return 409
            await self.meet(message_id)
            self.done.add(message_id)
            return 200

    with serving(Racing()) as url:
        _, output, _ = check(url, "--secret", SECRET, "--json")
    assert failed(output) == ["four at once"]


def test_a_handler_that_declares_the_default_event_is_checked_without_options(
    check: Check, database_url: str
) -> None:
    engine = create_async_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    endpoint = HandlerEndpoint("checked", engine, {"relay_check.v1": dict[str, Any]})

    async def handle(event: Any) -> None: ...

    with serving(Starlette(routes=[Route("/handle", endpoint.route(handle), methods=["POST"])])) as url:
        status, output, _ = check(url, "--json")
    assert (status, passed(output)) == (0, UNSIGNED), output


def test_the_command_of_the_page_passes_the_service_of_the_page(
    check: Check, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", database_url)
    (tmp_path / "vibe.json").write_text('{"title": "First light"}')
    query(database_url, "CREATE TABLE vibe_index (title text)")
    module: dict[str, Any] = {"__name__": "myservice"}
    exec(code("docs/how-to/http-handlers.md", "python", 1), module)
    [command] = commands(code("docs/how-to/http-handlers.md", "sh", 1))
    _, _, _, url, *options = shlex.split(command)
    with serving(module["app"]) as served:
        status, output, _ = check(url.replace("http://127.0.0.1:8000/handle", served), *options, "--json")
    assert (status, passed(output)) == (0, UNSIGNED), output


def test_the_default_event_is_named_where_the_handler_does_not_know_it(check: Check) -> None:
    class Knowing(Handler):
        def refuses(self, request: dict[str, Any]) -> int:
            return 422 if request.get("event_type") == "relay_check" else super().refuses(request)

    with serving(Knowing()) as url:
        assert "it was sent relay_check.v1" in check(url, "--secret", SECRET)[1]
        assert "it was sent" not in check(url, "--secret", SECRET, "--event-type", "vibe_created")[1]


@pytest.mark.parametrize("fault", ["good", "never"])
def test_a_slow_handler_fails_what_must_be_done_in_time(check: Check, fault: str) -> None:
    with serving(Handler(fault)) as url:
        _, output, _ = check(url, "--secret", SECRET, "--json", "--timeout", "1")
    assert {"good", "repeated"} <= set(failed(output))
    assert "malformed JSON" not in failed(output)
    assert json.loads(output)["cases"][0]["answered"].endswith(" 1 s")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_handler_that_is_not_there_is_one_line(check: Check, options: tuple[str, ...]) -> None:
    port = free_port()
    status, output, error = check(f"http://127.0.0.1:{port}/handle?token=s3cret", *options)
    assert (status, output, error.count("\n")) == (1, "", 1)
    assert error.startswith(f"error HANDLER_UNREACHABLE: nobody answers at 127.0.0.1:{port}: ")
    assert "s3cret" not in error


def test_people_get_a_table_and_the_handlers_reason(check: Check) -> None:
    with serving(Handler("wrong payload")) as url:
        status, output, _ = check(url, "--secret", SECRET)
    assert (status, "FAIL" in output, "1 of 16 cases failed." in output) == (1, True, True)
    assert "500 because" in output
    with serving(Handler()) as url:
        assert "All 16 cases passed." in check(url, "--secret", SECRET)[1]


def test_event_and_payload_are_what_the_user_says(check: Check, tmp_path: Path) -> None:
    seen = []

    class Picky(Handler):
        def refuses(self, request: dict[str, Any]) -> int:
            seen.append((request.get("event_type"), request.get("event_version"), request.get("payload")))
            return super().refuses(request)

    (tmp_path / "good.json").write_text('{"title": "x"}')
    (tmp_path / "bad.json").write_text('["no"]')
    files = ["--payload", str(tmp_path / "good.json"), "--bad-payload", str(tmp_path / "bad.json")]
    with serving(Picky()) as url:
        assert check(url, "--event-type", "vibe_created.v2", *files, "--secret", SECRET)[0] == 0
    assert seen[0] == ("vibe_created", 2, {"title": "x"})
    assert ("vibe_created", 2, ["no"]) in seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ftp://x/handle"], "URL: is not an http"),
        (["http://x", "--event-type", "a b"], "INVALID_SUBJECT"),
        (["http://x", "--payload", "/nowhere.json"], "--payload: cannot be read"),
        (["http://x", "--payload", __file__], "--payload: is not JSON"),
    ],
)
def test_wrong_arguments_get_one_line(check: Check, arguments: list[str], message: str) -> None:
    status, _, error = check(*arguments)
    assert (status, message in error) == (1, True), error


def test_the_sample_handler_keeps_the_contract(check: Check, database_url: str) -> None:
    with serving(sample.create_app(database_url)) as url:
        status, output, _ = check(url, "--json")
    assert (status, failed(output)) == (0, [])
