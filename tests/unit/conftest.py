"""A unit test holds values and rules. It starts no process, opens no socket and reads no file of the repository.

What does belongs to tests/repository, or to tests/integration. The guard looks at what Python itself reports
(`sys.addaudithook`), so nothing gets around it by accident.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2]) + os.sep
#: The product: it may read its own files, as a template or a schema.
PACKAGES = tuple(f"{ROOT}{name}{os.sep}" for name in ("relay", "tasks", "consumer", "scheduler", "chaos"))
#: Not of the repository, though below it.
BESIDE = tuple(f"{ROOT}{name}{os.sep}" for name in (".venv", ".hypothesis", ".pytest_cache"))
#: Who reads source for Python, a traceback, or the constants that Hypothesis tries.
READERS = ("importlib", "linecache.py", f"{os.sep}hypothesis{os.sep}")
FORBIDDEN = {
    "subprocess.Popen": "starts a process",
    "os.exec": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "socket.bind": "opens a socket",
    "socket.connect": "opens a socket",
}
#: Whether a test runs.
_watching = [False]


def of_the_repository(path: str, frame: FrameType | None) -> bool:
    """Whether ``path`` is a file of the repository that neither Python nor the product reads for itself."""
    if not path.startswith(ROOT) or path.startswith(BESIDE) or path.endswith(".pyc"):
        return False
    while frame is not None:
        file = frame.f_code.co_filename
        if any(reader in file for reader in READERS):
            return False
        if file.startswith(ROOT) and not file.startswith(BESIDE):
            return not (file.startswith(PACKAGES) and path.startswith(PACKAGES))
        frame = frame.f_back
    return False


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching[0]:
        return
    if event in FORBIDDEN:
        raise AssertionError(f"a unit test {FORBIDDEN[event]}: {arguments!r:.200}")
    if event == "open" and isinstance(arguments[0], (str, bytes)):
        path = os.fsdecode(arguments[0])
        if of_the_repository(path, sys._getframe(1)):
            raise AssertionError(f"a unit test reads a file of the repository: {path}")


sys.addaudithook(guard)


@pytest.fixture(autouse=True)
def _nothing_outside() -> Iterator[None]:
    _watching[0] = True
    yield
    _watching[0] = False
