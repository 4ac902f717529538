"""The page that a newcomer reads first: the files that it names exist, and the way of an event grows no longer."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
PATH = re.compile(r"`((?:relay|consumer|scheduler|tasks|sql)/[\w./-]*\.(?:py|sql))`")
BRANCHES = {"by a service", "by a Python function"}


def existing(path: str) -> Path:
    return ROOT / (f"relay/adapters/postgres/{path}" if path.startswith("sql/") else path)


def test_every_file_that_it_names_exists() -> None:
    paths = set(PATH.findall(TEXT))
    assert len(paths) > 60
    assert sorted(path for path in paths if not existing(path).exists()) == []


def test_the_way_of_an_event_has_as_many_files_as_it_says() -> None:
    section = TEXT.partition("## The files of the way\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")]
    steps = {step.strip(): PATH.findall(files) for step, files in rows if "`" in files}
    listed = [path for files in steps.values() for path in files]
    assert len(listed) == len(set(listed))
    shared = sum(len(files) for step, files in steps.items() if step not in BRANCHES)
    told = re.search(r"(\d+) files to a service and (\d+) to a Python function", section)
    assert told is not None
    assert [int(number) for number in told.groups()] == [
        shared + len(steps["by a service"]),
        shared + len(steps["by a Python function"]),
    ]
    assert int(told[1]) <= 39
    assert int(told[2]) <= 44
