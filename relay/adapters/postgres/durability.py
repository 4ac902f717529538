"""The settings under which PostgreSQL may lose committed rows."""

from __future__ import annotations

from typing import Final

import psycopg

from relay.adapters.postgres.pool import reaching

#: The oldest major version that this release is tested with.
TESTED: Final = 18
_ASK: Final = """\
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'server_version', 'server_version_num')
"""
_OFF: Final = {
    "fsync": "fsync is off: a crash of the machine loses or damages what was committed",
    "full_page_writes": "full_page_writes is off: a crash of the machine may damage the tables",
    "synchronous_commit": "synchronous_commit is off: a crash loses the last transactions that were committed",
}


def risks(url: str) -> list[str]:
    """Return what endangers committed rows, one sentence each. Raises DatabaseUnreachable."""
    with reaching(), psycopg.connect(url, connect_timeout=5, application_name="jetrelay-health") as connection:
        found: dict[str, str] = dict(connection.execute(_ASK).fetchall())
    told = [sentence for name, sentence in _OFF.items() if found.get(name) == "off"]
    if int(found["server_version_num"]) // 10_000 < TESTED:
        told.append(f"PostgreSQL {found['server_version']} is older than what is tested: {TESTED}")
    return told
