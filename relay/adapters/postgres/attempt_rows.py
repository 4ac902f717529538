"""The attempts of a row, from its columns: the notes, and what the row itself says of the last one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from relay.domain.attempts import Attempt, read_attempts, whole
from relay.domain.claim_tokens import mark_of, read_token
from relay.domain.moments import readable


def attempts_of(
    row: Mapping[str, Any],
    *,
    counted: int,
    rounds: int = 0,
    ended: object = None,
    outcome: str = "",
    runs: bool = False,
) -> list[Attempt]:
    """The attempts of a row with the columns ``attempt_log`` and ``claim_token``; see `whole`."""
    known = read_attempts(row.get("attempt_log"))
    running = _running(row.get("claim_token"), counted, rounds, known) if runs else None
    at = ended if isinstance(ended, datetime) else None
    return whole(known, counted=counted, rounds=rounds, ended=readable(at), outcome=outcome, running=running)


def _running(token: object, number: int, rounds: int, known: Sequence[Attempt]) -> Attempt:
    claim = read_token(token) if isinstance(token, UUID) else None
    if claim is None:
        return Attempt(number=number, outcome="running", round=rounds)
    # The claim has a mark of its worker only. Its name is known if it has made an attempt before.
    names = {mark: it.worker for it in known if (mark := _mark(it.worker)) is not None}
    worker = names.get(claim.mark, "")
    return Attempt(number=number, outcome="running", round=rounds, began=claim.at, worker=worker)


def _mark(worker: str) -> int | None:
    host, _, pid = worker.rpartition(":")
    return mark_of(host, int(pid)) if pid.isascii() and pid.isdigit() and len(pid) < 12 else None


def with_attempts(row: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """Return a row with its attempts as objects in ``attempt_log``, the oldest first."""
    found = [asdict(it) for it in attempts_of(row, **about)]
    return {name: value for name, value in row.items() if name != "claim_token"} | {"attempt_log": found}
