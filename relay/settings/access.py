"""How processes prove who they are to the servers and handlers, and by what these prove who they are."""

from __future__ import annotations

import base64
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from relay.settings.section import Section
from relay.settings.values import AbsolutePath, HeaderName, InboxPrefix, Token, WebhookUrl
from relay.tls import TlsFiles


def _signing_secret(secret: SecretStr) -> SecretStr:
    for key in secret.get_secret_value().split():
        try:
            base64.b64decode(key.removeprefix("whsec_") if key.startswith("whsec_") else "")
        except ValueError:
            raise ValueError("a key that starts with whsec_ is not base64 behind it") from None
    return secret


class TlsSettings(Section):
    """PEM files: the authority to trust instead of the system's, and the certificate to show, with its key."""

    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None

    @property
    def tls_files(self) -> TlsFiles:
        """The files as values."""
        return TlsFiles(self.ca, self.certificate, self.key)


class NatsSettings(TlsSettings):
    """Whom NATS takes us for: one of user and password, token, ``credentials`` and ``nkey`` at most.

    ``credentials`` is a creds file, with a JWT and a seed, ``nkey`` a file with a seed. ``tls_first``: begin with
    TLS, as a server with ``handshake_first`` wants it. ``inbox_prefix``: below which answers arrive; users who
    share an account and must not read each other's have one each. ``monitor``: where the server tells of itself
    over HTTP, for `relay health`.
    """

    user: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = Field(default=None, min_length=1)
    token: SecretStr | None = Field(default=None, min_length=1)
    credentials: AbsolutePath | None = None
    nkey: AbsolutePath | None = None
    tls_first: bool = False
    inbox_prefix: InboxPrefix = "_INBOX"
    monitor: WebhookUrl | None = None


class RedisSettings(TlsSettings):
    """An ACL user and its password, where the URL holds none. A password alone is that of the user ``default``."""

    user: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = Field(default=None, min_length=1)


class HttpSettings(TlsSettings):
    """A service that is called.

    ``token`` goes into ``token_header``: behind ``Bearer`` in ``authorization``, unless it holds a space
    (``Basic …``), and as it stands in any other header.
    """

    signing_secret: Annotated[SecretStr, Field(min_length=1), AfterValidator(_signing_secret)] | None = None
    token: Token | None = None
    token_header: HeaderName = "authorization"  # noqa: S105 - a name
