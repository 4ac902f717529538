"""`relay health`: whether all servers that our processes need are well."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Final, TypeAlias

import nats.errors
import redis
import typer

from relay.access import jetstream, redis_options
from relay.adapters.gate import queue_error
from relay.adapters.jetstream.durability import answered_by_streams
from relay.adapters.jetstream.durability import risks as jetstream_risks
from relay.adapters.postgres import durability, migrations
from relay.bootstrap import cold_store
from relay.domain.errors import RelayError
from relay.settings import ArchiveSettings, Settings, load_settings
from relay.settings.archive import USUAL
from relay.settings.values import format_duration

_TIMEOUT_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The answer of one server, and how long it took, in milliseconds.

    ``warnings``: the server is well, but may lose what it has confirmed, or is set in an unusual way.
    """

    server: str
    healthy: bool
    milliseconds: float
    detail: str
    warnings: tuple[str, ...] = ()


#: Whether a server is well, more about that, and warnings.
Answer: TypeAlias = tuple[bool, str, Sequence[str]]


def health(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Status 1 for warnings, too.")] = False,
) -> None:
    """Ask each context's PostgreSQL (are its tables up to date?) and archive, NATS and Redis.

    Status 1 if one is not well.

    Warns of versions and settings under which a server may lose what it has confirmed.
    """
    findings = examine(load_settings())
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        width = max(len(finding.server) for finding in findings)
        for found in findings:
            state = "ok  " if found.healthy else "DOWN"
            print(f"{state} {found.server:<{width}} {found.milliseconds:>6.0f} ms  {found.detail}")
            for warning in found.warnings:
                print(f"warn {found.server:<{width}}            {warning}")
    if not all(finding.healthy and not (strict and finding.warnings) for finding in findings):
        raise typer.Exit(1)


def examine(settings: Settings) -> list[Finding]:
    """Ask all servers at the same time. Never raises for a server that does not answer."""
    questions: dict[str, Callable[[], Answer]] = {
        f"postgresql {name}": partial(_database, context.database) for name, context in settings.contexts.items()
    }
    questions |= {
        f"archive {name}": partial(_archive, context.archive, settings.outlived(name))
        for name, context in settings.contexts.items()
        if context.archive.place is not None
    }
    questions["nats"] = partial(_nats, settings)
    questions["redis"] = partial(_redis, settings)
    with ThreadPoolExecutor(max_workers=len(questions)) as pool:
        return list(pool.map(_ask, questions, questions.values()))


def _ask(server: str, question: Callable[[], Answer]) -> Finding:
    begin = time.perf_counter()
    warnings: Sequence[str] = ()
    try:
        healthy, detail, warnings = question()
    except RelayError as error:
        healthy, detail = False, error.message + (f" ({error.hint})" if error.hint else "")
    except redis.RedisError as error:
        healthy, detail = False, queue_error(error).message
    return Finding(
        server=server,
        healthy=healthy,
        milliseconds=round((time.perf_counter() - begin) * 1000, 1),
        detail=detail,
        warnings=tuple(warnings),
    )


def _database(url: str) -> Answer:
    found, warnings = migrations.status(url), durability.risks(url)
    if found.pending:
        return False, f"its tables lack {', '.join(found.pending)}; run: relay db upgrade", warnings
    return True, f"tables at {found.current}", warnings


def _archive(archive: ArchiveSettings, outlived: Sequence[str]) -> Answer:
    """Look whether the place of the archive answers, by asking for a name that is never there."""
    store, after = cold_store(archive), archive.after
    assert store is not None
    assert after is not None
    asyncio.run(store.names("none/"))
    warnings = []
    if not USUAL[0] <= after <= USUAL[1]:
        least, most = map(format_duration, USUAL)
        warnings.append(f"after is {format_duration(after)}; usual are {least} to {most}")
    if outlived:
        warnings.append(
            f"keep is shorter than {', '.join(outlived)} keeps events: one that is replayed later is handled again"
        )
    return True, f"{archive.place} answers", warnings


def _nats(settings: Settings) -> Answer:
    monitor = settings.nats.monitor.get_secret_value() if settings.nats.monitor else None
    names = [stream.name for stream in settings.streams()]

    async def look() -> Answer:
        async with jetstream(settings) as js:
            account = await js.account_info()
            warnings, unknown = await jetstream_risks(js, names, monitor)
            warnings += await answered_by_streams(js, settings.queried())
        return True, "; ".join([f"JetStream with {account.streams} streams", *unknown]), warnings

    try:
        return asyncio.run(look())
    except (nats.errors.Error, TimeoutError) as error:
        return False, f"JetStream does not answer: {error}", ()


def _redis(settings: Settings) -> Answer:
    url, options = settings.redis_url.get_secret_value(), redis_options(settings)
    with redis.Redis.from_url(
        url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S, **options
    ) as client:
        client.ping()
    return True, "answers PING", ()
