"""``python -m benchmarks``: measure, and print a table: what was measured, against what, whether it suffices."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import machine, table
from benchmarks.figures import Findings
from benchmarks.measures import MEASURES
from benchmarks.sizes import DEFAULT, FULL, QUICK, Sizes
from benchmarks.stage import INTERVALS, Stage
from relay.devstack.interrupts import interruptible


def main(words: Sequence[str] | None = None) -> int:
    """Status 0 once everything was measured: a figure that falls short is a finding and no failure."""
    arguments = _parser().parse_args(words)
    findings, conditions = Findings(), {}
    # World-readable on the way: as root PostgreSQL runs under another account.
    directory = Path(tempfile.mkdtemp(prefix="jetrelay-bench-"))
    directory.chmod(0o711)
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    sizes = _sizes(arguments)
    try:
        with interruptible(), Stage(directory, sizes, rounds=rounds, sync=arguments.sync, say=_say) as stage:
            conditions = machine.conditions(stage, arguments.sync)
            for name in arguments.only or MEASURES:
                for found in MEASURES[name](stage):
                    findings.add(found)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # Also after an interruption: what was found took its time.
        _write(arguments, findings, conditions)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[*MEASURES], metavar="NAME", help=f"of {', '.join(MEASURES)}")
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="tiny sizes, one round: a smoke, its figures mean nothing"
    )
    size.add_argument(
        "--full", action="store_true", help="the sizes that are promised about; takes an hour or more"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each case is measured; the median counts (default 3)"
    )
    parser.add_argument("--events", type=int, help="the backlog of a drain")
    parser.add_argument("--minutes", type=float, help="how long a snapshot is held open")
    parser.add_argument(
        "--sync",
        choices=[*INTERVALS],
        default="default",
        help="nats-server's sync_interval: its default of 2m, or always",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was found")
    parser.add_argument(
        "--markdown", action="store_true", help="print the table for docs/explanation/performance.md"
    )
    return parser


def _sizes(arguments: argparse.Namespace) -> Sizes:
    sizes = QUICK if arguments.quick else FULL if arguments.full else DEFAULT
    if arguments.events:
        sizes = replace(sizes, events=arguments.events)
    if arguments.minutes:
        sizes = replace(sizes, minutes=arguments.minutes)
    return sizes


def _say(line: str) -> None:
    """Progress goes beside the result."""
    sys.stderr.write(f"{line}\n")


def _write(arguments: argparse.Namespace, findings: Findings, conditions: dict[str, Any]) -> None:
    text = table.markdown(findings.rows, conditions) if arguments.markdown else table.terminal(findings.rows)
    sys.stdout.write(text + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(findings.as_json(conditions), indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
