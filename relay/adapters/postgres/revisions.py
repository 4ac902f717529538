"""Which revision of our tables a database has, and which it lacks.

`relay.adapters.postgres.migrations` applies them, with alembic. Here it is not needed: it takes long to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from relay.domain.errors import SchemaUnsupported

FILES: Final = Path(__file__).parent / "migrations" / "versions"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """The revision of a database, the newest one, and those that the database lacks, oldest first.

    ``current`` is None in a database without our tables. If this release does not know ``current``, a newer
    release made it, and nothing is pending.
    """

    current: str | None
    head: str
    pending: tuple[str, ...]


def newest() -> str:
    """Return the newest revision that this release knows."""
    return in_order()[-1]


def compared(current: str | None, further: Path | None = None) -> MigrationStatus:
    """Compare a revision, or an empty database (None), with the migrations of this release.

    ``further``: a folder of revisions that follow ours. Raises SchemaUnsupported if the revision is older than the
    first release.
    """
    order = in_order(further)
    if current is None:
        done = 0
    elif current in order:
        done = order.index(current) + 1
    elif current < order[0]:
        raise SchemaUnsupported(
            f"its tables are at revision {current}, older than the first release",
            hint="no upgrade leads from there: empty the database (or the schema), and run: relay db upgrade",
        )
    else:
        done = len(order)
    return MigrationStatus(current, order[-1], order[done:])


@cache
def in_order(further: Path | None = None) -> tuple[str, ...]:
    """All revisions, oldest first: the names of their files."""
    folders = (FILES,) if further is None else (FILES, further)
    return tuple(sorted(file.stem for folder in folders for file in folder.glob("[0-9]*.py")))
