"""`relay tasks`: look at background tasks, cancel those that have not begun, run failed ones again."""

from __future__ import annotations

from typing import Final

from relay.cli.rows import group_of
from relay.ops.kinds import TASKS

app: Final = group_of(TASKS)
