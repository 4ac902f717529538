"""The SQL of the hot paths and reads: one statement a file in ``sql/``, named for what it does."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import LiteralString


@cache
def statement(name: str) -> LiteralString:
    """Return the statement in ``sql/<name>.sql`` without its comment lines; each file is read once per process.

    Typed as a literal: a file of the package is as trustworthy as one, and psycopg asks for it.
    """
    text = resources.files("relay.adapters.postgres").joinpath("sql", f"{name}.sql").read_text("utf-8")
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--")).strip()
