"""Addresses in settings: checked, and shown without their credentials."""

from __future__ import annotations

import re
from typing import Annotated, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, SecretStr

from relay.settings.values import is_module, only

_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*")
_SHOWN: Final = re.compile(r"[A-Za-z0-9._~:%/,\[\]-]*")
#: A name or an address. An empty label, a space or a star is none.
_HOST: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*|[0-9a-fA-F:.%]*:[0-9a-zA-Z:.%]*")
_PORT: Final = re.compile(r":[0-9]+$")
#: The comma between two servers of a cluster. Any other comma may be part of a password.
_NEXT_URL = re.compile(r",(?=\s*(?:nats|tls|wss?)://)", re.IGNORECASE)


def split_urls(value: str) -> list[str]:
    """Split a list of the servers of a cluster, each with its scheme."""
    return [url.strip() for url in _NEXT_URL.split(value)]


def hide_url(value: str) -> str:
    """Show where a URL points, without user, password and query.

    Parts that cannot be separated for certain are hidden too. Only NATS has lists of URLs. In other URLs a comma
    separates hosts, or is part of a password.
    """
    return ",".join(map(_hide_one, split_urls(value) if _NEXT_URL.match(f",{value}") else [value]))


def _hide_one(url: str) -> str:
    scheme, separator, rest = url.strip().partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return "***"
    # A password may hold any of these characters without encoding. It ends at the last @.
    credentials, at, shown = rest.rpartition("@")
    host, query, _ = shown.partition("?")
    if "?" in credentials or "#" in credentials or not _SHOWN.fullmatch(host):
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if at else ''}{host}{'?***' if query else ''}"


def with_search_path(url: str, *schemas: str) -> str:
    """The address of a database whose connections look for tables in these schemas; unchanged if there are none.

    It is the last option, and so the stronger one, beside those that the address has.
    """
    if not schemas:
        return url
    option = quote(f"-csearch_path={','.join(schemas)}", safe="")
    address, _, query = url.partition("?")
    others = [part for part in query.split("&") if part]
    given = [part for part in others if part.startswith("options=")]
    merged = "%20".join([*(part.removeprefix("options=") for part in given), option])
    return f"{address}?{'&'.join([*(part for part in others if part not in given), f'options={merged}'])}"


def database_of(url: str) -> tuple[str, str]:
    """The servers and the name of a database: the same for each spelling of its address, and for all users."""
    address, _, query = url.partition("?")
    options = dict(parse_qsl(query))
    credentials, _, place = address.partition("://")[2].rpartition("@")
    hosts, _, name = place.partition("/")
    user = options.get("user") or unquote(credentials.partition(":")[0])
    ports = options.get("port", "5432").split(",")
    servers = [
        host if _PORT.search(host) else f"{host or 'localhost'}:{ports[min(place, len(ports) - 1)]}"
        for place, host in enumerate((options.get("host") or unquote(hosts)).lower().split(","))
    ]
    return ",".join(sorted(servers)), options.get("dbname") or unquote(name) or user


def _check_url(value: str, schemes: tuple[str, ...]) -> None:
    expected = " or ".join(f"{scheme}://" for scheme in schemes)
    try:
        parts = urlsplit(value)
        usable = bool(parts.hostname) or parts.scheme in ("unix", "postgresql")
        _ = parts.port  # out of range or not a number: ValueError
    except ValueError:
        raise ValueError(f"is not a URL; it must look like {schemes[0]}://host:port") from None
    if "://" not in value or parts.scheme not in schemes:
        raise ValueError(f"must start with {expected}")
    if not usable:
        raise ValueError("names no host")


def _database_url(secret: SecretStr) -> SecretStr:
    # psycopg does not know "+psycopg", and SQLAlchemy does not know "postgres://". Use one spelling for both.
    url = re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", secret.get_secret_value().strip())
    # libpq allows host1:port1,host2:port2, which other parsers refuse as a port. Check only the first.
    _check_url(re.sub(r",[^/?]*", "", url), ("postgresql",))
    # Libraries disagree on where such a password ends. One that reads it as a host would show it in messages.
    address, _, query = url.partition("?")
    hosts, _, name = address.partition("://")[2].partition("/")
    if hosts.count("@") > 1 or "@" in name or not all("=" in part for part in query.split("&") if part):
        raise ValueError("must have its password percent-encoded: %40 for @, %2F for /, %3F for ?, %23 for #")
    return SecretStr(url)


def _nats_url(secret: SecretStr) -> SecretStr:
    for url in split_urls(secret.get_secret_value()):
        _check_url(url, ("nats", "tls", "ws", "wss"))
    return secret


def _of_schemes(*schemes: str) -> AfterValidator:
    def check(secret: SecretStr) -> SecretStr:
        _check_url(secret.get_secret_value(), schemes)
        return secret

    return AfterValidator(check)


def _leads_somewhere(secret: SecretStr) -> SecretStr:
    """Refuse what can never be reached, or would never be sent as it is written."""
    parts = urlsplit(secret.get_secret_value())
    host = (parts.hostname or "").rstrip(".")
    if parts.port == 0 or not _HOST.fullmatch(host) or host.split(".")[-1] == "invalid":
        raise ValueError("can never be reached: its host or port cannot exist")
    if parts.fragment:
        raise ValueError("has a # in it: what follows is never sent; write %23")
    return secret


def _handler_url(value: str) -> str:
    scheme, _, module = value.partition(":")
    if scheme == "python":
        if not is_module(module):
            raise ValueError(f"{module[:80]!r} is not the name of a module; write python:myapp.handlers")
        return value
    _check_url(value, ("http", "https"))
    if "@" in urlsplit(value).netloc:
        raise ValueError("must hold no user or password; see token and signing_secret")
    return value


DatabaseUrl = Annotated[SecretStr, AfterValidator(_database_url)]
NatsUrl = Annotated[SecretStr, AfterValidator(_nats_url)]
RedisUrl = Annotated[SecretStr, _of_schemes("redis", "rediss", "unix")]
WebhookUrl = Annotated[SecretStr, _of_schemes("http", "https"), AfterValidator(_leads_somewhere)]
HandlerUrl = Annotated[str, AfterValidator(_handler_url)]
ModuleName = Annotated[str, only(is_module, "is not the name of a module; write myapp.queries")]
