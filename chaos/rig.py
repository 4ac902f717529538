"""The system under test on one machine: servers, supervised processes, and a proxy between any two.

    with Rig(directory, workers=2, seed=7) as rig:      # servers, databases, streams, links
        tables.prepare(rig.urls, 7, rig.history)             # tables of the run, before anybody needs them
        rig.launch()                                    # processes; returns once all of them work
        rig.links["worker-nats"].cut(); rig.processes["worker-1"].kill(); rig.postgres.restart()

Links and databases: see `deployment`. Processes: ``worker-1``…, ``scheduler-1``…, ``service``.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

import psycopg

from chaos import deployment, tables
from chaos.disk import SmallDisks
from chaos.proxy import Link, Proxy, at_port
from chaos.sampler import Fetched, fetched
from chaos.supervisor import Supervised, Supervisor
from consumer.pull import MAX_DUE
from relay.devstack import (
    DevStack,
    NatsServer,
    PostgresServer,
    Server,
    ServerFailed,
    ValkeyServer,
    configuration,
    provision,
)
from relay.devstack.http_checks import connected_clients, get, pulled_consumers
from relay.devstack.logs import last_lines
from relay.devstack.ports import free_port
from relay.devstack.processes import end_leftovers, marked
from relay.settings import Settings, load_settings
from relay.settings.model import OWN_ACTOR_MODULES

_READY_SECONDS: Final = 90.0
_MODULES: Final = "RELAY_ACTOR_MODULES"
#: Twice as many as a run has at most.
_SESSIONS: Final = "160"
_WAITING: Final = """
SELECT FROM inbox_messages
WHERE processed_at IS NULL AND dead_lettered_at IS NULL AND subscription = %s LIMIT %s
"""
#: What workers and schedulers run besides the relay.
_OWN: Final = ("chaos.cron_jobs", "chaos.probes")


class RigStack(DevStack):
    """A development stack whose PostgreSQL allows so few sessions that another program can take all of them."""

    def __init__(self, directory: Path | str = ".relay") -> None:
        super().__init__(directory)
        self.postgres = PostgresServer(self.directory / "postgres", settings={"max_connections": _SESSIONS})


class Rig:
    """Everything that a run needs, in a directory of its own. A context manager, used from one thread.

    ``history``: the directory of the records (`history.History`). ``seed`` goes to the handler service.
    ``max_attempts``: of the subscriptions. ``environment``: further variables of workers and schedulers.
    ``small_disks``: PostgreSQL and nats-server get disks that can be full, if this user may make them (``disks``).
    """

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        schedulers: int = 2,
        threads: int = 8,
        seed: int = 0,
        max_attempts: int = deployment.MAX_ATTEMPTS,
        environment: Mapping[str, str] | None = None,
        small_disks: bool = False,
    ) -> None:
        self.directory = directory.absolute()
        self.history = self.directory / "history"
        self.seed = seed
        self.stack = self.make_servers(self.directory / "servers")
        self.proxy = Proxy()
        self.links: dict[str, Link] = {}
        self.processes: dict[str, Supervised] = {}
        self.disks = SmallDisks()
        self._small_disks = small_disks
        self._workers, self._schedulers, self._threads = workers, schedulers, threads
        self._max_attempts = max_attempts
        self._extra = dict(environment or {})
        self._config = self.directory / "relay.toml"
        self._service_port = 0
        self._supervisor = Supervisor()

    def __enter__(self) -> Self:
        try:
            self._start_servers()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- where things are ---

    @property
    def postgres(self) -> PostgresServer:
        """The server of all three databases."""
        return self.stack.postgres

    @property
    def nats(self) -> NatsServer:
        """The server of the streams."""
        return self.stack.nats

    @property
    def valkey(self) -> ValkeyServer:
        """The server of the queue."""
        return self.stack.valkey

    @property
    def urls(self) -> dict[str, str]:
        """The databases by name, without a link: for the sampler and the checker."""
        return {name: self.postgres.url_of(name) for name in deployment.DATABASES}

    @property
    def producer_url(self) -> str:
        """The database ``shop`` through the link of the producers, so that faults affect it."""
        return deployment.database_url(self.addresses("producer")["postgres"], deployment.PRODUCING)

    @property
    def environment(self) -> dict[str, str]:
        """An environment in which commands reach the servers without a link."""
        return self._environment(self.addresses())

    @property
    def cold(self) -> Path:
        """The archive of all contexts."""
        return self._config.with_name(deployment.COLD)

    @property
    def settings(self) -> Settings:
        """The configuration, its servers reached without a link."""
        return load_settings(self._config, self.environment)

    @property
    def fleet_settings(self) -> Settings:
        """The same with the role of workers and schedulers."""
        addresses = self.addresses()
        fleet = addresses | {"postgres": deployment.as_role(addresses["postgres"], deployment.FLEET)}
        return load_settings(self._config, self._environment(fleet))

    def of_role(self, role: str) -> list[Supervised]:
        """The processes of a role: worker, scheduler or service."""
        return [process for process in self.processes.values() if process.role == role]

    def levers(self, worker: str) -> Path:
        """The directory of the files that a worker obeys: see `levers`."""
        return self.directory / "levers" / worker

    # --- verbs ---

    def launch(self) -> None:
        """Start all processes and keep them running; return once each is connected and every subscription pulled.

        Raises ServerFailed after 90 s; the message ends with the log of who is missing.
        """
        postgres = self.addresses("service")["postgres"]
        command = deployment.service_command(postgres, self._service_port, self.history, self.seed)
        self._add("service", "service", command, self._service_environment())
        for number in range(1, self._schedulers + 1):
            self._add(f"scheduler-{number}", "scheduler", deployment.SCHEDULER_COMMAND, self._linked("scheduler"))
        for number in range(1, self._workers + 1):
            name = f"worker-{number}"
            self._add(name, "worker", deployment.worker_command(self._threads), self._with_levers(name))
        for process in self.processes.values():
            process.start()
        self._supervisor.start(self.processes.values())
        self.await_ready()

    def await_ready(self, seconds: float = _READY_SECONDS) -> None:
        """Wait until nothing is missing; raises ServerFailed after ``seconds``."""
        deadline = time.monotonic() + seconds
        while (missing := next(self.missing(), None)) is not None:
            if time.monotonic() > deadline:
                name, what = missing
                log = self._log(name)
                raise ServerFailed(f"{what} after {seconds:.0f} s; the last lines of {log}:\n{last_lines(log)}")
            time.sleep(0.1)

    def missing(self) -> Iterator[tuple[str, str]]:
        """Name whose log to read and what is missing: a process that is not up, a subscription nobody pulls.

        A subscription whose inbox is full need not be pulled: its workers have enough to do.
        """
        for process in self.processes.values():
            if process.wanted and not process.running:
                yield process.name, f"{process.name} does not run"
        if get(deployment.service_url(self._service_port).replace("/handle", "/healthz")) is None:
            yield "service", "the handler service does not answer"
        clients = self.clients()
        for role in ("worker", "scheduler"):
            wanted = [process for process in self.of_role(role) if process.wanted]
            if clients[f"jetrelay-{role}"] < len(wanted):
                yield wanted[0].name, f"a {role} is not connected"
        pulled = self.pulled()
        for subscription in self.settings.contexts[deployment.CONSUMING].subscriptions.values():
            known = (subscription.stream, subscription.durable) in pulled
            if not known and not self._is_full(subscription.name):
                yield "worker-1", f"nobody pulls the subscription {subscription.name}"

    def stop(self) -> None:
        """Kill the processes, stop the servers; harmless at any time, any number of times."""
        with contextlib.ExitStack() as last:
            last.callback(self.disks.unmount)
            last.callback(self.stack.stop)
            last.callback(self.proxy.stop)
            last.callback(end_leftovers, self.directory)
            last.callback(self._supervisor.stop)

    # --- what other topologies override: see `topologies` ---

    #: Makes the servers in a directory.
    make_servers: ClassVar[type[DevStack]] = RigStack
    #: How the servers are arranged: some kinds of faults are for some arrangements.
    topology: ClassVar[str] = "single"
    #: How many nodes keep each stream.
    replicas: ClassVar[int] = 1

    def on_small_disks(self) -> Sequence[Server]:
        """The servers that may run out of room."""
        return (self.postgres, self.nats)

    def ports_of(self, server: str) -> tuple[int, ...]:
        """The port of a server, or of the handler service."""
        if server == "service":
            return (self._service_port,)
        return (next(it.port for it in self.stack.servers if it.name == server),)

    def address(self, server: str, link: Link | None) -> str:
        """Return the address of a server, or of a link to it."""
        url = next(it.url for it in self.stack.servers if it.name == server)
        return url if link is None else at_port(url, link.port)

    def open_link(self, name: str, server: str) -> Link:
        """Open a link to a server, or to the handler service."""
        return self.proxy.link(name, *self.ports_of(server))

    def addresses(self, role: str | None = None) -> dict[str, str]:
        """Return the addresses of the servers by name, or of the links of a role to them where it has some."""
        names = [server.name for server in self.stack.servers]
        return {name: self.address(name, self.links.get(f"{role}-{name}")) for name in names}

    def clients(self) -> Counter[str]:
        """Count the connections to nats-server by the names of clients."""
        return connected_clients(self.nats.monitor_url)

    def pulled(self) -> set[tuple[str, str]]:
        """Return stream and name of each consumer that is pulled."""
        return pulled_consumers(self.nats.monitor_url)

    def fetched(self) -> Fetched:
        """How far each subscription has fetched, and what waits for it."""
        return fetched(self.nats.monitor_url)

    # --- how ---

    def _is_full(self, subscription: str) -> bool:
        """Whether so many rows of a subscription wait that the fleet pulls no more. False without an answer."""
        with contextlib.suppress(psycopg.Error), psycopg.connect(self.urls[deployment.CONSUMING]) as sea:
            return len(sea.execute(_WAITING, [subscription, MAX_DUE]).fetchall()) == MAX_DUE
        return False

    def _start_servers(self) -> None:
        self.history.mkdir(parents=True, exist_ok=True)
        (self.directory / "logs").mkdir(exist_ok=True)
        if self._small_disks:
            self.disks.lay_under(*self.on_small_disks())
        self.stack.start()
        end_leftovers(self.directory)
        self._service_port = free_port()
        self.proxy.start()
        for name in deployment.LINKS:
            self.links[name] = self.open_link(name, name.partition("-")[2])
        service = deployment.service_url(self.links["worker-service"].port)
        alerts = deployment.alerts_url(self._service_port)
        deployment.write_config(self._config, service, alerts, self._max_attempts, self.replicas)
        provision.prepare(self.stack, self.settings)
        tables.admit(self.urls, self.postgres.password)
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):
            self.postgres.create_database(deployment.CASES)
        self._write_shell()

    def _write_shell(self) -> None:
        ours = deployment.variables(self._config, self.addresses())
        configuration.Configuration(self.settings, self.environment, ours).write_shell(
            self.directory / "environment"
        )

    def _environment(self, servers: dict[str, str]) -> dict[str, str]:
        return {**configuration.base_environment(inherit=False), **deployment.variables(self._config, servers)}

    def _linked(self, role: str, *modules: str) -> dict[str, str]:
        """Return the environment of a process that reaches every server through the links of its role."""
        addresses = self.addresses(role)
        fleet = addresses | {"postgres": deployment.as_role(addresses["postgres"], deployment.FLEET)}
        environment = {**self._environment(fleet), **self._extra}
        known = environment.get(_MODULES) or ",".join(OWN_ACTOR_MODULES)
        return {**environment, _MODULES: ",".join([*modules, known, *_OWN])}

    def _with_levers(self, worker: str) -> dict[str, str]:
        levers = self.levers(worker)
        levers.mkdir(parents=True, exist_ok=True)
        return {**self._linked("worker", "chaos.levers"), "RELAY_FAILPOINTS": str(levers)}

    def _add(self, name: str, role: str, command: tuple[str, ...], environment: dict[str, str]) -> None:
        environment = {"RELAY_LOG_FORMAT": "console", "PYTHONUNBUFFERED": "1", **environment}
        self.processes[name] = Supervised(
            name, role, command, marked(environment, self.directory), self._log(name)
        )

    def _service_environment(self) -> dict[str, str]:
        return {**configuration.base_environment(inherit=False), "PGPASSWORD": self.postgres.password}

    def _log(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"
