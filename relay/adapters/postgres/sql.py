"""The SQL of the hot paths and reads: one file in ``sql/`` for each statement."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import LiteralString


@cache
def statement(name: str) -> LiteralString:
    """Return the statement in ``sql/<name>.sql``, for example ``outbox/claim``, without its comment lines.

    ``inbox/claim+in_turn``: with the text of ``inbox/in_turn.sql`` where ``claim.sql`` has a line ``--+ in_turn``.
    Each file is read once per process. The type is that of a literal, because psycopg requires one. A file of the
    package is as safe as a literal.
    """
    name, _, part = name.partition("+")
    text = _file(name)
    if part:
        text = text.replace(f"--+ {part}\n", _file(f"{name.rpartition('/')[0]}/{part}"))
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()


def _file(name: str) -> LiteralString:
    return resources.files("relay.adapters.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")
