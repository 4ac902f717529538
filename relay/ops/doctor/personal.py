"""Whether a person who was forgotten in one context is known in another: a restored backup brings keys back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final

from relay.adapters.postgres.pool import connected, query
from relay.domain.disclosure import clean
from relay.domain.errors import RelayError
from relay.domain.findings import Finding, error
from relay.settings import ContextSettings

#: So many persons, those who were forgotten last, are looked for, and so many are named.
_MOST: Final = 10_000
_NAMED: Final = 3


async def remembered(contexts: Mapping[str, ContextSettings]) -> list[Finding]:
    """What is found in all contexts. One that does not answer has a finding of its own elsewhere."""
    times: dict[str, datetime] = {}
    for context in contexts.values():
        with suppress(RelayError):
            async with connected(context.database, "doctor") as source, source() as conn:
                for subject, at in await query(conn, "personal/forgotten", limit=_MOST):
                    times[subject] = max(at, times.get(subject, at))
    if not times:
        return []
    known: dict[str, list[str]] = {}
    asked = {"subjects": [*times], "times": [*times.values()]}
    for name, context in contexts.items():
        with suppress(RelayError):
            async with connected(context.database, "doctor") as source, source() as conn:
                known[name] = [subject for (subject,) in await query(conn, "personal/remembered", **asked)]
    return [*_findings(known)]


def _findings(known: Mapping[str, list[str]]) -> Iterator[Finding]:
    for name, subjects in known.items():
        if subjects:
            names = ", ".join(map(clean, subjects[:_NAMED]))
            more = f" and {len(subjects) - _NAMED} more" if len(subjects) > _NAMED else ""
            yield error(
                "SUBJECT_REMEMBERED",
                f"context {name}",
                f"persons were forgotten elsewhere, and have older keys here: {names}{more}",
                f"relay forget {clean(subjects[0])}",
            )
