"""Certificates from files: which authorities a connection trusts, and how the client proves its identity."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from relay.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. ``ca`` replaces the system's authorities. The ``certificate`` file may also contain the key."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def __bool__(self) -> bool:
        """Whether any of them is given."""
        return bool(self.ca or self.certificate or self.key)

    def context(self) -> ssl.SSLContext:
        """The TLS context of a client that checks the server's certificate and host name.

        Raises ConfigurationError for a file that cannot be used; ``field`` is ``ca``, ``certificate`` or ``key``.
        """
        if self.ca is not None:
            _readable("ca", self.ca)
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError as error:
            raise ConfigurationError(f"{self.ca} holds no certificate in PEM form", field="ca") from error
        if self.certificate is not None:
            self._prove(context, self.certificate)
        return context

    def _prove(self, context: ssl.SSLContext, certificate: Path) -> None:
        _readable("certificate", certificate)
        if self.key is not None:
            _readable("key", self.key)
        try:
            # Without a password argument, OpenSSL would ask at the terminal and wait.
            context.load_cert_chain(certificate, self.key, password="")
        except ssl.SSLError as error:
            key = self.key or certificate
            raise ConfigurationError(
                f"{certificate} and {key} are no certificate and its key in PEM form",
                field="certificate",
                hint="the key must belong to the certificate and must not be encrypted",
            ) from error


def _readable(field: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", field=field) from error
