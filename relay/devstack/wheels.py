"""Find the server programs in installed wheels, without importing the wheels' own Python."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from relay.devstack.errors import missing


def program(wheel: str, name: str) -> Path:
    """Return the absolute path of the file called ``name`` in an installed wheel.

    Raises MissingExtraError when the wheel or this file is missing.
    """
    try:
        files = distribution(wheel).files or []
    except PackageNotFoundError as error:
        raise missing(wheel) from error
    for file in files:
        path = Path(str(file.locate())).resolve()
        if file.name == name and path.is_file():
            return path
    raise missing(wheel)


def version(wheel: str) -> str:
    """Return the version of an installed wheel; raises MissingExtraError when it is not installed."""
    try:
        return distribution(wheel).version
    except PackageNotFoundError as error:
        raise missing(wheel) from error
