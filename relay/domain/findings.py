"""Findings: problems, and what to change. `relay health` and `relay doctor` show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

#: How many findings are shown, and so many characters of each subject and text. Anybody may have named things.
SHOWN: Final = 500
_NAME: Final = 300
_TEXT: Final = 2_000


class Severity(StrEnum):
    """How bad it is.

    ``error``: something does not work, or a promise does not hold. ``warning``: the promise holds until a certain
    fault or load comes. ``unknown``: this could not be found out; the remedy says what is missing.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"


class ProcessKind(StrEnum):
    """The kind of process that needs something.

    ``tasks``: `python -m tasks`. ``application``: it writes events and tasks.
    """

    SCHEDULER = "scheduler"
    WORKER = "worker"
    TASKS = "tasks"
    APPLICATION = "application"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One problem.

    ``code`` is stable: docs/reference/findings.md lists all. ``subject``: what it is about, such as
    ``stream SEA_EVENTS``. ``remedy``: what to change. No text holds a password or a payload.
    """

    code: str
    severity: Severity
    subject: str
    text: str
    remedy: str = ""


def error(code: str, subject: str, text: str, remedy: str = "") -> Finding:
    """A finding of severity ``error``."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, text=text, remedy=remedy)


def warning(code: str, subject: str, text: str, remedy: str = "") -> Finding:
    """A finding of severity ``warning``."""
    return Finding(code=code, severity=Severity.WARNING, subject=subject, text=text, remedy=remedy)


def unknown(code: str, subject: str, text: str, remedy: str = "") -> Finding:
    """A finding of severity ``unknown``."""
    return Finding(code=code, severity=Severity.UNKNOWN, subject=subject, text=text, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One server, or one other thing, and all that was found about it.

    ``milliseconds``: how long it took to answer. ``detail``: what it is, if nothing is wrong.
    """

    server: str
    milliseconds: float
    detail: str
    findings: Sequence[Finding] = ()

    @property
    def healthy(self) -> bool:
        """Whether everything that depends on it can work."""
        return all(found.severity is not Severity.ERROR for found in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """All that was examined."""

    examined: Sequence[Examined]

    @property
    def findings(self) -> Sequence[Finding]:
        """All findings, the worst first."""
        order = list(Severity)
        found = [finding for it in self.examined for finding in it.findings]
        return sorted(found, key=lambda finding: order.index(finding.severity))

    def first(self, most: int) -> Sequence[Finding]:
        """The worst findings, with the beginnings of their texts."""
        return [
            replace(it, subject=it.subject[:_NAME], text=it.text[:_TEXT], remedy=it.remedy[:_TEXT])
            for it in self.findings[:most]
        ]

    def bad(self, *, strict: bool) -> bool:
        """Whether an operator must act: if there are errors, with ``strict`` also if there are warnings."""
        acted_on = {Severity.ERROR, Severity.WARNING} if strict else {Severity.ERROR}
        return any(finding.severity in acted_on for finding in self.findings)
