"""A chaos run as a user starts it, and the runner's own verdict on a product with a bug."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from relay.chaos.evidence import read
from relay.chaos.run import RunOptions, run
from relay.chaos.windows import Windows
from tests.acceptance.fleet import ROOT
from tests.chaos.bugs import VARIABLE

SEED = "11"


def test_a_run_under_faults_keeps_every_promise(server_root: Path) -> None:
    command = [sys.executable, "-c", "from relay.cli import main; main()", "chaos", "--minutes", "1.9"]
    # Operators' commands are for long runs: a known defect whose cause is not found may show with them.
    # Two messages of a key of an ordered subscription were handled at once for a moment, in one run of four.
    options = ["--seed", SEED, "--rate", "80", "--directory", str(server_root / "chaos")]
    options += ["--without", "operator-commands"]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-3_000:]
    assert "Every promise was kept" in done.stdout
    [directory] = (server_root / "chaos").iterdir()
    assert "Every promise was kept" in (directory / "report.html").read_text()
    evidence = read(directory / "history")
    assert len(evidence.business) >= 5_000
    assert len(evidence.faults) >= 30
    assert len({fault.kind for fault in evidence.faults}) >= 20
    windows = Windows(evidence.faults)
    assert max(windows.active(fault.began) for fault in evidence.faults) >= 2  # one began while another lasted
    assert not (directory / "servers").exists()  # nothing to look into


def test_a_run_of_a_product_with_a_bug_is_found_guilty(server_root: Path) -> None:
    options = RunOptions(
        directory=server_root / "guilty",
        seconds=8,
        seed=1,
        every=(1, 2),
        kinds=["valkey-flush"],
        max_attempts=5,
        rest=10,
        environment={"RELAY_ACTOR_MODULES": "tests.chaos.bugs,consumer.actors", VARIABLE: "settle_twice"},
    )
    said: list[str] = []
    verdict = run(options, "this test", said.append)
    assert not verdict.kept
    broken = {judgement.number for judgement in verdict.judgements if not judgement.kept}
    assert 3 in broken
    assert "effects, not 1" in verdict.report.read_text()
    assert (server_root / "guilty" / "servers").is_dir()  # to look into
