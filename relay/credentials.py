"""Turns settings into the credentials and TLS contexts of connections, the same for all processes and commands."""

from __future__ import annotations

import ssl
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from nats.js import JetStreamContext
from pydantic import SecretStr

from relay.adapters.http import HttpAccess
from relay.adapters.jetstream.client import servers
from relay.adapters.jetstream.connection import connect_once
from relay.adapters.jetstream.credentials import creds_options, nkey_options
from relay.domain.errors import ConfigurationError
from relay.settings import HttpSettings, Settings, TlsSettings


def jetstream(settings: Settings) -> AbstractAsyncContextManager[JetStreamContext]:
    """JetStream for one command; see `connect_once`. Raises what `nats_options` raises."""
    return connect_once(settings.nats_url.get_secret_value(), **nats_options(settings))


def nats_options(settings: Settings) -> dict[str, Any]:
    """The arguments of ``nats.connect`` other than the addresses.

    Raises ConfigurationError for a file that cannot be used, and MissingExtraError if a package is missing.
    """
    nats = settings.nats
    options: dict[str, Any] = {"inbox_prefix": nats.inbox_prefix, "tls_handshake_first": nats.tls_first}
    if tls := tls_context(nats, "nats"):
        options["tls"] = tls
    if nats.user is not None:
        options |= {"user": nats.user, "password": _plain(nats.password)}
    elif nats.token is not None:
        options["token"] = _plain(nats.token)
    elif nats.credentials is not None:
        options |= creds_options(nats.credentials)
    elif nats.nkey is not None:
        options |= nkey_options(nats.nkey)
    else:
        options |= _of_url(settings.nats_url.get_secret_value())
    return options


def redis_options(settings: Settings) -> dict[str, Any]:
    """The arguments of ``Redis.from_url`` other than the URL. Raises ConfigurationError for an unusable file."""
    redis, options = settings.redis, dict[str, Any]()
    if redis.password is not None:
        options |= {"username": redis.user, "password": _plain(redis.password)}
    if tls_context(redis, "redis"):
        files = {"ssl_ca_certs": redis.ca, "ssl_certfile": redis.certificate, "ssl_keyfile": redis.key}
        options |= {name: str(path) for name, path in files.items() if path is not None}
    return options


def http_access(section: HttpSettings, where: str) -> HttpAccess:
    """How calls to a service authenticate. Raises ConfigurationError for a file that cannot be used.

    ``where``: the table of relay.toml, for the error message.
    """
    return HttpAccess(
        signing_secret=_plain(section.signing_secret),
        token=_plain(section.token),
        token_header=section.token_header,
        tls=tls_context(section, where),
    )


def _of_url(url: str) -> dict[str, str]:
    """The user and password, or the token, of the URL, decoded. nats-py would not decode %40 to an @."""
    parts = [urlsplit(server) for server in servers(url)]
    if len({(part.username, part.password) for part in parts}) > 1 or parts[0].username is None:
        return {}
    user, password = unquote(parts[0].username), parts[0].password
    return {"token": user} if password is None else {"user": user, "password": unquote(password)}


def _plain(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


# --- TLS ---


def tls_context(section: TlsSettings, where: str) -> ssl.SSLContext | None:
    """The TLS context of a client that checks the server's certificate and host name. None if no file is given.

    ``where``: the table of relay.toml, for the error message. Raises ConfigurationError for a file that cannot be
    used.
    """
    if section.ca is section.certificate is section.key is None:
        return None
    if section.ca is not None:
        _check_readable(section.ca, f"{where}.ca")
    try:
        context = ssl.create_default_context(cafile=section.ca)
    except ssl.SSLError as error:
        raise ConfigurationError(f"{section.ca} holds no certificate in PEM form", field=f"{where}.ca") from error
    if section.certificate is not None:
        _load_certificate(context, section.certificate, section.key, where)
    return context


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path | None, where: str) -> None:
    _check_readable(certificate, f"{where}.certificate")
    if key is not None:
        _check_readable(key, f"{where}.key")
    try:
        # Without a password argument, OpenSSL would ask at the terminal and wait.
        context.load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        raise ConfigurationError(
            f"{certificate} and {key or certificate} are no certificate and its key in PEM form",
            field=f"{where}.certificate",
            hint="the key must belong to the certificate and must not be encrypted",
        ) from error


def _check_readable(path: Path, field: str) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}", field=field) from error
