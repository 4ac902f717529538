"""Members of libraries that are not documented and that we use. One test each: it names what a new version broke.

The libraries have upper bounds in pyproject.toml. To raise one, run these tests first.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import prometheus_client
import psycopg
import psycopg._cursor_base
import psycopg._preparing
import psycopg.connection_async
import psycopg.cursor
import psycopg.cursor_async
import psycopg.transaction
import pytest
import redis
import redis.asyncio
import sqlalchemy
from asyncpg.pool import PoolConnectionProxy, PoolConnectionProxyMeta
from asyncpg.transaction import Transaction
from dramatiq.brokers.redis import RedisBroker, _RedisConsumer
from dramatiq.brokers.stub import StubBroker
from dramatiq.worker import Worker, WorkerThread, _WorkQueueItem
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.js.client import JetStreamContext
from nats.protocol import parser

from relay.adapters.dramatiq.broker import RelayBroker, _BlockingConsumer
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.dramatiq.work_queue import OnLoop
from relay.adapters.jetstream.client import RelayClient, _Parser
from relay.adapters.postgres.lazy_transactions import LazyAsyncConnection, LazyConnection, LazyCursor

ROOT = Path(__file__).parents[2]


class Member(NamedTuple):
    """A member that we read or set. ``owner`` makes the object that has it."""

    library: str
    owner: Callable[[], Any]
    name: str
    use: str


class Hook(NamedTuple):
    """A method that we replace. ``caller`` is where the library calls it, in the words ``call``."""

    library: str
    caller: ModuleType | type | Callable[..., Any]
    call: str
    use: str

    @property
    def name(self) -> str:
        return self.call.partition("(")[0].rpartition(".")[2]


def consumer() -> _RedisConsumer:
    return _RedisConsumer(RedisBroker(client=redis.Redis()), "default", 1, 1)


def worker() -> Worker:
    return Worker(StubBroker(), worker_threads=1)


def worker_thread() -> WorkerThread:
    return WorkerThread(broker=StubBroker(), consumers={}, work_queue=None, worker_timeout=1)


def a_parser() -> parser.Parser:
    return parser.Parser(Client())


def unconnected() -> psycopg.AsyncConnection[Any]:
    return psycopg.AsyncConnection(psycopg.pq.PGconn.connect_start(b"host=/nowhere"))


MEMBERS = [
    Member("nats-py", Client, "_ps", "our parser takes its place"),
    Member(
        "nats-py", Client, "_pending", "commands wait here to be written, and are dropped after a lost connection"
    ),
    Member("nats-py", Client, "_pending_data_size", "counts what waits to be written"),
    Member("nats-py", Client, "_flush_queue", "asks nats-py's task to write a lot"),
    Member("nats-py", Client, "_transport", "writes a little at once"),
    Member("nats-py", TcpTransport, "_io_writer", "closes the socket of an attempt that failed"),
    Member("nats-py", Client, "_current_server", "tells whether TLS is wanted"),
    Member("nats-py", Client, "_inbox_prefix", "tells whether answers are what is forbidden"),
    Member("nats-py", lambda: Subscription(None), "_id", "finds the listener of a message"),
    Member("nats-py", lambda: JetStreamContext(Client()), "_nc", "tells the version of the server"),
    *(
        Member("nats-py", a_parser, name, "our parser hands over to nats-py's between and within messages")
        for name in ("nc", "buf", "state", "needed", "header_needed", "msg_arg")
    ),
    Member("dramatiq", consumer, "message_cache", "what we fetched is handed out from here"),
    Member("dramatiq", consumer, "queued_message_ids", "an acknowledged message leaves it"),
    Member(
        "dramatiq", lambda: consumer().broker, "_should_do_maintenance", "now and then the stock script maintains"
    ),
    Member(
        "dramatiq", lambda: consumer().broker, "broker_id", "names the set of messages that are not acknowledged"
    ),
    Member("dramatiq", lambda: consumer().broker, "_max_unpack_size", "the stock script asks for it"),
    Member("dramatiq", lambda: consumer().broker, "do_enqueue", "a retry enters its queue"),
    Member("dramatiq", worker, "_add_worker", "adds a thread, also in place of one that hangs"),
    Member("dramatiq", worker, "workers", "a thread that hangs leaves it, the loop's thread joins it"),
    Member("dramatiq", worker, "work_queue", "our queue with budgets takes its place"),
    Member("dramatiq", worker, "worker_threads", "duties bring threads of their own"),
    Member("dramatiq", worker, "consumer_whitelist", "a worker for other queues adds no threads"),
    Member("dramatiq", worker, "consumers", "the loop's thread is made from it"),
    Member("dramatiq", worker, "worker_timeout", "the loop's thread is made from it"),
    Member("dramatiq", worker_thread, "process_message", "finishes a message that ran on the loop"),
    Member("dramatiq", worker_thread, "running", "the loop takes no more when it is false"),
    Member("dramatiq", worker_thread, "paused", "the loop takes nothing while it is true"),
    Member("dramatiq", worker_thread, "paused_event", "tells that the loop is paused"),
    Member("redis", redis.asyncio.Connection, "_parser", "its handler hears which keys have changed"),
    Member("psycopg", unconnected, "_num_transactions", "tells that BEGIN is on its way"),
    Member("psycopg", unconnected, "_tpc", "tells that a transaction is prepared"),
    Member("psycopg", unconnected, "_prepared", "a statement that takes BEGIN along is prepared as others are"),
    Member("psycopg", lambda: psycopg.Cursor(unconnected()), "_conn", "a cursor's connection has the BEGIN"),
    *(
        Member("psycopg", lambda: psycopg.Cursor(unconnected()), name, "runs a statement that takes BEGIN along")
        for name in ("_get_prepared", "_execute_send", "_send_query_prepared", "_check_results", "_set_results")
    ),
    Member("psycopg", unconnected, "lock", "whoever takes it writes first what was not awaited"),
    Member(
        "sqlalchemy",
        lambda: sqlalchemy.create_engine("sqlite://").connect(),
        "_execution_options",
        "those of a session end with it",
    ),
    Member("asyncpg", lambda: PoolConnectionProxy, "_con", "the connection behind a pool's stand-in"),
    Member("prometheus-client", lambda: prometheus_client.values, "ValueClass", "counts are kept in shared files"),
    Member("prometheus-client", lambda: prometheus_client.values, "get_value_class", "makes that class"),
]

HOOKS = [
    Hook(
        "nats-py", Client, "self._process_info(srv_info, initial_connection=True)", "no credentials in the clear"
    ),
    Hook("nats-py", Client, "self._process_connect_init()", "a server that closes after the handshake is told"),
    Hook("nats-py", parser, "self.nc._process_err(emsg)", "notes a missing permission"),
    Hook("nats-py", parser, "self.nc._process_msg(sid, subject, reply, payload, hdr)", "messages reach listeners"),
    Hook(
        "dramatiq",
        RedisBroker,
        "self.consumer_class(self, queue_name, prefetch, timeout)",
        "waits without polling",
    ),
    Hook("dramatiq", RedisBroker, "self._dispatch(command)", "a key of another type is replaced"),
    Hook("psycopg", psycopg._cursor_base, "self._conn._start_query()", "one BEGIN, not two, in a pipeline"),
    Hook("psycopg", psycopg._cursor_base, "self._maybe_prepare_gen(pgq, prepare=", "takes BEGIN along"),
    Hook("sqlalchemy", sqlalchemy.Connection.close, "._close_special(", "lets go of a lent driver"),
    Hook("psycopg", psycopg._connection_base, "self._adapters", "a lent connection has its adapters again"),
    Hook(
        "psycopg",
        psycopg.transaction,
        "self._conn._exec_command(command)",
        "behind a pooler a session is cleaned in the round trip of its commit",
    ),
    Hook("psycopg", psycopg._preparing, "conn._deallocate(name)", "tells that prepared statements are gone"),
    *(
        Hook("psycopg", caller, f"async with {call}", "what was not awaited is written before a command")
        for caller, call in (
            (psycopg.connection_async, "self.lock"),
            (psycopg.cursor_async, "self._conn.lock"),
            (psycopg.transaction, "self._conn.lock"),
        )
    ),
    Hook("asyncpg", Transaction, "await self._connection.execute(query)", "what was not awaited is written first"),
    Hook("asyncpg", PoolConnectionProxyMeta, "getattr(self._con.__class__, meth_name)", "so it is behind a pool"),
    Hook("psycopg", psycopg.cursor, "self._conn.wait(", "what is held back goes ahead of the next command"),
    Hook("psycopg", psycopg.cursor_async, "self._conn.wait(", "what is held back goes ahead of the next command"),
]

OURS = [_Parser, RelayClient, RelayBroker, _BlockingConsumer, OnLoop, WorkerRuntime]
OURS += [LazyAsyncConnection, LazyConnection, LazyCursor]
#: Private by their names only: our settings' own, and SQLAlchemy's, which is documented.
NOT_PRIVATE = {"_origins", "_mapping", "_limit"}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda it: f"{it.library} {it.name}")
def test_a_member_that_we_use_is_there(member: Member) -> None:
    assert hasattr(member.owner(), member.name), f"{member.library} has no {member.name}: {member.use}"


@pytest.mark.parametrize("hook", HOOKS, ids=lambda it: f"{it.library} {it.name}")
def test_a_method_that_we_replace_is_called(hook: Hook) -> None:
    assert hook.call in inspect.getsource(hook.caller), f"{hook.library} calls {hook.name} otherwise: {hook.use}"


def test_a_message_in_the_work_queue_has_a_priority_and_can_be_copied() -> None:
    """dramatiq: tasks have priorities of their own."""
    assert {"priority", "message"} <= {field.name for field in fields(_WorkQueueItem)}


# --- the lists are complete ---

KNOWN = {it.name for it in [*MEMBERS, *HOOKS]}


def reached_into() -> Iterator[str]:
    for package in ("relay", "consumer", "tasks", "scheduler"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if "SLF001" not in text:
                continue
            lines = text.splitlines()
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Attribute(value=ast.Name(id="self")):
                        pass
                    case ast.Attribute(attr=name, lineno=line) if name.startswith("_"):
                        yield from [name] if "SLF001" in lines[line - 1] else []


def test_what_we_reach_into_is_listed() -> None:
    assert set(reached_into()) - NOT_PRIVATE <= KNOWN


def defined_by(ours: type) -> Iterator[str]:
    """The names in the text of a class. At run time a library may set more of them on it."""
    [found] = ast.parse(inspect.getsource(ours)).body
    assert isinstance(found, ast.ClassDef)
    for node in found.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Assign(targets=targets):
                yield from (it.id for it in targets if isinstance(it, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


@pytest.mark.parametrize("ours", OURS)
def test_a_private_name_of_ours_hides_none_of_the_library_that_is_not_listed(ours: type) -> None:
    theirs = {name for base in ours.__mro__[:-1] if not base.__module__.startswith("relay") for name in vars(base)}
    hidden = {
        name for name in theirs & set(defined_by(ours)) if name.startswith("_") and not name.startswith("__")
    }
    assert hidden <= KNOWN


def test_each_library_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["metrics"],
        *project["optional-dependencies"]["dev"],
    ]
    bounded = {text.partition(">")[0].partition("[")[0] for text in wanted if ",<" in text}
    assert {it.library for it in [*MEMBERS, *HOOKS]} | {"sqlalchemy"} <= bounded
