"""What the tests of docker-compose.yml and of the chart share: is a command one of ours?"""

from __future__ import annotations

import ast
import subprocess
import sys

from dramatiq.cli import make_argument_parser
from typer.testing import CliRunner

from relay.cli import create_app
from relay.devstack import sample


def parse(command: list[str]) -> None:
    """Parse a command of ours with its own parser; raises when it is none."""
    match command:
        case ["relay", *arguments]:
            result = CliRunner().invoke(create_app(), [*arguments, "--help"])
            assert result.exit_code == 0, result.output
        case ["dramatiq", *arguments]:
            parsed = make_argument_parser().parse_args(arguments)
            assert parsed.broker == "relay.actors"
        case ["python", "-m", "relay.devstack.sample", *arguments]:
            sample.parser().parse_args(arguments)
        case ["python", "-m", module, *arguments]:
            done = subprocess.run(
                [sys.executable, "-m", module, *arguments, "--help"], check=True, capture_output=True
            )
            assert done.stdout
        case ["python", "-c", code]:
            ast.parse(code)
        case _:
            raise AssertionError(f"unknown command {command}")
