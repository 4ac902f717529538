"""How processes authenticate to servers and handlers, and how they verify these."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Annotated, Final
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from relay.settings.problems import KeyPath, SettingProblem
from relay.settings.section import Section
from relay.settings.urls import WebhookUrl, split_urls
from relay.settings.values import AbsolutePath, only

_MAX_PREFIX_CHARS: Final = 100
_INBOX_PREFIX = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
#: Headers that a call always has, or that control the connection.
_OUR_HEADERS: Final = {
    "accept-encoding",
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "relay-attempt",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
    "x-correlation-id",
}


def _token(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not (text.isascii() and text.isprintable()) or text != text.strip():
        raise ValueError("must be of printable ASCII characters, with no space around it")
    return secret


def _header_name(value: str) -> str:
    name = value.lower()
    if not _HEADER.fullmatch(name):
        raise ValueError(f"{value[:80]!r} is not the name of a header")
    if name in _OUR_HEADERS:
        raise ValueError(f"{name} has another meaning; use authorization or one like x-api-key")
    return name


def _signing_secret(secret: SecretStr) -> SecretStr:
    for key in secret.get_secret_value().split():
        try:
            base64.b64decode(key.removeprefix("whsec_") if key.startswith("whsec_") else "")
        except ValueError:
            raise ValueError("a key that starts with whsec_ is not base64 after that") from None
    return secret


Token = Annotated[SecretStr, Field(min_length=1), AfterValidator(_token)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
InboxPrefix = Annotated[
    str,
    only(
        lambda value: _INBOX_PREFIX.fullmatch(value) and len(value) <= _MAX_PREFIX_CHARS,
        "is not a prefix for inboxes; write tokens of A-Z a-z 0-9 _ - with dots between",
    ),
]


class TlsSettings(Section):
    """PEM files: the authority to trust instead of the system's, and the client's certificate with its key.

    The file of the ``certificate`` may also contain the ``key``.
    """

    ca: AbsolutePath | None = None
    certificate: AbsolutePath | None = None
    key: AbsolutePath | None = None


class NatsSettings(TlsSettings):
    """How we authenticate to NATS: at most one of user and password, token, ``credentials`` and ``nkey``.

    ``credentials`` is a creds file with a JWT and a seed. ``nkey`` is a file with a seed. ``tls_first``: begin
    with TLS, for a server with ``handshake_first``. ``inbox_prefix``: the subject prefix for answers. Users who
    share an account but must not read each other's answers need different prefixes. ``monitor``: the URL of the
    server's HTTP monitoring, for `relay health`.
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
    """An ACL user and its password, if the URL holds none. A password alone is for the user ``default``."""

    user: str | None = Field(default=None, min_length=1)
    password: SecretStr | None = Field(default=None, min_length=1)


class HttpSettings(TlsSettings):
    """A service that we call.

    ``token`` goes into ``token_header``. In ``authorization`` it follows ``Bearer``, unless it holds a space
    (``Basic …``). In any other header it stands alone.
    """

    signing_secret: Annotated[SecretStr, Field(min_length=1), AfterValidator(_signing_secret)] | None = None
    token: Token | None = None
    token_header: HeaderName = "authorization"  # noqa: S105 - a name


# --- rules: one way to authenticate, and no key without effect ---

Problems = Iterator[SettingProblem]

_TLS_KEYS: Final = tuple(TlsSettings.model_fields)
_WAYS: Final = ("user", "token", "credentials", "nkey")


def check_nats(nats: NatsSettings, url: str) -> Problems:
    """Return the problems of the table ``nats`` beside ``nats_url``."""
    ways = [key for key in _WAYS if getattr(nats, key) is not None]
    if len(ways) > 1:
        yield SettingProblem(
            ("nats", ways[1]), f"is set together with {ways[0]}", "use only one way to authenticate"
        )
    elif ways and any(map(_names_user, split_urls(url))):
        yield SettingProblem(
            ("nats", ways[0]), "is set together with a user or token in nats_url", "give one of them"
        )
    yield from _beside(("nats",), nats, "password", "user")
    yield from _beside(("nats",), nats, "user", "password")
    if url.strip().startswith("ws://"):
        yield from _without_tls(("nats",), nats, "wss://")
    yield from _beside(("nats",), nats, "certificate", "key")


def check_redis(redis: RedisSettings, url: str) -> Problems:
    """Return the problems of the table ``redis`` beside ``redis_url``."""
    for key in ("user", "password"):
        if getattr(redis, key) is not None and _names_user(url):
            yield SettingProblem(
                ("redis", key), "is set together with a user or password in redis_url", "give one of them"
            )
    yield from _beside(("redis",), redis, "password", "user")
    if not url.startswith("rediss://"):
        yield from _without_tls(("redis",), redis, "rediss://")
    yield from _beside(("redis",), redis, "certificate", "key")


def _names_user(url: str) -> bool:
    parts = urlsplit(url)
    return parts.username is not None or parts.password is not None


def check_http(path: KeyPath, section: HttpSettings, url: str, what: str) -> Problems:
    """Return the problems of the credentials for the service at ``url``; ``what``: the key that names it."""
    if not url:
        for key in sorted(section.model_fields_set & HttpSettings.model_fields.keys()):
            yield SettingProblem((*path, key), f"has no effect: there is no {what}")
        return
    if not url.startswith("https://"):
        yield from _without_tls(path, section, "https://")
    if section.token is None and "token_header" in section.model_fields_set:
        yield SettingProblem((*path, "token"), "is required if token_header is set")
    yield from _beside(path, section, "certificate", "key")


def _without_tls(path: KeyPath, section: TlsSettings, scheme: str) -> Problems:
    for key in _TLS_KEYS:
        if getattr(section, key) is not None:
            yield SettingProblem((*path, key), f"is only for {scheme}")


def _beside(path: KeyPath, section: TlsSettings, missing: str, given: str) -> Problems:
    if getattr(section, given) is not None and getattr(section, missing) is None:
        yield SettingProblem((*path, missing), f"is required beside {given}")
