"""Which revision of our tables a database has, and which it lacks.

`relay.adapters.postgres.migrations` applies them, with alembic. Here it is not needed: it takes long to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

_FILES: Final = Path(__file__).parent / "migrations" / "versions"


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
    return _known()[-1]


def compared(current: str | None) -> MigrationStatus:
    """Compare a revision, or an empty database (None), with the migrations of this release."""
    known = _known()
    done = 0 if current is None else known.index(current) + 1 if current in known else len(known)
    return MigrationStatus(current, known[-1], known[done:])


@cache
def _known() -> tuple[str, ...]:
    """All revisions, oldest first: the names of their files."""
    return tuple(sorted(file.stem for file in _FILES.glob("[0-9]*.py")))
