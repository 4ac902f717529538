"""A person in all contexts, over HTTP and in the console: what is held, to forget, and the certificate."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from relay import Outbox
from relay.ops.api.lines import LINES
from relay.settings import Settings
from tests.integration.console_pages import Browser
from tests.integration.ops_api import Api, serving
from tests.integration.personal_support import EMAIL, VARIABLES, is_hidden, keys, masters, order
from tests.integration.publishing import query
from tests.integration.test_console import land
from tests.unit.ops_support import USERS

__all__ = ["land"]
pytestmark = pytest.mark.anyio

FORGOTTEN = "SELECT actor, note, about, cardinality(ids) AS keys FROM audit_log WHERE action = 'personal.forget'"


def settings(sea: str, land: str, **more: Any) -> Settings:
    contexts = {"sea": {"database_url": sea}, "land": {"database_url": land}}
    return Settings.model_validate({"contexts": contexts, "personal": masters(), **more})


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def write(url: str, context: str, subject: str = "c-7") -> None:
    with psycopg.connect(url) as conn:
        Outbox(context).add(conn, order(subject, f"{context}-{subject}"))


@pytest.fixture
async def api(database_url: str, land: str) -> AsyncIterator[Api]:
    write(database_url, "sea")
    write(land, "land")
    write(land, "land", "c-8")
    async with serving(settings(database_url, land)) as found:
        yield found


async def export(api: Api, subject: str) -> str:
    answer = await api.client.get("/api/v1/export", params={"subject": subject}, headers={"Accept": LINES})
    assert answer.status_code == 200
    return answer.text


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(it) for it in text.splitlines()]


async def test_a_person_is_forgotten_everywhere_once_with_a_certificate(
    api: Api, database_url: str, land: str
) -> None:
    before = await api.get("/forget?subject=c-7")
    assert (before["complete"], [(it["context"], it["left"]) for it in before["contexts"]]) == (
        False,
        [("sea", 1), ("land", 1)],
    )
    held = lines(await export(api, "c-7"))
    assert [(it["context"], it["kind"], it["state"]) for it in held] == [
        ("sea", "events", "plain"),
        ("land", "events", "plain"),
    ]
    assert all(it["payload"]["email"] == EMAIL for it in held)

    first = await api.get("/export?subject=c-7&limit=1")
    assert (first["items"], first["cut"]) == (held[:1], True)
    assert (await api.get("/export?subject=c-7"))["cut"] is False

    done = await api.post("/forget", {"subject": "c-7", "note": "asked on Monday"})
    assert (done["complete"], len(done["contexts"])) == (True, 2)
    for url in (database_url, land):
        [act] = query(url, FORGOTTEN)
        assert (act["note"], act["about"], act["keys"]) == ("asked on Monday", {"subject": "c-7"}, 1)
    # Again it changes nothing, and the certificate can be read at any time: with the acts of the audit logs.
    again = await api.post("/forget", {"subject": "c-7", "note": "again"})
    told = await api.get("/forget?subject=c-7")
    for found in (again, told):
        assert [it["keys"] for it in found["contexts"]] == [it["keys"] for it in done["contexts"]]
    [one] = done["contexts"][0]["keys"]
    assert (await api.get(f"/contexts/sea/audit/{one['deed']}"))["ids"] == [one["id"]]
    assert len(query(land, FORGOTTEN)) == 1

    text = await export(api, "c-7")
    assert {it["state"] for it in lines(text)} == {"forgotten"}
    assert is_hidden(text)
    assert [it["wrapped"] is None for it in keys(land)] == [True, False]
    [other] = lines(await export(api, "c-8"))
    assert other["state"] == "plain"


async def test_only_one_context_if_it_is_named_and_never_without_a_reason(api: Api, land: str) -> None:
    assert "note" in json.dumps(await api.post("/forget", {"subject": "c-7"}, 422))
    assert (await api.post("/forget", {"subject": "c-7", "note": "x", "context": "no"}, 404))["error"]["code"]
    done = await api.post("/forget", {"subject": "c-7", "note": "x", "context": "land"})
    assert [it["context"] for it in done["contexts"]] == ["land"]
    assert {it["context"]: it["left"] for it in (await api.get("/forget?subject=c-7"))["contexts"]} == {
        "sea": 1,
        "land": 0,
    }
    assert (await api.get(f"/forget?subject={'x' * 5000}", 422))["error"]["code"] == "INVALID_REQUEST"


async def test_the_console_asks_for_a_reason_and_leads_to_the_certificate(api: Api, land: str) -> None:
    browser = Browser(api.client)
    page = await browser.open("/persons?subject=c-7")
    assert (page.data("complete"), page.data("left")) == ("no", "2")
    asked = await browser.open(next(it for it in page.links if it.startswith("/persons/forget")))
    assert "1 key in sea, 1 key in land" in asked.text
    assert "note" in (await browser.send("/persons/forget", asked.fields, 422)).text
    done = await browser.send("/persons/forget", [*asked.fields, ("note", "asked on Monday")])
    assert (done.data("complete"), done.data("left"), done.data("destroyed")) == ("yes", "0", "2")
    again = await browser.send("/persons/forget", [*asked.fields, ("note", "back")])
    assert again.text == done.text
    [act] = [it for it in done.links if it.startswith("/contexts/land/audit/")]
    deed = await browser.open(act)
    assert "asked on Monday" in deed.text
    assert "/persons?subject=c-7" in deed.links
    held = await browser.open("/persons?subject=c-8&held=1")
    assert held.data("held") == "1"
    assert EMAIL in held.text
    saved = await browser.open(next(it for it in held.links if it.startswith("/persons/export")))
    assert [it["state"] for it in lines(saved.html)] == ["plain"]
    nobody = await browser.open("/persons?subject=nobody")
    assert "Nobody has a key of this person" in nobody.text


async def test_who_may_not_operate_forgets_nobody_and_who_sees_no_payloads_exports_none(
    database_url: str, land: str
) -> None:
    write(database_url, "sea")
    async with serving(settings(database_url, land, ops={"users": USERS})) as api:
        reader = Browser(api.client, "reader")
        page = await reader.open("/persons?subject=c-7")
        assert page.data("left") == "1"
        assert not [it for it in page.links if "forget" in it or "held" in it or "export" in it]
        await reader.open("/persons?subject=c-7&held=1", 403)
        await reader.open("/persons/forget?subject=c-7", 403)
        await reader.send("/persons/forget", [("subject", "c-7"), ("note", "x")], 403)
        for path in ("/api/v1/export", "/persons/export"):
            await reader.open(f"{path}?subject=c-7", 403)
    assert [it["wrapped"] is None for it in keys(database_url)] == [False]


async def test_a_context_that_does_not_answer_leaves_the_certificate_incomplete(database_url: str) -> None:
    write(database_url, "sea")
    async with serving(settings(database_url, "postgresql://127.0.0.1:1/none")) as api:
        done = await api.post("/forget", {"subject": "c-7", "note": "x"})
        assert (done["complete"], list(done["unread"])) == (False, ["land"])
        page = await Browser(api.client).open("/persons?subject=c-7")
        assert "Not all contexts answer" in page.text
        assert page.data("destroyed") == "1"
