"""Who is let into the HTTP API, and for what: tokens, roles, hosts and origins."""

from __future__ import annotations

import base64
import re
from functools import cache
from typing import Any

import httpx2
import pytest

from relay.domain.errors import ConfigurationError, DatabaseUnreachable
from relay.ops.api.access import Door, Doorkeeper
from relay.ops.api.app import create_app
from relay.ops.api.server import check_address
from relay.ops.console.render import as_page
from relay.settings import Settings
from tests.unit.ops_support import TOKENS, USERS

pytestmark = pytest.mark.anyio

#: Nothing listens there: whoever is let in is told so, by 503.
CONTEXTS = {"sea": {"database_url": "postgresql://127.0.0.1:1/sea"}}
EVENTS = "/api/v1/contexts/sea/events"
RETRY = f"{EVENTS}/retry"
OPEN = Settings.model_validate({"contexts": CONTEXTS})
GUARDED = Settings.model_validate({"contexts": CONTEXTS, "ops": {"users": USERS}})


class Away:
    """Databases of which none answers, at once."""

    error: Exception = DatabaseUnreachable("nothing listens")

    def of(self, _: Any) -> Any:
        raise self.error

    async def close(self) -> None: ...


def without_database(settings: Settings) -> Any:
    away: Any = Away()
    return create_app(settings, away)


@cache
def app_of(*, guarded: bool) -> Any:
    return without_database(GUARDED if guarded else OPEN)


async def asked(
    settings: Settings, method: str, path: str, headers: dict[str, str] | None = None, host: str = "127.0.0.1:8085"
) -> tuple[int, str]:
    """The status, and the code of the error."""
    transport = httpx2.ASGITransport(app=app_of(guarded=settings is GUARDED))
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
        body = {"json": {"all": True}} if method == "POST" else {}
        answer = await client.request(method, path, headers=headers, **body)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[user]}"}


def routes() -> list[tuple[str, str]]:
    """Every route below /api/v1, as (method, path)."""
    app = create_app(GUARDED)._app._app._app
    document = app.openapi()["paths"]
    return [(m.upper(), path) for path, methods in document.items() for m in methods if path.startswith("/api")]


def at(path: str) -> str:
    return path.replace("{context}", "sea").replace("{id}", "1")


async def test_every_route_needs_a_token_and_every_write_the_role() -> None:
    found = routes()
    assert len(found) >= 15
    for method, path in found:
        assert await asked(GUARDED, method, at(path)) == (401, "UNAUTHENTICATED"), path
        assert await asked(GUARDED, method, at(path), {"Authorization": "Bearer wrong"}) == (
            401,
            "UNAUTHENTICATED",
        )
        if method == "POST":
            assert await asked(GUARDED, method, at(path), bearer("reader")) == (403, "NOT_ALLOWED"), path


async def test_a_reader_reads_and_an_operator_acts() -> None:
    assert await asked(GUARDED, "GET", EVENTS, bearer("reader")) == (503, "DATABASE_UNREACHABLE")
    assert await asked(GUARDED, "POST", RETRY, bearer("operator")) == (503, "DATABASE_UNREACHABLE")


@pytest.mark.parametrize(
    "path",
    [
        f"{EVENTS}/1",
        "/api/v1/contexts/sea/dead-letters/1",
        "/api/v1/contexts/sea/tasks/019c0000-0000-7000-8000-000000000001",
    ],
)
async def test_payloads_need_a_right_of_their_own(path: str) -> None:
    for user in ("reader", "operator"):
        assert await asked(GUARDED, "GET", f"{path}?payload=true", bearer(user)) == (403, "NO_PAYLOADS")
    assert await asked(GUARDED, "GET", f"{path}?payload=true", bearer("auditor")) == (503, "DATABASE_UNREACHABLE")


async def test_a_browser_gives_the_token_as_a_password() -> None:
    basic = base64.b64encode(f"anybody:{TOKENS['reader']}".encode()).decode()
    assert await asked(GUARDED, "GET", EVENTS, {"Authorization": f"Basic {basic}"}) == (
        503,
        "DATABASE_UNREACHABLE",
    )
    for broken in ("Basic ###", "Basic", f"Basic {TOKENS['reader']}", f"Digest {TOKENS['reader']}", ""):
        assert await asked(GUARDED, "GET", EVENTS, {"Authorization": broken}) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize("host", ["127.0.0.1:8085", "localhost:1", "[::1]:8085", "127.8.8.8"])
async def test_this_machine_needs_no_token(host: str) -> None:
    assert await asked(OPEN, "GET", EVENTS, host=host) == (503, "DATABASE_UNREACHABLE")
    assert await asked(OPEN, "POST", RETRY, host=host) == (503, "DATABASE_UNREACHABLE")


@pytest.mark.parametrize(
    "host", ["evil.example:8085", "127.0.0.1.evil.example", "10.0.0.7", "localhost.evil.example"]
)
async def test_a_name_that_a_web_page_has_resolved_to_this_machine_is_refused(host: str) -> None:
    for method, path in (("GET", EVENTS), ("POST", RETRY), ("GET", "/healthz")):
        assert await asked(OPEN, method, path, host=host) == (403, "FOREIGN_HOST")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8085"},
        {"Origin": "https://127.0.0.1:8085", "X-Forwarded-Proto": "http"},
        {"Origin": "http://["},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_writes_nothing(headers: dict[str, str]) -> None:
    assert await asked(OPEN, "POST", RETRY, headers) == (403, "FOREIGN_ORIGIN")
    assert await asked(GUARDED, "POST", RETRY, {**bearer("operator"), **headers}) == (403, "FOREIGN_ORIGIN")


async def test_a_page_of_our_own_writes_and_a_form_does_not() -> None:
    ours = {"Origin": "http://127.0.0.1:8085", "Sec-Fetch-Site": "same-origin"}
    assert await asked(OPEN, "POST", RETRY, ours) == (503, "DATABASE_UNREACHABLE")
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert await asked(OPEN, "POST", RETRY, {"Content-Type": kind}) == (415, "NOT_JSON")


async def test_a_page_that_a_proxy_has_encrypted_writes() -> None:
    theirs = {"Origin": "https://127.0.0.1:8085", **bearer("operator")}
    for told in ({"X-Forwarded-Proto": "https"}, {"Sec-Fetch-Site": "same-origin"}):
        assert await asked(GUARDED, "POST", RETRY, {**theirs, **told}) == (503, "DATABASE_UNREACHABLE")


HOSTS = ["[", "[::1", "a b", "x@y", "127.0.0.1/api/", "127.0.0.1?", "127.0.0.1:x", "127.0.0.1:8085:1", "é", "a\\b"]


@pytest.mark.parametrize("settings", [OPEN, GUARDED], ids=["open", "guarded"])
async def test_a_name_that_is_none_is_refused_and_its_path_is_no_line_of_the_log(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette makes addresses from this header, and fails at some of these."""
    app = app_of(guarded=settings is GUARDED)
    for host in (*HOSTS, ""):
        for path in ("/", EVENTS, "/healthz", "/\nFAKE\x1b[31m"):
            headers = [(b"host", host.encode()), (b"authorization", bearer("operator")["Authorization"].encode())]
            assert (await straight(app, path, headers))[:2] == (
                403,
                "FOREIGN_HOST",
            ), (host, path)
    assert caplog.text == ""


async def straight(app: Any, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, str, dict[bytes, bytes]]:
    """Ask past a client, which would mend the request. Returns the status, the code, and the headers."""
    told = list[dict[str, Any]]()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": b"/",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8085),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    await app(scope, receive, send)
    body = b"".join(it.get("body", b"") for it in told).decode()
    code = re.search(r'"code": "(\w+)"|<code>(\w+)</code> · HTTP', body)
    return told[0]["status"], "" if code is None else code[1] or code[2], dict(told[0]["headers"])


async def test_no_answer_leads_to_another_name() -> None:
    for path in ("/doctor/", "/contexts/sea/events/", "/static", "//evil.example/", "/api/v1/contexts/"):
        headers = [(b"host", b"evil.example"), (b"authorization", bearer("operator")["Authorization"].encode())]
        status, code, told = await straight(app_of(guarded=True), path, headers)
        assert (status, code) == (404, "NO_SUCH_PATH"), path
        assert b"location" not in told


async def test_a_fault_is_one_line_of_the_log_whatever_the_path(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a secret of a row")

    door = Door(broken, Doorkeeper(OPEN.ops), as_page)
    status, *_ = await straight(door, f"/a\n2026 FAKE\x1b[31m{'x' * 5000}", [(b"host", b"127.0.0.1")])
    assert status == 500
    [line] = caplog.messages
    assert line.isprintable()
    assert len(line) < 300


async def test_a_body_that_is_too_large_is_not_read() -> None:
    transport = httpx2.ASGITransport(app=app_of(guarded=False))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post(RETRY, headers={"Content-Type": "application/json"}, content=b" " * 4_194_305)
    assert (answer.status_code, answer.headers["x-frame-options"]) == (413, "DENY")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "ops.example"])
def test_elsewhere_it_does_not_start_without_users(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1"):
        check_address(OPEN, host)
    check_address(GUARDED, host)


def test_on_this_machine_it_starts_without_users() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_address(OPEN, host)


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ({"token": "short"}, "16 to 1000"),
        ({"token": "with a space in the middle"}, "no space"),
        ({"token": TOKENS["reader"], "role": "root"}, "read"),
    ],
)
def test_users_that_are_not_as_they_must_be_are_refused(user: dict[str, str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings.model_validate({"ops": {"users": {"ann": user}}})
    with pytest.raises(ValueError, match="same token"):
        Settings.model_validate({"ops": {"users": {"ann": USERS["reader"], "bob": USERS["reader"]}}})


async def test_a_fault_tells_nothing_of_the_program(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(Away, "error", RuntimeError("a secret of a row"))
    assert await asked(OPEN, "GET", EVENTS) == (500, "INTERNAL_ERROR")
    assert "secret" not in caplog.text
    assert "RuntimeError" in caplog.text
