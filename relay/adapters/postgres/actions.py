"""The audit log as operators read it, one act of it, and the rows that were counted for an act."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from psycopg.rows import dict_row

from relay.adapters.postgres.bounded import CELL, bounded
from relay.adapters.postgres.paging import Row
from relay.adapters.postgres.pool import Source, query
from relay.adapters.postgres.sql import statement
from relay.domain.errors import UnknownSelection
from relay.domain.operators import Selected
from relay.domain.retention import SELECTIONS_KEPT


class Actions:
    """The audit log. Raises DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def find(self, wanted: Mapping[str, Any]) -> Sequence[Row]:
        """What operators did, the newest first. ``wanted``: the parameters of its statement."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(await bounded(conn, "session/actions", wanted, CELL), wanted)
            return await cursor.fetchall()

    async def deed(self, id: int) -> Row | None:
        """One act with its first hundred rows, and the act that undid it, if one did; None if there is none."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("deeds/deed"), {"id": id})
            return await cursor.fetchone()

    async def rows_of(self, id: int) -> tuple[str, Sequence[str], set[str]] | None:
        """The word for an act, all of its rows, and those that a later act has changed; None if there is none."""
        async with self._source() as conn:
            found = await query(conn, "deeds/rows_of", id=id)
        return next(((action, ids, {*changed}) for action, ids, changed in found), None)

    async def undone_by(self, id: int) -> int | None:
        """The act that has undone another."""
        async with self._source() as conn:
            return next((deed for (deed,) in await query(conn, "deeds/of_undoing", undoes=id)), None)

    # --- the rows that were counted for an act ---

    async def keep(self, selected: Selected) -> UUID:
        """Keep a selection for a day; returns its name."""
        id = uuid4()
        parameters = {
            "id": id,
            "kind": selected.kind,
            "action": selected.action,
            "ids": None if selected.ids is None else [*selected.ids],
            "wanted": None if selected.wanted is None else json.dumps(selected.wanted),
            "kept": SELECTIONS_KEPT,
        }
        async with self._source() as conn:
            await conn.execute(statement("deeds/keep_selection"), parameters)
        return id

    async def selected(self, id: UUID) -> Selected:
        """A selection, and the act that has used it. Raises UnknownSelection."""
        async with self._source() as conn:
            found = await query(conn, "deeds/selection", id=id)
        for kind, action, ids, wanted, deed in found:
            rows = None if ids is None else tuple(ids)
            return Selected(kind=kind, action=action, ids=rows, wanted=wanted, deed=deed)
        raise UnknownSelection("nothing was counted under this name today", field="selection", hint="count again")
