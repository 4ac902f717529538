"""`relay inbox`: look at messages in the inbox, and try now those that wait for their next attempt."""

from __future__ import annotations

from typing import Final

from relay.cli.rows import group_of
from relay.ops.kinds import MESSAGES

app: Final = group_of(MESSAGES)
