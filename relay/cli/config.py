"""`relay config`: the values in force, and their sources."""

from __future__ import annotations

import json

from relay.cli.options import JsonOption
from relay.settings import effective, load_settings


def config(as_json: JsonOption = False) -> None:
    """Print every value in force and its source: default, line of relay.toml, or variable. No secrets."""
    rows = effective(load_settings())
    if as_json:
        print(json.dumps([dict(zip(("key", "value", "source"), row, strict=True)) for row in rows], indent=2))
        return
    keys = max(len(key) for key, _, _ in rows)
    values = max(len(value) for _, value, _ in rows)
    for key, value, source in rows:
        print(f"{key:<{keys}}  {value:<{values}}  {source}")
