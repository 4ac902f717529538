"""Personal values of tasks: encrypted in the row, plain for the function, gone with the person's key."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from relay.adapters import aes_gcm
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.commands.open_personal import OpenPersonal
from relay.domain.errors import ConfigurationError
from relay.domain.operators import Operator
from tasks.registry import InvalidTask
from tests.integration.personal_support import EMAIL, MASTERS, VARIABLES, tables_hide
from tests.integration.tasking import Tasks, tasking

pytestmark = pytest.mark.anyio
PERSONAL: dict[str, Any] = {"subject": "customer_id", "personal": ["email", "people.*.name"]}


class Letter(BaseModel):
    customer_id: str
    email: str | None
    people: list[dict[str, str | None]]


LETTER = Letter(customer_id="c-7", email=EMAIL, people=[{"name": "Ann Hidden"}, {"name": "Bob"}])
NULLS = Letter(customer_id="c-7", email=None, people=[{"name": None}, {"name": None}])


@pytest.fixture(params=["in a thread", "on the loop"])
async def tasks(
    database_url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tasks]:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    async with tasking(database_url) as tasks, Pool(database_url, max_size=2, application_name="keys") as pool:
        tasks.threads = "thread" in request.param
        keys = PostgresSubjectKeys(pool.connection)
        tasks.rows.opens = OpenPersonal(MASTERS, lambda _: keys, aes_gcm.unwrap, aes_gcm.decrypting)
        yield tasks


def noting(tasks: Tasks, *, is_async: bool = False, **options: Any) -> list[Letter]:
    """Register a function that notes its letters."""
    found: list[Letter] = []

    def plain(letter: Letter) -> None:
        found.append(letter)

    async def coroutine(letter: Letter) -> None:
        found.append(letter)

    function: Callable[..., Any] = coroutine if is_async else plain
    tasks.register(function, **PERSONAL, **options)
    return found


async def forget(url: str) -> None:
    async with Pool(url, max_size=1, application_name="forget") as pool:
        await PostgresSubjectKeys(pool.connection).forget("c-7", Operator("ann"))


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
async def test_the_row_hides_what_the_function_gets(tasks: Tasks, *, is_async: bool) -> None:
    found = noting(tasks, is_async=is_async)
    [id] = tasks.schedule(LETTER)
    assert tables_hide(tasks.url)
    assert "relay:personal" in str((await tasks.row(id))["payload"])
    await tasks.run(id)
    assert found == [LETTER]
    assert (await tasks.row(id))["status"] == "completed"
    assert tables_hide(tasks.url)


@pytest.mark.parametrize(
    ("forgotten", "called", "status"),
    [("call", [NULLS], "completed"), ("skip", [], "completed"), ("dead", [], "failed")],
)
async def test_a_task_of_a_person_who_was_forgotten(
    tasks: Tasks, forgotten: str, called: list[Letter], status: str
) -> None:
    found = noting(tasks, forgotten=forgotten)
    [id] = tasks.schedule(LETTER)
    await forget(tasks.url)
    await tasks.run(id)
    row = await tasks.row(id)
    assert (found, row["status"]) == (called, status)
    assert status == "completed" or row["last_error"].startswith("SUBJECT_FORGOTTEN")


async def test_without_a_master_key_a_task_waits_and_spends_no_attempt(tasks: Tasks) -> None:
    found = noting(tasks, max_retries=0)
    [id] = tasks.schedule(LETTER)
    opens, tasks.rows.opens = tasks.rows.opens, None
    await tasks.run(id)
    row = await tasks.row(id)
    assert (found, row["status"], row["attempts"]) == ([], "delivered", 0)
    assert row["last_error"].startswith("MASTER_KEY_MISSING")
    tasks.rows.opens = opens
    await tasks.make_due(id)
    await tasks.run(id)
    assert found == [LETTER]


async def test_a_row_whose_values_are_plain_runs_too(tasks: Tasks) -> None:
    """One from before the fields were declared."""
    found = noting(tasks)
    [id] = tasks.schedule(LETTER)
    await tasks.query("UPDATE task_outbox SET payload = %s WHERE id = %s", Jsonb(LETTER.model_dump()), id)
    await tasks.run(id)
    assert found == [LETTER]


async def test_a_payload_that_does_not_fit_once_it_is_read_fails_and_shows_nothing(tasks: Tasks) -> None:
    noting(tasks)
    [id] = tasks.schedule(LETTER)
    await tasks.query("UPDATE task_outbox SET payload = payload - 'customer_id' WHERE id = %s", id)
    await tasks.run(id)
    row = await tasks.row(id)
    assert (row["status"], "payload.customer_id" in row["last_error"]) == ("failed", True)
    assert tables_hide(tasks.url)


async def test_without_a_master_key_nothing_is_scheduled(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    noting(tasks)
    for name in VARIABLES:
        monkeypatch.delenv(name)
    with pytest.raises(ConfigurationError, match="no master key"):
        tasks.schedule(LETTER)


@pytest.mark.parametrize(
    "options",
    [{"subject": "a"}, {"personal": ["a"]}, {"subject": "a", "personal": "b"}, {**PERSONAL, "subject": "email"}],
)
async def test_fields_without_a_person_are_refused(tasks: Tasks, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask):
        tasks.register(lambda letter: None, **options)
