"""The page that says where each row of the specifications is: the files and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "SPECIFICATION.md").read_text()
TIERS = "(?:unit|repository|contract|integration|acceptance|chaos)"
#: A test file, and the names of tests that follow it up to the next file.
FILE = re.compile(rf"`({TIERS}/test_\w+\.py)`([^|\n]*?)(?=`{TIERS}/|\||$)", re.MULTILINE)
PATH = re.compile(r"`((?:relay|consumer|scheduler|tasks|examples|deploy)/[\w./-]+)`")


def test_every_path_that_it_names_exists() -> None:
    paths = set(PATH.findall(TEXT))
    assert len(paths) > 50
    assert sorted(path for path in paths if not (ROOT / path).exists()) == []


def test_every_test_that_it_names_exists() -> None:
    missing = []
    for file, behind in FILE.findall(TEXT):
        path = ROOT / "tests" / file
        text = path.read_text() if path.exists() else ""
        named = re.findall(r"`(test_\w+)`", behind)
        missing += [f"{file} {name}" for name in named if f"def {name}(" not in text]
        missing += [] if text else [file]
    assert missing == []


@pytest.mark.parametrize("document", ["SR-MESSAGE-CONTRACTS", "The outbox design of MicroDAO"])
def test_every_row_names_its_test_or_says_that_there_is_none(document: str) -> None:
    section = TEXT.partition(f"## {document}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| §")]
    assert len(rows) > 20
    assert [
        row[0].strip() for row in rows if "test" not in row[3] and "`" not in row[3] and "not yet" not in row[2]
    ] == []
