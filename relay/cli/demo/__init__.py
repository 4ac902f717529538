"""`relay demo`: events flow from a business transaction to a handler, and the accounts are checked."""

from relay.cli.demo.command import demo

__all__ = ["demo"]
