"""A producer in any language has its payloads encrypted over HTTP, and writes them by SQL."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from relay.settings import Settings
from tests.integration.ops_api import Api, serving
from tests.integration.personal_support import MASTERS, is_hidden, keys, opened, payload, tables_hide
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

FIELDS = {"subject": "customer_id", "fields": ["email", "address.*"]}
ENCRYPT = "/contexts/shop/encrypt"


def settings(url: str, **personal: Any) -> Settings:
    return Settings.model_validate(
        {"contexts": {"shop": {"database_url": url, "personal": {"order_placed": FIELDS}}}, **personal}
    )


@pytest.fixture
async def api(database_url: str) -> AsyncIterator[Api]:
    masters = {name: {"key": base64.b64encode(it).decode()} for name, it in MASTERS.keys.items()}
    async with serving(settings(database_url, personal={"master": "2026", "masters": masters})) as found:
        yield found


async def test_a_payload_is_encrypted_for_a_producer_by_sql(
    api: Api, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asked = {"event_type": "order_placed", "payload": payload(euros=12.5)}
    first, second = [(await api.post(ENCRYPT, asked))["payload"] for _ in range(2)]
    assert first != second
    assert len(keys(database_url)) == 1
    sql = "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload) VALUES (%s, %s, %s, %s)"
    query(database_url, sql, "order", "o-1", "order_placed", json.dumps(first))
    [row] = query(database_url, "SELECT payload FROM outbox_events")
    assert opened(database_url, row["payload"]) == payload(euros=12.5)
    assert tables_hide(database_url)
    assert is_hidden(caplog.text)


async def test_what_has_nothing_personal_stays(api: Api, database_url: str) -> None:
    for kind in ("order_placed", "other"):
        asked = {"event_type": kind, "payload": {"item": "x"}}
        assert (await api.post(ENCRYPT, asked))["payload"] == {"item": "x"}
    assert keys(database_url) == []


async def test_an_answer_that_refuses_shows_no_value(api: Api) -> None:
    asked = {"event_type": "order_placed", "payload": {**payload(), "customer_id": None}}
    assert is_hidden(await api.post(ENCRYPT, asked, 422))


async def test_without_a_master_key_nothing_is_encrypted(database_url: str) -> None:
    async with serving(settings(database_url)) as api:
        await api.post(ENCRYPT, {"event_type": "order_placed", "payload": payload()}, 500)
    assert keys(database_url) == []
