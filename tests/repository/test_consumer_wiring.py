"""How a worker puts the parts of a subscription together, by its settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_SUBSCRIPTION: Final = """
[contexts.sea.subscriptions.{name}]
stream = "UP"
durable = "{name}"
filter_subject = "up.{name}"
handler = "http://127.0.0.1:9/handle"
{more}
"""
_CONTEXT: Final = """
[contexts.sea]
database_url = "postgresql://127.0.0.1:9/sea"
[contexts.sea.stream]
name = "SEA"
subjects = ["sea.event.>"]
max_bytes = "1GB"
"""
_ASK: Final = """
from consumer import wiring
print(*[name for name in ("usual", "once", "ordered") if wiring._rows("sea", name).ahead is not None])
"""


def test_messages_for_a_service_are_claimed_ahead_if_their_turn_does_not_matter(tmp_path: Path) -> None:
    subscriptions = {"usual": "", "once": "max_attempts = 1", "ordered": 'order = "key"'}
    parts = [_SUBSCRIPTION.format(name=name, more=more) for name, more in subscriptions.items()]
    file = tmp_path / "relay.toml"
    file.write_text(_CONTEXT + "".join(parts))
    nowhere = {"NATS_URL": "nats://127.0.0.1:9", "REDIS_URL": "redis://127.0.0.1:9/0"}
    environment = {**os.environ, "RELAY_CONFIG": str(file), **nowhere}
    done = subprocess.run(
        [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["usual"]
