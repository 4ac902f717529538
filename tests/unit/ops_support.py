"""Users of the HTTP API, for tests: one of each kind."""

from __future__ import annotations

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("reader", "operator", "auditor")}
USERS = {
    "reader": {"token": TOKENS["reader"]},
    "operator": {"token": TOKENS["operator"], "role": "operate"},
    "auditor": {"token": TOKENS["auditor"], "payloads": True},
}
