"""The SQL of the hot paths and reads: one statement a file in ``sql/``, named for what it does."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import LiteralString, cast


@cache
def statement(name: str) -> LiteralString:
    """The statement in ``sql/<name>.sql``, without its comment lines; read once per process.

    A file of the package is as trustworthy as a literal, so psycopg takes it as a query.
    """
    text = resources.files("relay.adapters.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return cast("LiteralString", "\n".join(lines).strip())
