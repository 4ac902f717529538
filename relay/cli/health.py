"""`relay health`: whether everything that our processes need is there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated, Final

import nats.errors
import redis
import typer

from relay.access import jetstream, redis_options
from relay.adapters.gate import queue_error
from relay.adapters.postgres import migrations
from relay.domain.errors import RelayError
from relay.settings import Settings, load_settings

_TIMEOUT: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one server said, and how long it took, in milliseconds."""

    server: str
    healthy: bool
    milliseconds: float
    detail: str


def health(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """Ask each context's PostgreSQL (are its tables up to date?), NATS and Redis. Status 1 if one is not well."""
    findings = examine(load_settings())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.server) for finding in findings)
        for found in findings:
            state = "ok  " if found.healthy else "DOWN"
            print(f"{state} {found.server:<{width}} {found.milliseconds:>6.0f} ms  {found.detail}")
    if not all(finding.healthy for finding in findings):
        raise typer.Exit(1)


def examine(settings: Settings) -> list[Finding]:
    """Ask all servers at the same time. Never raises for a server that does not answer."""
    questions: dict[str, Callable[[], tuple[bool, str]]] = {
        f"postgresql {name}": _database(context.database_url.get_secret_value())
        for name, context in settings.contexts.items()
    }
    questions["nats"] = _nats(settings)
    questions["redis"] = _redis(settings)
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        return list(pool.map(_ask, questions, questions.values()))


def _ask(server: str, question: Callable[[], tuple[bool, str]]) -> Finding:
    begin = time.perf_counter()
    try:
        healthy, detail = question()
    except RelayError as error:
        healthy, detail = False, error.message + (f" ({error.hint})" if error.hint else "")
    except redis.RedisError as error:
        healthy, detail = False, queue_error(error).message
    return Finding(
        server=server,
        healthy=healthy,
        milliseconds=round((time.perf_counter() - begin) * 1000, 1),
        detail=detail,
    )


def _database(url: str) -> Callable[[], tuple[bool, str]]:
    def ask() -> tuple[bool, str]:
        found = migrations.status(url)
        if found.pending:
            return False, f"its tables lack {', '.join(found.pending)}; run: relay db upgrade"
        return True, f"tables at {found.current}"

    return ask


def _nats(settings: Settings) -> Callable[[], tuple[bool, str]]:
    async def account() -> int:
        async with jetstream(settings) as js:
            return (await js.account_info()).streams

    def ask() -> tuple[bool, str]:
        try:
            return True, f"JetStream with {asyncio.run(account())} streams"
        except (nats.errors.Error, TimeoutError) as error:
            return False, f"JetStream does not answer: {error}"

    return ask


def _redis(settings: Settings) -> Callable[[], tuple[bool, str]]:
    def ask() -> tuple[bool, str]:
        client = redis.Redis.from_url(
            settings.redis_url.get_secret_value(),
            socket_timeout=_TIMEOUT,
            socket_connect_timeout=_TIMEOUT,
            **redis_options(settings),
        )
        with client:
            client.ping()
        return True, "answers PING"

    return ask
