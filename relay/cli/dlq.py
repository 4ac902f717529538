"""`relay dlq`: look at dead letters, and decide about them. Nothing is requeued automatically."""

from __future__ import annotations

from typing import Final

from relay.cli.rows import group_of
from relay.ops.kinds import DEAD_LETTERS

app: Final = group_of(DEAD_LETTERS)
