"""docs/reference/findings.md and docs/explanation/guarantees.md name every finding, and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: The first argument of whatever makes a finding.
MADE = re.compile(r'(?:error|warning|unknown)(?:\)?\(\s*|, )"([A-Z_]+)"')
CODE = re.compile(r"`([A-Z]+_[A-Z_]+)`")
#: Of errors that the servers' adapters raise.
OF_ERRORS = {
    *("DATABASE_UNREACHABLE", "BROKER_UNREACHABLE", "BROKER_REFUSED", "QUEUE_UNREACHABLE", "STORE_UNREACHABLE"),
}
#: Not about a promise: advice, and what could not be asked.
NO_PROMISE = {
    "CHECK_FAILED",
    "DATABASE_OLD",
    "ARCHIVE_TIME",
    "SUBJECT_REMEMBERED",
    "SESSIONS_HIDDEN",
    "QUEUE_UNKNOWN",
    "CONSUMERS_UNKNOWN",
}


def made() -> set[str]:
    files = (ROOT / "relay" / "ops" / "doctor").glob("*.py")
    return {code for path in files for code in MADE.findall(path.read_text())}


def named(page: str) -> set[str]:
    return set(CODE.findall((ROOT / "docs" / page).read_text()))


def test_the_checks_are_there_to_be_read() -> None:
    assert {"TABLES_OLD", "FILTER_OUTSIDE", "HANDLER_UNREACHABLE", "SYNC_UNKNOWN"} <= made()


def test_the_reference_has_each_code_that_a_check_makes_and_no_other() -> None:
    assert named("reference/findings.md") == made() | OF_ERRORS


def test_each_code_belongs_to_a_promise() -> None:
    assert named("explanation/guarantees.md") == made() - OF_ERRORS - NO_PROMISE
