"""psycopg's connections in every state: an event commits with its transaction, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg
import pytest

from relay import Outbox
from relay.domain.errors import NoTransaction
from tests.integration.publishing import event, outbox_rows

pytestmark = pytest.mark.anyio

OUTBOX = Outbox("vibespro")
#: Before the event: nothing, a statement under way, one that was answered, a block, a plain BEGIN.
BEFORE = ["nothing", "sent", "answered", "block", "block, answered", "BEGIN"]
AUTOCOMMIT = [False, True]
PIPELINE = [False, True]


def refused(before: str, autocommit: bool, pipeline: bool) -> bool:
    """A BEGIN of the application's own in a pipeline that is not answered yet cannot be seen: it is refused."""
    return autocommit and not before.startswith("block") and not (before == "BEGIN" and not pipeline)


@pytest.mark.parametrize("pipeline", PIPELINE)
@pytest.mark.parametrize("autocommit", AUTOCOMMIT)
@pytest.mark.parametrize("before", BEFORE)
def test_an_event_never_commits_alone(database_url: str, before: str, autocommit: bool, pipeline: bool) -> None:
    with psycopg.connect(database_url, autocommit=autocommit) as connection:

        @contextmanager
        def state() -> Iterator[None]:
            with connection.pipeline() if pipeline else nullcontext() as line:
                with connection.transaction() if before.startswith("block") else nullcontext():
                    if before == "BEGIN":
                        connection.execute("BEGIN")
                    elif before != "nothing":
                        connection.execute("SELECT 1")
                    if before.endswith("answered") and line is not None:
                        line.sync()
                    yield
                    if before.startswith("block"):
                        raise psycopg.Rollback
                if not autocommit or before == "BEGIN":
                    connection.execute("ROLLBACK")

        with state():
            if refused(before, autocommit, pipeline):
                with pytest.raises(NoTransaction):
                    OUTBOX.add(connection, event())
            else:
                OUTBOX.add(connection, event())
    assert outbox_rows(database_url) == []


@pytest.mark.parametrize("pipeline", PIPELINE)
async def test_an_event_of_an_asynchronous_connection_never_commits_alone(
    database_url: str, pipeline: bool
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection,
        connection.pipeline() if pipeline else nullcontext(),
    ):
        await connection.execute("SELECT 1")
        with pytest.raises(NoTransaction):
            await OUTBOX.add(connection, event())
        async with connection.transaction():
            await OUTBOX.add(connection, event())
    assert len(outbox_rows(database_url)) == 1
