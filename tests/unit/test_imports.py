"""Every module of the product can be imported first: nothing waits in a circle for another to be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("relay", "consumer", "tasks", "scheduler", "jetrelay_pytest", "chaos")
#: A process for each module, forked from one that has loaded what others have written, and nothing of ours.
SCRIPT = """
import importlib, os, sys, traceback
import pytest
import aiohttp, apscheduler.schedulers.asyncio, dramatiq, nats, psycopg, pydantic, redis.asyncio, rich
import sqlalchemy.ext.asyncio, sqlalchemy.orm, structlog, typer
ours = tuple(sys.argv[1].split(","))
assert not [name for name in sys.modules if name.split(".")[0] in ours]
for name in sys.argv[2:]:
    if os.fork() == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f"{name} cannot be imported first")
"""
CONFIG = """
[contexts.sea]
database_url = "postgresql://nobody@127.0.0.1:9/sea"
"""


def modules() -> list[str]:
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    # Migrations are alembic's to load; what is run as a program is not for others to import.
    names = (path.relative_to(ROOT).with_suffix("").parts for path in paths if "versions" not in path.parts)
    return [".".join(parts) for parts in names if parts[-1] not in {"__init__", "__main__", "env"}]


def test_every_module_can_be_imported_by_itself(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG)
    command = [sys.executable, "-c", SCRIPT, ",".join(PACKAGES), *modules()]
    environment = {"PATH": os.environ["PATH"], "RELAY_CONFIG": str(config)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
