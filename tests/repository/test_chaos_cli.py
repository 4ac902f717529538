"""What `relay chaos` makes of its options."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.command import _kinds
from chaos.faults import FAULTS
from chaos.judgement import Judgement
from chaos.run import Verdict
from relay import cli
from relay.domain.errors import InvalidRequest


def test_all_kinds_are_meant_unless_some_are_named() -> None:
    assert _kinds(None, None) is None
    assert _kinds([], []) is None


def test_kinds_are_chosen_or_left_out() -> None:
    assert _kinds(["nats-kill", "worker-kill"], None) == ["worker-kill", "nats-kill"]
    assert _kinds(["nats-kill", "worker-kill"], ["nats-kill"]) == ["worker-kill"]
    assert _kinds(None, ["worker-kill"]) == [name for name in FAULTS if name != "worker-kill"]


@pytest.mark.parametrize("option", [(["worker-hug"], None), (None, ["worker-hug"])])
def test_a_kind_that_there_is_not_is_refused_with_those_that_there_are(
    option: tuple[list[str] | None, ...],
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _kinds(*option)
    assert "worker-kill" in (refused.value.hint or "")


def test_the_verdict_is_json_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def run(_: object, command: str, say: Callable[[str], object]) -> Verdict:
        say("killed a worker")
        broken = Judgement(number=1, name="nothing is lost", figures={"lost": 1}, violations=("e1",), total=1)
        return Verdict([broken], tmp_path / "report.html")

    monkeypatch.setattr("chaos.run.run", run)
    monkeypatch.setattr("sys.argv", ["relay", "chaos", "--json", "--seed", "7"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (ended.value.code, found["kept"], found["report"]) == (1, False, str(tmp_path / "report.html"))
    assert found["judgements"][0]["violations"] == ["e1"]
    assert ("--seed 7" in found["command"], "killed a worker" in err) == (True, True)


def test_where_the_package_is_not_installed_the_command_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda _name: None)
    monkeypatch.setattr("sys.argv", ["relay", "chaos", "--minutes", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "error MISSING_EXTRA" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["relay", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "chaos" not in capsys.readouterr().out


def test_a_strangers_module_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "chaos.py").write_text("raise SystemExit('loaded')\n")
    run = [sys.executable, "-c", "from relay.cli import main; main()"]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 120}
    helped = subprocess.run([*run, "--help"], check=False, **options)
    assert (helped.returncode, "chaos" in helped.stdout) == (0, False)
    assert "MISSING_EXTRA" in subprocess.run([*run, "chaos"], check=False, **options).stderr
