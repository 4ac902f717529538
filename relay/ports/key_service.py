"""The port of a service that keeps what opens master keys."""

from __future__ import annotations

from typing import Protocol

from relay.domain.personal import SealedKey


class KeyService(Protocol):
    """It may be asked by any thread, and blocks for a few seconds at most."""

    def open(self, name: str, sealed: SealedKey) -> bytes:
        """The master key of this name, which is bound to what is sealed.

        Raises KeyServiceUnreachable, and MasterKeyMissing if the service refuses.
        """
