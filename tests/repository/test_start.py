"""What a process loads when it starts: what it needs, as half a second counts for a command and a restart."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import relay

ROOT = Path(__file__).parents[2]


def loaded(statement: str) -> set[str]:
    """The modules that are there after a statement in a new process."""
    command = [sys.executable, "-c", f"import sys\n{statement}\nprint(*sys.modules, file=sys.stderr)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def command(*arguments: str) -> str:
    return (
        f"sys.argv[1:] = {arguments!r}\nfrom relay.cli import main\n"
        "try: main()\nexcept SystemExit as end: assert not end.code"
    )


def test_the_package_loads_what_is_asked_of_it() -> None:
    assert {name for name in loaded("import relay") if name.startswith("relay.")} == set()
    assert "sqlalchemy" in loaded("from relay import Outbox")


@pytest.mark.parametrize("name", relay.__all__)
def test_every_name_of_the_package_is_where_it_says(name: str) -> None:
    found = getattr(relay, name)
    assert found is getattr(importlib.import_module(relay._HOMES[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Inbox'"):
        relay.Inbox  # noqa: B018


@pytest.mark.parametrize("arguments", [("streams", "ensure"), ("outbox", "retry"), ("dlq", "list"), ("dev",)])
def test_a_command_loads_itself_only(arguments: tuple[str, ...]) -> None:
    there = loaded(command(*arguments, "--help"))
    assert f"relay.cli.{arguments[0]}" in there
    assert not there & {"sqlalchemy", "alembic", "dramatiq", "relay.cli.config"}


def test_the_help_knows_all_commands() -> None:
    there = loaded(command("--help"))
    assert {"relay.cli.config", "relay.cli.archive", "relay.cli.demo"} <= there


def test_no_cipher_is_loaded_where_nothing_is_personal() -> None:
    there = loaded("import relay.outbox, relay.bootstrap, consumer.message_rows")
    assert "relay.domain.personal" in there
    assert "relay.adapters.aes_gcm" not in there


def test_a_scheduler_does_without_sqlalchemy() -> None:
    there = loaded("import scheduler.__main__")
    assert "relay.bootstrap" in there
    assert "sqlalchemy" not in there


@pytest.mark.parametrize("module", ["relay.devstack.fleet", "relay.ops.api.server", "relay.cli.doctor"])
def test_who_only_asks_which_revision_a_database_has_does_without_alembic(module: str) -> None:
    there = loaded(f"import {module}")
    assert module in there
    assert not there & {"sqlalchemy", "alembic"}


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("relay, relay.tracing", "opentelemetry"),
        # redis-py imports the metrics of OpenTelemetry wherever those are installed.
        (
            "relay.bootstrap, relay.cron.run, consumer.message_rows, consumer.pull, tasks, relay.tracing",
            "relay.telemetry.spans",
        ),
    ],
)
def test_who_records_nothing_imports_nothing_of_opentelemetry(modules: str, absent: str) -> None:
    code = f"import sys, {modules}; sys.exit(any(name.startswith('{absent}') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_without_psutil_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['psutil'] = None; import relay.devstack"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.search(r"MISSING_EXTRA: .*psutil.*\(pip install 'jetrelay\[embedded\]'\)", result.stderr)
