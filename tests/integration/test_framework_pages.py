"""The pages for FastAPI and Django: what they print writes an event in the transaction of the framework."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
from django.db import connection, connections, transaction
from fastapi.testclient import TestClient

from relay.domain.errors import NoTransaction
from tests.integration.publishing import django_connection

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
COUNTED = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM outbox_events)"


def printed(page: str) -> ModuleType:
    """The module that a page prints."""
    [block] = re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    module = ModuleType(page)
    exec(compile(block, page, "exec", dont_inherit=True), module.__dict__)
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
    module = printed("fastapi.md")
    client = TestClient(module.app, raise_server_exceptions=False)
    answer = client.post("/orders", json={"order_id": "o1", "total": 5}, headers={"X-Correlation-ID": "op-1"})
    assert (answer.status_code, answer.headers["X-Correlation-ID"]) == (201, "op-1")
    assert client.post("/orders", json={"order_id": "o2", "total": 0}).status_code == 500
    module.engine.dispose()
    assert shop.execute(COUNTED).fetchone() == (1, 1)
    shop.close()


def test_an_event_of_the_django_page_is_written_in_atomic_and_nowhere_else(
    shop: psycopg.Connection, database_url: str
) -> None:
    connections["default"] = django_connection(database_url)
    module = printed("django.md")
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
