"""A chaos run as a user starts it, and the runner's own verdict on a product with a bug."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from chaos.deployment import NEXT_RELEASE
from chaos.evidence import read
from chaos.fairness import HANG
from chaos.faults import ALONE, EARLY, FAULTS, UPGRADE
from chaos.history import BEHIND
from chaos.run import RunOptions, run
from chaos.windows import Windows
from relay.adapters.postgres.revisions import in_order, newest
from tests.acceptance.fleet import ROOT
from tests.chaos.bugs import VARIABLE

SEED = "11"


def test_a_run_under_faults_keeps_every_promise(server_root: Path) -> None:
    command = [sys.executable, "-c", "from relay.cli import main; main()", "chaos", "--minutes", "1"]
    options = ["--seed", SEED, "--rate", "40", "--directory", str(server_root / "chaos")]
    # Each of those that strike alone may take the whole minute. `test_nemeses` has them.
    alone = [kind.name for kind in FAULTS.values() if ALONE in kind.touches and kind.name not in EARLY]
    options += [it for name in alone for it in ("--without", name)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout[-6_000:] + done.stderr[-3_000:]
    beside = re.search(r"quick messages beside them ([\d,]+)", done.stdout)
    assert beside is not None
    [directory] = (server_root / "chaos").iterdir()
    page = (directory / "report.html").read_text()
    assert ("✓ kept" in page, "BROKEN" in page) == (True, False)
    evidence = read(directory / "history")
    [hang, *_] = [fault for fault in evidence.faults if fault.kind == HANG]
    # On a slow machine the fleet is behind for most of the minute. Then the end of the run cuts the hang short.
    cut_short = hang.ended - hang.began < FAULTS[HANG].at_least
    assert int(beside[1].replace(",", "")) > 50 or BEHIND in hang.note or cut_short
    assert len(evidence.business) >= 1_200
    assert len(evidence.faults) >= 12
    assert len({fault.kind for fault in evidence.faults}) >= 10
    [upgrade, *_] = [fault for fault in evidence.faults if fault.kind == UPGRADE]
    assert upgrade.note.count(f"upgrade: {newest()} to {in_order(NEXT_RELEASE)[-1]}") == 2
    assert any(run.done for run in evidence.ran)
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
