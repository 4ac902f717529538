"""A producer may prepare its transaction (two-phase commit), also while the outbox is quiet."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from relay import Outbox
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.wakeup import Wakeup
from relay.devstack import PostgresServer
from tests.integration.publishing import event
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
            OUTBOX.add(connection, event("v1"))
            connection.execute(WITH_TASK)
            if prepared:
                connection.execute("PREPARE TRANSACTION 'both'")
                connection.autocommit = True
                connection.execute("COMMIT PREPARED 'both'")
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT count(*) FROM outbox_events").fetchone() == (1,)
