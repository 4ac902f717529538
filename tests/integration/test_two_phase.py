"""A producer may prepare its transaction (two-phase commit), also while the outbox is quiet."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from relay import Outbox
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.wakeup import Wakeup
from relay.devstack import PostgresServer
from relay.domain.errors import NoTransaction
from tests.integration.publishing import engine_url, event, query
from tests.servers import initialised, migrated

pytestmark = pytest.mark.anyio
OUTBOX = Outbox("sea", undeclared=True)
WITH_TASK = "INSERT INTO task_outbox (id, type, payload) VALUES (gen_random_uuid(), 'mail', '{}')"


@pytest.mark.parametrize("prepared", [0, 4], ids=["without", "with"])
async def test_hints_stop_no_transaction_that_is_prepared(server_directory: Path, prepared: int) -> None:
    """There are none where the server allows it; then `hinted` is false, and polls stay frequent."""
    settings = {"max_prepared_transactions": str(prepared)}
    with initialised(PostgresServer(server_directory / "postgres", settings=settings)) as server:
        url = migrated(server, "two_phase")
        async with Pool(url, max_size=2, application_name="tests") as pool:
            wakeup = Wakeup(pool, url)
            for _ in range(2):
                await wakeup.set_sleeping(True)
            assert wakeup.hinted is (prepared == 0)
            await wakeup.close()
        with psycopg.connect(url) as connection:
            # As a scheduler of the last version has left it, or one before the server's setting was changed.
            connection.execute("UPDATE relay_wakeup SET sleeping = true")
            connection.commit()
            OUTBOX.add(connection, event("v1"))
            connection.execute(WITH_TASK)
            if prepared:
                connection.execute("PREPARE TRANSACTION 'both'")
                connection.autocommit = True
                connection.execute("COMMIT PREPARED 'both'")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM outbox_events").fetchone() == (1,)


def test_a_transaction_that_is_prepared_takes_no_more(server_directory: Path) -> None:
    settings = {"max_prepared_transactions": "4"}
    with initialised(PostgresServer(server_directory / "postgres", settings=settings)) as server:
        url = migrated(server, "two_phase")
        with psycopg.connect(url) as connection:
            connection.tpc_begin("psycopg")
            OUTBOX.add(connection, event("v1"))
            connection.tpc_prepare()
            with pytest.raises(NoTransaction):
                OUTBOX.add(connection, event("v2"))
            connection.tpc_commit()
        engine = create_engine(engine_url(url))
        with engine.connect() as connection:
            transaction = connection.begin_twophase()
            OUTBOX.add(connection, event("v3"))
            transaction.prepare()
            with pytest.raises(NoTransaction):
                OUTBOX.add(connection, event("v4"))
            transaction.commit()
        with Session(engine, twophase=True) as session:
            OUTBOX.add(session, event("v5"))
            session.prepare()
            with pytest.raises(NoTransaction):
                OUTBOX.add(session, event("v6"))
            session.commit()
        found = query(url, "SELECT aggregate_id AS id FROM outbox_events ORDER BY 1")
        assert [row["id"] for row in found] == ["v1", "v3", "v5"]
