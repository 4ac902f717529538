"""What tests of the MicroDAO outbox share: a database with the view, and its SQL as the document writes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from relay.adapters.postgres import microdao
from tests.integration.publishing import Relay

SCHEMA: Final = "microdao"
#: Section 4, as it stands there but for the names of the parameters.
INSERT: Final = "INSERT INTO microdao.outbox_events (id, stream, topic, payload) VALUES (%s, %s, %s, %s::jsonb)"
#: Section 5.
FETCH: Final = "SELECT * FROM microdao.outbox_events WHERE processed=false ORDER BY created_at LIMIT 200"


def laid(url: str) -> str:
    """Make the view; answers the address."""
    microdao.lay(url, SCHEMA)
    return url


def connect(url: str) -> psycopg.Connection[dict[str, Any]]:
    return psycopg.connect(url, autocommit=True, row_factory=dict_row)


class Dao:
    """A service of MicroDAO: it knows SQL and the view, and nothing of the relay."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        laid(relay.url)

    @property
    def stream(self) -> str:
        return self.relay.stream

    def topic(self, name: str = "payout.generated") -> str:
        """A topic that this test's stream takes: the server is shared."""
        return f"{self.relay.context}.event.{name}"

    def insert(self, *ids: str, stream: str | None = None, topic: str | None = None, payload: str = "{}") -> None:
        """Commit events, one transaction each."""
        with connect(self.relay.url) as connection:
            for id in ids:
                connection.execute(INSERT, (id, stream or self.stream, topic or self.topic(), payload))

    def rows(self) -> Sequence[dict[str, Any]]:
        """All events as the view shows them, in the order of their numbers."""
        with connect(self.relay.url) as connection:
            query = "SELECT * FROM microdao.outbox_events ORDER BY created_at, id"
            return connection.execute(query).fetchall()

    def row(self, id: str) -> dict[str, Any]:
        with connect(self.relay.url) as connection:
            [row] = connection.execute("SELECT * FROM microdao.outbox_events WHERE id = %s", (id,)).fetchall()
            return row
