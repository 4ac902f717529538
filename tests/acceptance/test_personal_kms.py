"""A fleet whose key service is away: messages wait and spend no attempt, and go on when it is back."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from relay import Outbox
from tests.acceptance import personal_effects
from tests.acceptance.fleet import Fleet
from tests.acceptance.personal_effects import digest
from tests.integration.personal_support import order, payload
from tests.kms import CREDENTIALS, serving
from tests.waiting import wait_for

PYTHON = "python:tests.acceptance.personal_effect_alone"


def test_messages_wait_for_the_key_service(
    start_fleet: Callable[..., Fleet], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as server:
        port, table = int(server.url.rpartition(":")[2]), server.settings("aws")
        masters = {f"RELAY_PERSONAL__MASTERS__AWS__{name.upper()}": value for name, value in table.items()}
        variables = {**CREDENTIALS, **masters, "RELAY_PERSONAL__MASTER": "aws"}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        fleet = start_fleet(handler=PYTHON, variables=variables)
        fleet.query("sea", personal_effects.TABLE)
        with psycopg.connect(fleet.urls["vibespro"]) as connection:
            Outbox("vibespro").add_many(connection, [order("c-1", "o-1"), order("c-2", "o-2")])
    fleet.scheduler()
    fleet.worker()
    waiting = "SELECT last_error, attempts FROM inbox_messages WHERE processed_at IS NULL"
    wait_for("both wait", lambda: len(found := fleet.query("sea", waiting)) == 2 and all(it for it, _ in found))
    for error, attempts in fleet.query("sea", waiting):
        assert "AWS KMS does not answer" in error or "KEY_SERVICE_UNREACHABLE" in error
        assert attempts == 0
    with serving(port):
        wait_for("both are handled", lambda: not fleet.query("sea", waiting))
        wanted = sorted(digest(payload(it)) for it in ("c-1", "c-2"))
        assert sorted(it for (it,) in fleet.query("sea", "SELECT digest FROM seen")) == wanted
