"""Sequences that stand below the numbers of their tables (``schema/sequences.sql``): seen, and set forward."""

from __future__ import annotations

from collections.abc import Sequence

from relay.adapters.postgres.pool import Source, query
from relay.domain.facts import FactSink, SequencesMended


async def mend_sequences(context: str, source: Source, facts: FactSink) -> Sequence[str]:
    """Set them above their tables, and return their names. Repeatable. Raises DatabaseUnreachable."""
    async with source() as conn:
        [(names,)] = await query(conn, "server/mend_sequences")
    if names:
        facts(SequencesMended(context=context, names=names))
    return list(names)


async def sequences_behind(source: Source) -> Sequence[str]:
    """The names of the sequences that stand below the numbers of their tables. Raises DatabaseUnreachable."""
    async with source() as conn:
        return [name for name, *_ in await query(conn, "server/sequences")]
