"""Promise 12, cron jobs: one run of a job at a time, and one run for each operator's request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from chaos.calls import PAUSES
from chaos.evidence import Evidence
from chaos.history import Ran
from chaos.judgement import Figure, Judgement, conclude


def one_at_a_time(evidence: Evidence) -> Judgement:
    """Runs of one job do not overlap, and an operator's request is followed by a run to its end."""
    requests = [done for done in evidence.operated if done.action == "run"]
    figures: dict[str, Figure] = {
        "runs of jobs": len(evidence.ran),
        "cancelled": sum(not run.done for run in evidence.ran),
        "asked for": len(requests),
    }
    return conclude(12, "cron jobs run one at a time", _broken(evidence), figures)


def _broken(evidence: Evidence) -> Iterator[str]:
    by_job: defaultdict[str, list[Ran]] = defaultdict(list)
    for run in sorted(evidence.ran, key=lambda run: run.began):
        by_job[run.job].append(run)
    for runs in by_job.values():
        yield from _overlaps(evidence, runs)
    for request in evidence.operated:
        # A run that is active at the time of a request may belong to an earlier request.
        if request.action == "run" and not any(
            run.done and run.ended >= request.at for job in request.ids for run in by_job.get(job, ())
        ):
            yield f"job {', '.join(request.ids)} did not run, though asked to at {request.at:.1f}"


def _overlaps(evidence: Evidence, runs: list[Ran]) -> Iterator[str]:
    last: Ran | None = None
    for run in runs:
        if last is not None and run.began < last.ended and not _paused(evidence, last, run):
            yield f"job {run.job}: two runs at once for {min(last.ended, run.ended) - run.began:.1f} s"
        if last is None or run.ended > last.ended:
            last = run


def _paused(evidence: Evidence, first: Ran, second: Ran) -> bool:
    """Whether the first could not be cancelled in time, as its worker stood still: see `calls`."""
    return any(
        fault.kind in PAUSES and fault.began <= second.began and fault.ended >= first.began
        for fault in evidence.faults
    )
