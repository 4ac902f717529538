"""Every module of the product can be imported first: nothing waits in a circle for another to be loaded."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("relay", "consumer", "tasks", "scheduler", "jetrelay_pytest", "chaos")
CONFIG = """
[contexts.sea]
database_url = "postgresql://nobody@127.0.0.1:9/sea"
"""


def modules() -> dict[str, Path]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    # Migrations are alembic's to load; what is run as a program is not for others to import.
    programs = {"__main__", "env"}
    paths = [path for path in paths if path.stem.isidentifier() and path.stem not in programs]
    return {_name(path): path for path in paths}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """What these statements import as they are executed: not what functions import, nor what only types need."""
    for statement in body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                pass
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                yield from imported(statement.orelse)
            case ast.Import():
                yield from (alias.name for alias in statement.names)
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in statement.names)
            case _:
                for field in ("body", "orelse", "finalbody", "handlers"):
                    yield from imported(getattr(statement, field, []))


def above(name: str) -> set[str]:
    """The packages that begin to be loaded before a module is."""
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def needed(name: str, asked: set[str], all_names: set[str]) -> set[str]:
    """What must be loaded before a module is. Its own packages count only if it takes something out of them."""
    found = {module for one in asked & all_names for module in (one, *above(one))}
    taken = {one.rpartition(".")[0] for one in asked - all_names}
    return (found - above(name) | taken & above(name)) & all_names - {name}


def test_no_module_waits_for_one_that_waits_for_it() -> None:
    """So each can be the first that a process imports. The error names those that wait for each other."""
    paths = modules()
    asked = {name: {*imported(ast.parse(path.read_text()).body)} for name, path in paths.items()}
    order = TopologicalSorter({name: needed(name, it, {*paths}) for name, it in asked.items()})
    order.prepare()


def test_all_modules_can_be_imported(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(CONFIG)
    names = sorted(modules())
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(f"import {name}" for name in ["pytest", *names])],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "RELAY_CONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
