"""Find the server programs in installed wheels, without importing the wheels' own Python."""

from __future__ import annotations

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from relay.devstack.errors import missing


def program(wheel: str, name: str) -> Path:
    """Return the absolute path of the file called ``name`` in an installed wheel.

    Raises MissingExtraError when the wheel or this file is missing.
    """
    for file in _installed(wheel).files or []:
        path = Path(str(file.locate())).resolve()
        if file.name == name and path.is_file():
            return path
    raise missing(wheel)


def version(wheel: str) -> str:
    """Return the version of an installed wheel; raises MissingExtraError when it is not installed."""
    return _installed(wheel).version


def _installed(wheel: str) -> Distribution:
    try:
        return distribution(wheel)
    except PackageNotFoundError as error:
        raise missing(wheel) from error
