"""docs/reference/tables.md has every table and column of a migrated database, with type and default."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

from tests.integration import catalogue

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tables.md").read_text()
TABLES = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
SHORT = {"timestamp with time zone": "time", "by default as identity": "identity"}


def test_all_tables_are_there(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        names = sorted([*(name for name, _ in TABLES), "relay_alembic_version"])
        assert names == catalogue.tables(conn)


def test_each_has_the_columns_that_the_page_has(database_url: str) -> None:
    for table, section in TABLES:
        lines = re.findall(r"^\| `(\w+)` \| ([^;|]*?)(?:; (.*?))? \| (.+) \|$", section, re.MULTILINE)
        listed = [(name, kind, default.strip("` ")) for name, kind, default, _ in lines]
        with psycopg.connect(database_url) as conn:
            columns = catalogue.columns(conn, table).items()
        assert listed == [
            (name, SHORT.get(kind, kind), "null" if null else SHORT.get(default or "", default or ""))
            for name, (kind, null, default) in columns
        ], table
        assert all(default is None for _, (_, null, default) in columns if null), table
