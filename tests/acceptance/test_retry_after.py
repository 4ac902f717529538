"""In a real fleet: a service says when, and the log, Redis and the dashboard say why a message waits."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen
from uuid import UUID

import dramatiq
import psycopg
import pytest
import redis

from relay import Event, Outbox
from relay.devstack import http_checks, processes
from relay.devstack.ports import free_port
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HandlerService
from tests.waiting import wait_for

SECRET = "DE02120300000000202051"


def publish(fleet: Fleet) -> UUID:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        payload = {"iban": SECRET}
        event = Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id="v", payload=payload)
        return UUID(str(Outbox("vibespro").add(connection, event)))


def put_off(fleet: Fleet) -> list[dramatiq.Message[Any]]:
    """The jobs of messages that wait for their time."""
    texts: Any = redis.Redis.from_url(fleet.valkey.url).hvals("relay:relay-handle.DQ.msgs")
    return [dramatiq.Message.decode(text) for text in texts]


def test_a_message_is_called_again_when_its_service_says_so(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(max_attempts=2)
    handler.verdict = lambda _body, n: 200 if n > 3 else (429 if n == 1 else 503)
    handler.headers = {"Retry-After": "3"}
    fleet.scheduler()
    fleet.worker()
    id = publish(fleet)
    wait_for("it is processed", lambda: fleet.inbox(id).get("processed_at"))
    times = [call.at for call in handler.calls_for(id)]
    assert [later - earlier >= 3 for earlier, later in pairwise(times)] == [True] * 3
    assert fleet.inbox(id)["attempts"] == 1, "three calls that were put off spent none"
    assert SECRET not in fleet.log("worker")


def test_why_a_message_waits_is_in_the_log_and_in_the_dashboard(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    pytest.importorskip("dramatiq_dashboard", reason="`make setup` installs it, without its requirements")
    fleet = start_fleet(more='backoff_initial = "5m"\nbackoff_max = "5m"\nerror_detail = "text"')
    handler.verdict = lambda body, _n: 503
    handler.said = lambda body: body
    fleet.scheduler()
    fleet.worker()
    publish(fleet)
    wait_for("it waits", lambda: put_off(fleet))
    [job] = put_off(fleet)
    said = 'Retry("HTTP 503", in '
    assert said in job.options["traceback"]
    assert SECRET not in str(job.options)
    lines = [line for line in fleet.log("worker").splitlines() if "Retry(" in line]
    assert [SECRET in line for line in lines] == [False] * len(lines)
    assert any(said in line.replace('\\"', '"') for line in lines)
    port = free_port()
    dashboard = processes.spawn(
        [sys.executable, "-m", "relay.devstack.dashboard", "--port", str(port)],
        log=fleet.directory / "dashboard.log",
        directory=fleet.directory,
        environment=fleet.environment,
    )
    fleet.running.append(dashboard)
    url = f"http://127.0.0.1:{port}"
    wait_for("the dashboard answers", lambda: http_checks.get(f"{url}/"))
    with urlopen(
        f"{url}/queues/relay-handle/delayed/{quote(job.options['redis_message_id'])}", timeout=60
    ) as page:
        shown = html.unescape(page.read().decode())
    assert said in shown
    assert SECRET not in shown
