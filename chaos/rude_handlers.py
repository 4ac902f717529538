"""What the Python handlers of a run do to others while a file in the directory of the records asks for it.

Some leave settings, locks and tables behind in the session that they were lent. Others fail with exceptions that
are no `Exception`. A handler that was asked to leave something looks first for what another one has left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from uuid import UUID

#: While this file is there, each call leaves something behind.
LEAVING: Final = "leaving"
#: While this file is there, a call that has to fail raises one of `RAISED`.
RAISING: Final = "raising"


class TimeIsUp(BaseException):
    """As libraries have for their time limits: nobody should catch it by accident."""


RAISED: Final[tuple[type[BaseException], ...]] = (KeyboardInterrupt, SystemExit, GeneratorExit, TimeIsUp)
#: Tells the locks that handlers leave from those of the relay; `FOUND` names it, too.
_LOCKS: Final = 1_129_270_616
#: What a function may leave. None of it disturbs the transaction that leaves it.
LEFT: Final = (
    "SET work_mem = '128kB'",
    "SET TimeZone = 'Pacific/Chatham'",
    "SELECT set_config('chaos.left', 'yes', false)",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SELECT pg_advisory_lock(%(locks)s, %(number)s)",
    "CREATE TEMP TABLE chaos_left ()",
    "LISTEN chaos_left",
    "DECLARE chaos_left CURSOR WITH HOLD FOR SELECT 1",
)
#: A name for each of them that is there; an empty text if none is.
FOUND: Final = """
SELECT concat_ws(', ',
  (SELECT string_agg(name, ', ') FROM pg_settings
   WHERE name IN ('work_mem', 'TimeZone') AND setting <> reset_val),
  CASE WHEN current_setting('chaos.left', true) <> '' THEN 'chaos.left' END,
  CASE WHEN current_setting('transaction_read_only')::bool THEN 'READ ONLY' END,
  (SELECT min('a lock') FROM pg_locks
   WHERE locktype = 'advisory' AND classid = 1129270616 AND pid = pg_backend_pid()),
  (SELECT min('a table') FROM pg_class WHERE relnamespace = pg_my_temp_schema() AND relkind = 'r'),
  (SELECT min('LISTEN') FROM pg_listening_channels()),
  (SELECT min('a cursor') FROM pg_cursors WHERE is_holdable))
"""


def asked(directory: str | None, what: str) -> bool:
    """Whether a file asks for it now. ``directory``: of the records; None: nobody can ask."""
    return directory is not None and (Path(directory) / what).exists()


def leave(message_id: UUID) -> tuple[str, dict[str, int]]:
    """Return the statement that a call leaves something with, and its values: another one for each message."""
    return LEFT[message_id.int % len(LEFT)], {"locks": _LOCKS, "number": message_id.int % 2**31}


def raised_by(message_id: UUID | str, attempt: int) -> type[BaseException]:
    """Return what a call that has to fail raises."""
    return RAISED[(UUID(str(message_id)).int + attempt) % len(RAISED)]
