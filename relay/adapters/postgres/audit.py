"""The audit log, written in the transaction of the action that it records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.adapters.postgres.inbox import clean
from relay.adapters.postgres.pool import Connection
from relay.adapters.postgres.sql import statement
from relay.domain.operators import Operator


@dataclass(slots=True)
class Audit:
    """An operator's open transaction."""

    conn: Connection

    @staticmethod
    def who(by: Operator) -> dict[str, str | None]:
        """Return the operator as parameters of a statement."""
        return {"actor": clean(by.actor), "note": None if by.note is None else clean(by.note)}

    async def audit(self, action: str, ids: Sequence[str], by: Operator) -> None:
        parameters = {"action": action, "ids": list(ids), **self.who(by)}
        await self.conn.execute(statement("session/write_audit"), parameters)
