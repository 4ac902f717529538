"""What others do to the sessions of the fleet: settings for a role or a database, and no room for any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psycopg

from chaos.deployment import CONSUMING, FLEET, PRODUCING, STRANGER, as_role
from chaos.injections.still import Named, told
from chaos.stage import Stage
from relay.devstack.errors import DevStackError

#: What a value looks like. Every client of the database gets these.
_FORMS: Final = {
    "DateStyle": "'SQL, DMY'",
    "IntervalStyle": "sql_standard",
    "TimeZone": "'Pacific/Chatham'",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
}
#: What transactions are. Only our own sessions get these: producers of the run do not expect them.
_ODD: Final = {
    **_FORMS,
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "quote_all_identifiers": "on",
    "plan_cache_mode": "force_generic_plan",
}
_END: Final = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s AND datname = ANY (%s)"
)
_END_HALF: Final = f"{_END} AND pid %% 2 = 0"
_TAKE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.05
_NAMED: Final = Named(((frozenset({"DATABASE_UNREACHABLE"}), "all its connections are in use"),))


@contextmanager
def odd_sessions(stage: Stage, _target: str) -> Iterator[None]:
    """Settings of a role or of both databases, which new sessions have; then they are reset."""
    whose, settings = stage.random.choice([(f"ROLE {FLEET}", _ODD), ("DATABASE", _FORMS)])
    stage.note(whose.lower())
    named = [whose] if whose != "DATABASE" else [f"DATABASE {it}" for it in (PRODUCING, CONSUMING)]
    commands = [f"ALTER {it} SET {name} = {value}" for it in named for name, value in settings.items()]
    with _owner(stage) as owner:
        for command in commands:
            owner.execute(command.encode())
        owner.execute(_END, [FLEET, [PRODUCING, CONSUMING]])
    try:
        yield
    finally:
        with _owner(stage) as owner:
            for it in named:
                owner.execute(f"ALTER {it} RESET ALL".encode())
            owner.execute(_END, [FLEET, [PRODUCING, CONSUMING]])


@contextmanager
def few_connections(stage: Stage, _target: str) -> Iterator[None]:
    """Another program takes every session that is free, and half of the fleet's. Health must say so."""
    over, full = threading.Event(), threading.Event()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="chaos-sessions"))
        stack.callback(over.set)
        taking = pool.submit(_take, as_role(stage.rig.urls[CONSUMING], STRANGER), over, full)
        if not full.wait(_TAKE_SECONDS):
            raise DevStackError("the server always has room for another session")
        with _owner(stage) as owner:
            owner.execute(_END_HALF, [FLEET, [PRODUCING, CONSUMING]])

        def release() -> None:
            stage.stay(1.0)
            over.set()

        told(stage, "few_connections", _NAMED, release)
        stage.note(f"{taking.result()} sessions")
    yield


def _take(url: str, over: threading.Event, full: threading.Event) -> int:
    """Take sessions as they become free, until it is over; returns how many. ``full``: set when one is refused."""
    with ExitStack() as taken:
        count = 0
        while not over.is_set():
            try:
                taken.enter_context(psycopg.connect(url, connect_timeout=5, application_name="chaos-sessions"))
                count += 1
            except psycopg.OperationalError as error:
                if _says_full(error):
                    full.set()
                over.wait(_LOOK_SECONDS)
        return count


def _says_full(error: psycopg.OperationalError) -> bool:
    """Whether a refusal of a connection, whose SQLSTATE the driver does not tell, is for want of room."""
    return any(it in str(error) for it in ("too many clients", "remaining connection slots"))


def _owner(stage: Stage) -> psycopg.Connection[Any]:
    """Connect in a place that is kept for superusers. Producers and samplers have them, too, for moments."""
    deadline = time.monotonic() + _TAKE_SECONDS
    while True:
        try:
            return psycopg.connect(stage.rig.urls[PRODUCING], connect_timeout=5, autocommit=True)
        except psycopg.OperationalError as error:
            if not _says_full(error) or time.monotonic() > deadline:
                raise
            stage.over.wait(_LOOK_SECONDS)
