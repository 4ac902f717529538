"""Rules between the keys for access: only one way to authenticate, and no key without effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from relay.settings.access import HttpSettings, TlsSettings
from relay.settings.model import Settings
from relay.settings.problems import KeyPath, Problem
from relay.settings.urls import split_urls

Problems = Iterator[Problem]

_TLS_KEYS: Final = tuple(TlsSettings.model_fields)
_WAYS: Final = ("user", "token", "credentials", "nkey")


def check_access(settings: Settings) -> Problems:
    """Return what is wrong with the access to servers, handlers and webhooks."""
    yield from _nats(settings)
    yield from _redis(settings)
    for name, context in settings.contexts.items():
        alerts = context.alerts
        webhook = alerts.webhook.get_secret_value() if alerts.webhook else ""
        yield from _http(("contexts", name, "alerts"), alerts, webhook, "webhook")
        for subscription in context.subscriptions.values():
            path = ("contexts", name, "subscriptions", subscription.name)
            if subscription.python_module is None:
                yield from _http(path, subscription, subscription.handler, "handler")


def _nats(settings: Settings) -> Problems:
    nats, url = settings.nats, settings.nats_url.get_secret_value()
    ways = [key for key in _WAYS if getattr(nats, key) is not None]
    if len(ways) > 1:
        yield Problem(("nats", ways[1]), f"is set together with {ways[0]}", "use only one way to authenticate")
    elif ways and any(map(_names_user, split_urls(url))):
        yield Problem(("nats", ways[0]), "is set together with a user or token in nats_url", "give one of them")
    yield from _beside(("nats",), nats, "password", "user")
    yield from _beside(("nats",), nats, "user", "password")
    if url.strip().startswith("ws://"):
        yield from _without_tls(("nats",), nats, "wss://")
    yield from _beside(("nats",), nats, "certificate", "key")


def _redis(settings: Settings) -> Problems:
    redis, url = settings.redis, settings.redis_url.get_secret_value()
    for key in ("user", "password"):
        if getattr(redis, key) is not None and _names_user(url):
            yield Problem(
                ("redis", key), "is set together with a user or password in redis_url", "give one of them"
            )
    yield from _beside(("redis",), redis, "password", "user")
    if not url.startswith("rediss://"):
        yield from _without_tls(("redis",), redis, "rediss://")
    yield from _beside(("redis",), redis, "certificate", "key")


def _names_user(url: str) -> bool:
    parts = urlsplit(url)
    return parts.username is not None or parts.password is not None


def _http(path: KeyPath, section: HttpSettings, url: str, what: str) -> Problems:
    if not url:
        for key in sorted(section.model_fields_set & HttpSettings.model_fields.keys()):
            yield Problem((*path, key), f"has no effect: there is no {what}")
        return
    if not url.startswith("https://"):
        yield from _without_tls(path, section, "https://")
    if section.token is None and "token_header" in section.model_fields_set:
        yield Problem((*path, "token"), "is required if token_header is set")
    yield from _beside(path, section, "certificate", "key")


def _without_tls(path: KeyPath, section: TlsSettings, scheme: str) -> Problems:
    for key in _TLS_KEYS:
        if getattr(section, key) is not None:
            yield Problem((*path, key), f"is only for {scheme}")


def _beside(path: KeyPath, section: TlsSettings, missing: str, given: str) -> Problems:
    if getattr(section, given) is not None and getattr(section, missing) is None:
        yield Problem((*path, missing), f"is required beside {given}")
