"""The pages for FastAPI and Django: what they print writes an event in the transaction of the framework."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx2
import psycopg
import pytest
from django.db import connection, connections, transaction
from fastapi.testclient import TestClient

from relay.commands.check_handler import CASES
from relay.domain.errors import NoTransaction
from tests.integration.publishing import django_connection
from tests.pages import code

COUNTED = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_events)"


def printed(text: str) -> ModuleType:
    """The module that a page prints."""
    module = ModuleType("page")
    exec(compile(text, "page", "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.fixture
def shop(database_url: str) -> psycopg.Connection:
    connection = psycopg.connect(database_url, autocommit=True)
    connection.execute("CREATE TABLE orders (id text PRIMARY KEY, total int CHECK (total > 0))")
    return connection


def test_an_order_of_the_fastapi_page_and_its_event_are_committed_together_or_not_at_all(
    shop: psycopg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    module = printed(code("docs/how-to/fastapi.md", "python", 1))
    client = TestClient(module.app, raise_server_exceptions=False)
    answer = client.post("/orders", json={"order_id": "o1", "total": 5}, headers={"X-Correlation-ID": "op-1"})
    assert (answer.status_code, answer.headers["X-Correlation-ID"]) == (201, "op-1")
    assert client.post("/orders", json={"order_id": "o2", "total": 0}).status_code == 500
    module.engine.dispose()
    assert shop.execute(COUNTED).fetchone() == (1, 1)
    shop.close()


def test_an_order_of_the_fastapi_page_is_written_by_an_async_session_too(
    shop: psycopg.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    module = printed(code("docs/how-to/fastapi.md", "python", 1, 2))
    client = TestClient(module.app, raise_server_exceptions=False)
    assert client.post("/async-orders", json={"order_id": "o1", "total": 5}).status_code == 201
    assert client.post("/async-orders", json={"order_id": "o2", "total": 0}).status_code == 500
    module.engine.dispose()
    assert shop.execute(COUNTED).fetchone() == (1, 1)
    shop.close()


#: A project of Django with the application of the page, and a server of many threads.
DJANGO = """
import json, sys
import django
from django.conf import settings

database = json.loads(sys.argv[1])
settings.configure(
    DATABASES={"default": database}, INSTALLED_APPS=["shop"], DEFAULT_AUTO_FIELD="django.db.models.AutoField",
    ROOT_URLCONF="urls",
)
django.setup()
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application
from django.db import connection
from shop.models import Handled, Vibe

with connection.schema_editor() as editor:
    editor.create_model(Handled)
    editor.create_model(Vibe)
server = ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler)
server.set_app(get_wsgi_application())
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture
def django_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "models.py").write_text(code("docs/how-to/django.md", "python", 2))
    (tmp_path / "shop" / "views.py").write_text(code("docs/how-to/django.md", "python", 3))
    urls = "from django.urls import path\nfrom shop.views import handle\nurlpatterns = [path('handle', handle)]\n"
    (tmp_path / "urls.py").write_text(urls)
    of = {name: value for name, value in django_connection(database_url).settings_dict.items() if name.isupper()}
    command, where = [sys.executable, "-c", DJANGO, json.dumps(of)], {"PYTHONPATH": str(tmp_path)}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=where, stdout=subprocess.PIPE, stderr=log, text=True)
    with process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, (tmp_path / "log").read_text()
        yield f"http://127.0.0.1:{port}/handle"
        process.kill()


def test_the_view_of_the_django_page_passes_the_check_that_the_page_names(
    django_url: str, database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "vibe.json").write_text('{"title": "First light"}')
    relay = [sys.executable, "-c", "from relay.cli import main; main()", "handler", "check", django_url]
    done = subprocess.run(
        [*relay, "--event-type", "vibe_created", "--payload", str(tmp_path / "vibe.json"), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, len(json.loads(done.stdout)["cases"])) == (
        0,
        sum(not case.signed for case in CASES),
    ), done.stdout
    with psycopg.connect(database_url) as found:
        counted = "SELECT (SELECT count(*) FROM shop_vibe), (SELECT count(*) FROM shop_handled)"
        vibes, handled = found.execute(counted).fetchone() or (0, -1)
    assert vibes == handled > 0
    message = {"message_id": "m1", "event_type": "vibe_created", "payload": {"name": "secret"}}
    refused = httpx2.post(django_url, json=message, headers={"Idempotency-Key": "m1"})
    assert (refused.status_code, refused.headers["Relay-Reason"]) == (422, "missing at payload.title")


def test_an_event_of_the_django_page_is_written_in_atomic_and_nowhere_else(
    shop: psycopg.Connection, database_url: str
) -> None:
    connections["default"] = django_connection(database_url)
    module = printed(code("docs/how-to/django.md", "python", 1))
    with transaction.atomic():
        connection.cursor().execute("INSERT INTO orders VALUES ('o1', 5)")
        module.place_order("o1", 5)
    with transaction.atomic():
        module.place_order("o2", 5)
        transaction.set_rollback(True)
    with pytest.raises(NoTransaction):
        module.outbox.add(connection, module.OrderPlaced(order_id="o3", total=5))
    connection.close()
    del connections["default"]
    assert shop.execute(COUNTED).fetchone() == (1, 1)
    shop.close()
