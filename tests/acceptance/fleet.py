"""The processes of a real deployment, on servers of the test's own, driven from a test."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nats
import psycopg
import redis

from relay.adapters.dramatiq.broker import create_broker
from relay.adapters.jetstream import topology
from relay.adapters.jetstream.connection import connect_once
from relay.devstack import NatsServer, PostgresServer, ValkeyServer, processes
from relay.devstack.configuration import variable
from relay.settings import Settings, load_settings
from tests.jobs import job
from tests.servers import initialised, migrated

ROOT = Path(__file__).parents[2]

CONFIG = """\
[contexts.vibespro]
[contexts.vibespro.stream]
name = "VIBESPRO_EVENTS"
subjects = ["vibespro.event.>"]

[contexts.sea]
[contexts.sea.stream]
name = "SEA_EVENTS"
subjects = ["sea.event.>"]
[contexts.sea.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
durable = "sea__from_vibespro"
filter_subject = "vibespro.event.>"
ack_wait = "{ack_wait}"
max_deliver = 20
max_ack_pending = {max_ack_pending}
settle = "{settle}"
handler = "{handler}"
handler_timeout = "{handler_timeout}"
max_attempts = {max_attempts}
{more}
"""


@dataclass
class Fleet:
    """Servers, configuration and processes of one test. Use as a context manager."""

    directory: Path
    handler: str = "http://127.0.0.1:9/handle"
    ack_wait: str = "120s"
    max_ack_pending: int = 50
    handler_timeout: str = "10s"
    max_attempts: int = 20
    settle: str = "handler"
    more: str = ""
    postgres_settings: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.postgres = PostgresServer(self.directory / "postgres", settings=self.postgres_settings)
        self.nats = NatsServer(self.directory / "nats")
        self.valkey = ValkeyServer(self.directory / "valkey")

    def __enter__(self) -> Fleet:
        try:
            self.initialise()
            for server in (self.postgres, self.nats, self.valkey):
                server.launch()
            for server in (self.postgres, self.nats, self.valkey):
                server.wait()
            self.urls = {name: self.create_database(name) for name in self.contexts}
            (self.directory / "relay.toml").write_text(self.configuration())
            self.migrate()
            self.ensure()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running:
            if process.poll() is None:
                processes.kill(process.pid)
                process.wait()
        for server in (self.nats, self.valkey, self.postgres):
            server.stop()

    # --- what another fleet than that of CONFIG says in its own way ---

    @property
    def contexts(self) -> Sequence[str]:
        return ("vibespro", "sea")

    def configuration(self) -> str:
        """The text of relay.toml."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "directory"}
        return CONFIG.format(**fields)

    def initialise(self) -> None:
        """Prepare what the servers begin with."""
        initialised(self.postgres)

    def create_database(self, name: str) -> str:
        """Create the database of a context, with its tables unless `migrate` makes them; returns its address."""
        return migrated(self.postgres, name)

    def migrate(self) -> None:
        """Do what the databases need before processes start."""

    def ensure(self) -> None:
        """Do as ``relay streams ensure`` does, without another process."""
        settings = load_settings(self.directory / "relay.toml", self.environment)
        asyncio.run(self._ensure(settings))

    async def _ensure(self, settings: Settings) -> None:
        async with connect_once(self.nats.url) as js:
            await topology.ensure(js, settings.streams(), settings.consumers())

    # --- our processes ---

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "RELAY_CONFIG": str(self.directory / "relay.toml"),
            **{variable(name, "DATABASE_URL"): url for name, url in self.urls.items()},
            "NATS_URL": self.nats.url,
            "REDIS_URL": self.valkey.url,
            **self.variables,
        }

    def relay(self, *arguments: str) -> str:
        """Run the command line tool; returns what it printed. Raises CalledProcessError."""
        command = [sys.executable, "-c", "from relay.cli import main; main()", *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def worker(
        self, processes: int = 1, threads: int = 8, queues: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start ``dramatiq relay.actors``, for all queues if none is named."""
        arguments = ["relay.actors", "--processes", str(processes), "--threads", str(threads)]
        return self._start("worker", "-m", "dramatiq", *arguments, *(["-Q", *queues] if queues else []))

    def task_worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``python -m tasks``."""
        return self._start("tasks", "-m", "tasks", *arguments)

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Start ``python -m scheduler``."""
        return self._start("scheduler", "-m", "scheduler")

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill -9, children included."""
        processes.kill(process.pid)
        process.wait()

    def signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to a process and all its children."""
        os.killpg(process.pid, number)

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process and all its children, and wait until none of their threads runs any more."""
        processes.freeze(process.pid)

    def thaw(self, process: subprocess.Popen[bytes]) -> None:
        """Let what is frozen go on."""
        processes.thaw(process.pid)

    def stop(self, process: subprocess.Popen[bytes], seconds: float = 30) -> int:
        """Send SIGTERM and wait; returns the exit code."""
        process.send_signal(signal.SIGTERM)
        return int(process.wait(seconds))

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        process = processes.spawn(
            [sys.executable, *arguments],
            log=self.directory / f"{name}.log",
            directory=self.directory,
            environment=self.environment,
        )
        self.running.append(process)
        return process

    def flush(self) -> None:
        """Empty Valkey."""
        redis.Redis.from_url(self.valkey.url).flushall()

    def send(self, queue: str, actor: str, *arguments: str, times: int = 1) -> None:
        """Enqueue a job as the scheduler would."""
        broker = create_broker(self.valkey.url, namespace="relay", middleware=[])
        broker.enqueue_many([job(queue, actor, *arguments) for _ in range(times)])

    def queue_length(self, queue: str) -> int:
        """How many jobs of a queue wait or run."""
        return int(redis.Redis.from_url(self.valkey.url).hlen(f"relay:{queue}.msgs"))

    # --- looking ---

    def query(self, context: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Read from, or write to, a context's database."""
        with psycopg.connect(self.urls[context], autocommit=True) as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []

    def inbox(self, message_id: object) -> dict[str, Any]:
        """The inbox row of a message; empty when there is none."""
        with psycopg.connect(self.urls["sea"], row_factory=psycopg.rows.dict_row) as connection:
            return (
                connection.execute("SELECT * FROM inbox_messages WHERE message_id = %s", [message_id]).fetchone()
                or {}
            )

    def ack_pending(self) -> int:
        """How many messages JetStream has delivered and not seen acknowledged."""

        async def ask(js: Any) -> int:
            info = await js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro")
            return int(info.num_ack_pending)

        return self.jetstream(ask)

    def unread(self) -> int:
        """How many messages JetStream has not delivered yet."""

        async def ask(js: Any) -> int:
            info = await js.consumer_info("VIBESPRO_EVENTS", "sea__from_vibespro")
            return int(info.num_pending)

        return self.jetstream(ask)

    def messages(self, stream: str) -> list[Any]:
        """Every message of a stream, in order."""

        async def read(js: Any) -> list[Any]:
            total = (await js.stream_info(stream)).state.messages
            subscription = await js.subscribe("", stream=stream, ordered_consumer=True)
            return [await subscription.next_msg(timeout=10) for _ in range(total)]

        return self.jetstream(read)

    def jetstream(self, use: Callable[[Any], Any]) -> Any:
        async def run() -> Any:
            client = await nats.connect(self.nats.url, connect_timeout=30)
            try:
                return await use(client.jetstream(timeout=30))
            finally:
                await client.close()

        return asyncio.run(run())
