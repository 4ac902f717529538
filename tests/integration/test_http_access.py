"""Handlers and webhooks that demand a certificate, a token and a signature."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relay.adapters.http import HttpAccess, HttpEventHandler
from relay.adapters.webhook import Webhook
from relay.credentials import http_access
from relay.domain.errors import AlertRefused, ConfigurationError
from relay.domain.model import Verdict
from relay.settings import load_settings
from tests.integration.http_service import BODY, Service, answering, request
from tests.secured import Authority

pytestmark = pytest.mark.anyio

SUB = "RELAY_CONTEXTS__SEA__SUBSCRIPTIONS__OWN"
ALERTS = "RELAY_CONTEXTS__SEA__ALERTS"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@asynccontextmanager
async def demanding(tls: ssl.SSLContext | None, answer: Any = None) -> AsyncIterator[tuple[str, Service]]:
    service = Service(answer or answering("200 OK"))
    server = await asyncio.start_server(service.serve, "127.0.0.1", 0, ssl=tls)
    service.port = server.sockets[0].getsockname()[1]
    try:
        yield f"http{'s' if tls else ''}://localhost:{service.port}/handle", service
    finally:
        server.close()


def access(url: str, where: str, **variables: str) -> HttpAccess:
    """What relay.toml and the environment make of it."""
    environment = {
        "RELAY_CONTEXTS__SEA__DATABASE_URL": "postgresql://nowhere/sea",
        f"{SUB}__STREAM": "SEA_EVENTS",
        f"{SUB}__FILTER_SUBJECT": "sea.event.>",
        f"{SUB}__HANDLER": url if where == SUB else "http://nowhere/",
        f"{ALERTS}__WEBHOOK": url if where == ALERTS else "http://nowhere/",
        **variables,
    }
    sea = load_settings(environ=environment).contexts["sea"]
    return http_access(sea.alerts if where == ALERTS else sea.subscriptions["own"], "here")


async def called(url: str, access: HttpAccess) -> tuple[Verdict, str]:
    handler = HttpEventHandler(url, access=access, timeout=timedelta(seconds=20))
    try:
        result = await handler.handle(request())
    finally:
        await handler.close()
    return result.verdict, result.detail


async def test_a_handler_that_demands_a_certificate_and_a_token(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    async with demanding(authority.demanding()) as (url, service):
        proven = access(url, SUB, **authority.variables(SUB), **{f"{SUB}__TOKEN_FILE": str(tmp_path / "token")})
        assert await called(url, proven) == (Verdict.PROCESSED, "")
        assert service.seen[0].headers["authorization"] == "Bearer hunter2"
        assert "hunter2" not in repr(proven)
        for other in (HttpAccess(), access(url, SUB, **{f"{SUB}__CA": str(authority.ca)})):
            verdict, detail = await called(url, other)
            assert verdict is Verdict.TRANSIENT
            assert detail
        verdict, detail = await called(
            url, access(url, SUB, **authority.variables(SUB) | {f"{SUB}__CA": str(authority.stranger)})
        )
        assert (verdict, "certificate verify failed" in detail) == (Verdict.TRANSIENT, True)
        assert len(service.seen) == 1


@pytest.mark.parametrize(
    ("variables", "header", "value"),
    [
        ({"TOKEN": "hunter2"}, "authorization", "Bearer hunter2"),
        ({"TOKEN": "Basic aHVudGVyMg=="}, "authorization", "Basic aHVudGVyMg=="),
        ({"TOKEN": "hunter2", "TOKEN_HEADER": "X-Api-Key"}, "x-api-key", "hunter2"),
    ],
)
async def test_a_token_goes_where_it_is_looked_for(variables: dict[str, str], header: str, value: str) -> None:
    async with demanding(None) as (url, service):
        given = {f"{SUB}__{key}": text for key, text in variables.items()}
        assert (await called(url, access(url, SUB, **given)))[0] is Verdict.PROCESSED
    assert service.seen[0].headers[header] == value


async def test_a_token_follows_no_redirect(caplog: pytest.LogCaptureFixture) -> None:
    async with demanding(None) as (elsewhere, other):
        away = answering("307 Temporary Redirect", b"", f"Location: {elsewhere}")
        async with demanding(None, away) as (url, service):
            verdict, detail = await called(url, HttpAccess(token="hunter2"))
    assert (verdict, len(service.seen), other.seen) == (Verdict.TRANSIENT, 1, [])
    assert "hunter2" not in detail + caplog.text


async def test_a_webhook_that_demands_all_of_it(authority: Authority) -> None:
    async with demanding(authority.demanding()) as (url, service):
        secret = {f"{ALERTS}__TOKEN": "hunter2", f"{ALERTS}__SIGNING_SECRET": "old new"}
        channel = Webhook(url, access(url, ALERTS, **authority.variables(ALERTS), **secret))
        for body in (BODY, BODY, b"{}"):
            await channel.send(body)
        with pytest.raises(AlertRefused):
            await Webhook(url).send(BODY)
    first, again, other = (seen.headers for seen in service.seen)
    assert first["authorization"] == "Bearer hunter2"
    assert first["webhook-id"] == again["webhook-id"] != other["webhook-id"]
    for key, signature in zip((b"old", b"new"), first["webhook-signature"].split(" "), strict=True):
        content = f"{first['webhook-id']}.{first['webhook-timestamp']}.".encode() + service.seen[0].body
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        assert signature == f"v1,{expected}"


async def test_a_webhook_without_secrets_is_called_as_ever() -> None:
    async with demanding(None) as (url, service):
        await Webhook(url).send(b"{}")
    assert not service.seen[0].headers.keys() & {"authorization", "webhook-id", "webhook-signature"}


def test_a_certificate_that_cannot_be_used_is_named_with_its_table() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read /nowhere/ca\.pem") as caught:
        access("https://localhost", SUB, **{f"{SUB}__CA": "/nowhere/ca.pem"})
    assert caught.value.field == "here.ca"


@pytest.mark.parametrize(
    ("where", "process"),
    [
        (SUB, ["-c", "import relay.actors"]),
        ("RELAY_NATS", ["-c", "import relay.actors"]),
        (ALERTS, ["-m", "scheduler"]),
    ],
)
def test_a_process_that_cannot_prove_itself_does_not_start(where: str, process: list[str]) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "RELAY_CONTEXTS__SEA__DATABASE_URL": "postgresql://nowhere/sea",
        f"{SUB}__STREAM": "SEA_EVENTS",
        f"{SUB}__FILTER_SUBJECT": "sea.event.>",
        f"{SUB}__HANDLER": "https://nowhere/",
        f"{ALERTS}__WEBHOOK": "https://nowhere/",
        f"{where}__CA": "/nowhere/ca.pem",
    }
    command = [sys.executable, *process]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode != 0
    assert "INVALID_CONFIG [" in done.stderr
    assert "/nowhere/ca.pem" in done.stderr
    assert done.stderr.count(".ca]: ") == 1
