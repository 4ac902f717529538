"""What is the same for all commands: help, JSON, colours, paths that cannot be used."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from relay.cli import create_app, main
from relay.cli.tables import print_fields
from relay.telemetry.logs import colored

#: Commands that run until they are stopped, and one that prints JSON in any case.
WITHOUT_JSON = {"dev", "ops", "export"}


def leaves(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield " ".join(path), command
        return
    for name, inner in command.commands.items():
        yield from leaves(inner, *path, name)


COMMANDS = dict(leaves(typer.main.get_command(create_app())))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code, printed.out, printed.err

    return call


def test_every_command_prints_json_on_request() -> None:
    given = {name: {it for param in found.params for it in param.opts} for name, found in COMMANDS.items()}
    lacking = {name for name, options in given.items() if "--json" not in options}
    assert lacking == WITHOUT_JSON
    assert {
        "dlq list",
        "db upgrade",
        "db grant",
        "schedule run",
        "schema list",
        "version",
    } <= given.keys() - lacking


def test_what_prints_a_file_has_it_as_json_too(run: Any) -> None:
    _, sql, _ = run("db", "sql")
    assert json.loads(run("db", "sql", "--json")[1]) == {"context": None, "schema": None, "sql": sql}
    _, schema, _ = run("schema", "message-envelope")
    assert json.loads(run("schema", "message-envelope", "--json")[1]) == json.loads(schema)
    _, conf, _ = run("streams", "permissions")
    users = json.loads(run("streams", "permissions", "--json")[1])
    assert [it["user"] for it in users] == ["relay", "relay_admin"]
    told = {subject for it in users for subject in (*it["publish"], *it["subscribe"])}
    assert {json.loads(line) for line in conf.splitlines() if line.strip().startswith('"')} == told
    assert all(f"password: ${it['password_variable']}" in conf for it in users)


@pytest.mark.parametrize("name", ["", "dlq", "dlq list", "config"])
def test_h_is_help(name: str) -> None:
    found = CliRunner().invoke(create_app(), [*name.split(), "-h"])
    assert (found.exit_code, "Usage:" in found.stdout) == (0, True)


def test_the_version_in_three_ways(run: Any) -> None:
    (first, plain, _), (second, option, _), (third, as_json, _) = (
        run("version"),
        run("--version"),
        run("version", "--json"),
    )
    assert (first, second, third) == (0, 0, 0)
    assert plain == option
    assert json.loads(as_json) == {"version": plain.strip()}


def test_names_of_commands_options_and_contexts_are_completed(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text('[contexts.shop]\ndatabase_url = "postgresql://db/shop"\n')

    def complete(words: str) -> list[str]:
        place = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
        environment = {**os.environ, "_RELAY_COMPLETE": "complete_bash", **place}
        command = [sys.executable, "-c", "import sys; sys.argv[0] = 'relay'; from relay.cli import main; main()"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout.split()

    assert complete("relay dl") == ["dlq"]
    assert complete("relay dlq list --context s") == ["shop"]


@pytest.mark.parametrize("arguments", [("demo", "--directory", __file__), ("dev", "--directory", __file__)])
def test_a_path_that_cannot_be_used_is_one_line(
    arguments: tuple[str, ...], run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relay.toml").write_text("[contexts.shop]\n")
    status, _, error = run(*arguments)
    assert (status, error) == (1, f"error FILE_UNUSABLE: {__file__}: File exists\n")


@pytest.mark.parametrize(("command", "unbuffered"), [("version", ""), ("--help", ""), ("config --json", "1")])
def test_a_full_disk_behind_the_output_is_one_line(command: str, unbuffered: str, tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text('[contexts.shop]\ndatabase_url = "postgresql://db/shop"\n')
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from relay.cli import main; main()", *command.split()],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error FILE_UNUSABLE: standard output: No space left on device\n",
    )


def test_who_reads_the_first_line_only_sees_no_error() -> None:
    command = f"{sys.executable} -c 'from relay.cli import main; main()' db sql | head -n 1"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_headers_are_printed_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields({"id": "7", "headers": {"a": "1", "b": "2"}, "none": None, "metadata": {}})
    assert capsys.readouterr().out == "id        7\nheaders   a: 1\n          b: 2\n"


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, Path(os.devnull).open("w") as file:
        assert colored(terminal)
        assert not colored(file)
        monkeypatch.setenv("NO_COLOR", "1")
        assert not colored(terminal)
    os.close(ours)


HANDLERS = """\
from consumer.handlers import handles
from sqlalchemy.ext.asyncio import AsyncSession

@handles("vibe_created")
def on_vibe(vibe: dict, session: AsyncSession) -> None: ...
"""
CONFIG = """\
[contexts.sea]
database_url = "postgresql://db/sea"
[contexts.sea.subscriptions.own]
stream = "SEA_EVENTS"
filter_subject = "sea.event.>"
handler = "python:myhandlers"
"""


def test_a_worker_says_in_a_line_what_is_wrong_with_a_handler(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    (tmp_path / "myhandlers.py").write_text(HANDLERS)
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    command = [sys.executable, "-c", "import relay.actors"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error INVALID_HANDLER [myhandlers.on_vibe(session)]: is of the wrong kind: ")
    assert "(write def on_vibe(vibe: dict, session: Session); " in done.stderr
    assert f"{tmp_path / 'myhandlers.py'}:" in done.stderr
