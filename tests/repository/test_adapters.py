"""Our sessions read values as psycopg does when it is installed, but for a few kinds."""

from __future__ import annotations

import subprocess
import sys

#: In a process of its own: an application, or a test, may have changed psycopg's.
COMPARED = """
import psycopg
from psycopg.pq import Format
from relay.adapters.postgres.adapters import OURS

oids = [oid for info in psycopg.postgres.types for oid in (info.oid, info.array_oid) if oid]
changed = [
    psycopg.postgres.types[oid].name
    for oid in oids
    for form in (Format.TEXT, Format.BINARY)
    if getattr(OURS.get_loader(oid, form), "__name__", None)
    != getattr(psycopg.adapters.get_loader(oid, form), "__name__", None)
]
print(len(oids), *sorted({*changed}))
"""


def test_our_loaders_are_those_of_psycopg_but_for_a_few() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPARED], capture_output=True, text=True, check=True)
    count, *changed = ran.stdout.split()
    assert int(count) > 100
    assert changed == ["float8", "json", "jsonb", "timestamptz"]
