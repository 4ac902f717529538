"""The commands that pages print, and that no other test runs: each does what it says on rows of such a page.

Their databases have odd settings, so the same table shows that no command depends on them.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import LiteralString

import httpx2
import psycopg
import pytest

from relay.devstack import NatsServer, PostgresServer, ValkeyServer
from relay.devstack.ports import free_port
from tests.integration import odd_databases, page_rows
from tests.integration.test_cli_fleet import beat
from tests.integration.test_cli_operating import Shell
from tests.integration.test_cli_waiting import PUBLISH
from tests.integration.test_members import WORKER
from tests.pages import operating
from tests.waiting import wait_for

CONTEXTS = ("sea", "vibespro")
#: What changes rows does so on databases of its own.
CHANGES = re.compile(
    r" (requeue|snooze|discard|resolve|hold|reopen|retry|replay|stop-replay|release|cancel|restore|run|reconcile"
    r"|pause|limit|resume) "
)
#: What the reader fills in.
FILLED = {
    "relay explain ID": str(page_rows.MESSAGE),
    "relay outbox show ID": str(page_rows.DEAD_EVENT),
    "relay tasks show ID": str(page_rows.FAILED_TASK),
    "relay archive restore …": "--kind inbox --all --context sea",
    "relay archive replay …": "--all --context sea",
}
#: What a command waits for, by its first word: in which context, how a worker knows, and what it does.
WAITED: dict[str, tuple[str, LiteralString, LiteralString]] = {
    "outbox": (
        "vibespro",
        "SELECT 1 FROM outbox_events WHERE published_at IS NULL AND generation > 0",
        PUBLISH,
    ),
    "inbox": (
        "sea",
        "SELECT 1 FROM inbox_replays WHERE subscription = 'billing' AND state = 'running'",
        "UPDATE inbox_replays SET state = 'finished', ended_at = now() WHERE subscription = 'billing'",
    ),
}
CONNECTED = "SELECT 1 FROM pg_stat_activity WHERE datname = ANY (%s)"
#: A list of nothing, or an act on nothing, would prove nothing.
NOTHING = re.compile(
    r"^No |^\[\]|^\w+: .* 0$|no row is old enough|has listed its jobs yet|was not paused", re.MULTILINE
)
#: They end with 1 where something is not well. Here no process runs, and what is due does not move.
NOT_WELL = re.compile(r"relay (doctor|health(?! --for))")


class Desk(Shell):
    """Where an operator types: servers, and two contexts with the rows of the pages."""

    def __init__(
        self, directory: Path, urls: dict[str, str], servers: dict[str, str], processes: ExitStack
    ) -> None:
        self._directory, self.archive, self.urls, self._processes = directory, directory / "cold", urls, processes
        self.archive.mkdir(parents=True)
        (directory / "relay.toml").write_text(page_rows.CONFIG.format(archive=self.archive))
        databases = {f"RELAY_CONTEXTS__{name.upper()}__DATABASE_URL": url for name, url in urls.items()}
        odd = {"PGOPTIONS": odd_databases.OPTIONS}
        self._environment = {"PATH": os.environ["PATH"], **odd, **databases, **servers}

    def types(self, command: str) -> str:
        """Type a command as it is printed. Fails where its status is another one than it should be."""
        if command == "relay ops":
            return self.serves()
        if command.startswith("curl "):
            return self._asks(*shlex.split(filled(command))[1:])
        waited = WAITED["inbox" if command.startswith("relay inbox ") else "outbox"]
        with worker(self.urls, *waited) if command.endswith(" --wait") else nullcontext():
            words = shlex.split(filled(command))[1:]
            return self(*words, answer="y\n", status=1 if NOT_WELL.match(command) else 0)

    def serves(self) -> str:
        """Start `relay ops`, until the end of the test, and return what it says when it answers."""
        self._port = free_port()
        process = self._processes.enter_context(self.start("ops", "--port", str(self._port)))
        self._processes.callback(process.kill)
        assert process.stdout is not None
        for line in process.stdout:
            if str(self._port) in line:
                return line
        pytest.fail("relay ops has ended")

    def _asks(self, *words: str) -> str:
        """Ask it as curl does."""
        [url] = [word for word in words if word.startswith("127.0.0.1:8085/")]
        options = dict(itertools.pairwise(words))
        headers = {"Content-Type": "application/json"} if "-d" in options else {}
        answer = httpx2.request(
            "POST" if "-d" in options else "GET",
            f"http://{url.replace('8085', str(self._port))}",
            content=options.get("-d"),
            headers=headers,
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        return answer.text


def filled(command: str) -> str:
    """What a reader types for a command: with ids in the place of what stands for them."""
    for begins, words in FILLED.items():
        if command.startswith(begins):
            return command.replace(begins, f"{begins.rpartition(' ')[0]} {words}")
    for id in page_rows.IDS:
        command = re.sub(rf"\b{str(id)[:4]}[-0-9a-f]*…", str(id), command)
    assert "…" not in command, f"{command}: say in FILLED what a reader types"
    return command


@contextmanager
def worker(urls: dict[str, str], context: str, asked: LiteralString, work: LiteralString) -> Iterator[None]:
    """Do ``work`` in a context as soon as it is ``asked`` for."""

    def do() -> None:
        writing = "-c default_transaction_read_only=off"
        with psycopg.connect(urls[context], options=writing, autocommit=True) as connection:
            while not connection.execute(asked).fetchone():
                assert not done, "nothing was asked for"
            connection.execute(work)

    done: list[bool] = []
    with ThreadPoolExecutor(1) as aside:
        working = aside.submit(do)
        try:
            yield
        finally:
            done.append(True)
        working.result(60)


@pytest.fixture
def desks(
    postgres: PostgresServer,
    database_template: str,
    own_nats: NatsServer,
    own_valkey: ValkeyServer,
    tmp_path: Path,
) -> Iterator[Iterator[Desk]]:
    """One desk after another, with the same rows."""
    servers, made = {"NATS_URL": own_nats.url, "REDIS_URL": own_valkey.url}, list[str]()

    def desk(archive: Path | None = None, **templates: str) -> Desk:
        names = {name: f"pages_{len(made)}_{name}" for name in CONTEXTS}
        made.extend(names.values())
        urls = {name: postgres.create_database(names[name], templates[name]) for name in CONTEXTS}
        desk = Desk(tmp_path / names["sea"], urls, servers, processes)
        if archive is not None:
            shutil.copytree(archive, desk.archive, dirs_exist_ok=True)
        return desk

    def desks() -> Iterator[Desk]:
        first = desk(**dict.fromkeys(CONTEXTS, database_template))
        page_rows.fill(**first.urls)
        first("streams", "ensure")
        page_rows.publish(own_nats.url)
        beat(own_valkey, "relay", WORKER)
        for command in page_rows.DONE_BEFORE:
            first(*command)
        first("archive", "run", "--context", "sea")
        with psycopg.connect(first.urls["sea"]) as connection:
            page_rows.ended(connection)
        templates = dict(zip(CONTEXTS, made, strict=True))
        with postgres.connect() as server:  # a database that somebody is connected to cannot be copied
            wait_for("nobody is connected", lambda: server.execute(CONNECTED, [made]).fetchone() is None)
        while True:
            made_odd = desk(first.archive, **templates)
            for url in made_odd.urls.values():
                odd_databases.make_odd(url)
            yield made_odd

    with ExitStack() as processes:
        yield desks()
    for name in made:
        postgres.drop_database(name)


def test_each_command_of_a_page_does_what_it_says(desks: Iterator[Desk]) -> None:
    kept, wrong = next(desks), dict[str, str]()
    for command, page in operating().items():
        desk = next(desks) if CHANGES.search(f"{command} ") else kept
        try:
            said = desk.types(command)
            assert "Traceback" not in said, said
            assert not NOTHING.search(said), said
        except AssertionError as failed:
            wrong[f"{page}: {command}"] = str(failed)
    assert not wrong, "\n".join(f"{command}\n{text}" for command, text in wrong.items())
