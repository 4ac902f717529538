"""Turns settings into the credentials and certificates of connections, the same for all processes and commands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import unquote, urlsplit

from nats.js import JetStreamContext
from pydantic import SecretStr

from relay.adapters.http import HttpAccess
from relay.adapters.jetstream.connection import connect_once, servers
from relay.adapters.jetstream.credentials import creds_options, nkey_options
from relay.domain.errors import ConfigurationError
from relay.settings import HttpSettings, Settings
from relay.tls import TlsFiles


def jetstream(settings: Settings) -> AbstractAsyncContextManager[JetStreamContext]:
    """JetStream for one command; see `connect_once`. Raises what `nats_options` raises."""
    return connect_once(settings.nats_url.get_secret_value(), **nats_options(settings))


def nats_options(settings: Settings) -> dict[str, Any]:
    """The arguments of ``nats.connect`` other than the addresses.

    Raises ConfigurationError for a file that cannot be used, and MissingExtraError if a package is missing.
    """
    nats = settings.nats
    options: dict[str, Any] = {"inbox_prefix": nats.inbox_prefix, "tls_handshake_first": nats.tls_first}
    if nats.tls_files:
        options["tls"] = _in("nats", nats.tls_files.context)
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
    if redis.tls_files:
        _in("redis", redis.tls_files.context)
        files = {"ssl_ca_certs": redis.ca, "ssl_certfile": redis.certificate, "ssl_keyfile": redis.key}
        options |= {name: str(path) for name, path in files.items() if path is not None}
    return options


def http_access(section: HttpSettings, where: str) -> HttpAccess:
    """How calls to a service authenticate. Raises ConfigurationError for a file that cannot be used.

    ``where``: the table of relay.toml, for the error message.
    """
    files: TlsFiles = section.tls_files
    return HttpAccess(
        signing_secret=_plain(section.signing_secret),
        token=_plain(section.token),
        token_header=section.token_header,
        tls=_in(where, files.context) if files else None,
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


def _in(table: str, make: Callable[[], Any]) -> Any:
    """Put the table before the key that an error names."""
    try:
        return make()
    except ConfigurationError as error:
        raise ConfigurationError(error.message, field=f"{table}.{error.field}", hint=error.hint) from error
