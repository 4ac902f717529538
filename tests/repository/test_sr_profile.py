"""The profile of the SOLVER-Ralph message contracts: streams of §3, subjects of §4, variables of §8."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from relay.domain.errors import InvalidSubject
from relay.settings import ContextSettings, Settings, load_settings
from tests.unit.settings_support import source

PROFILE = Path(__file__).parents[2] / "examples/profiles/sr/relay.toml"
#: The table of §4.1.
SUBJECTS = {
    "sr.events.loop": "LoopCreated LoopActivated LoopPaused LoopClosed",
    "sr.events.iteration": "IterationStarted IterationCompleted",
    "sr.events.candidate": "CandidateRegistered CandidatePromoted",
    "sr.events.run": "RunStarted RunCompleted",
    "sr.events.oracle": "OracleResultRecorded",
    "sr.events.governance": "GovernanceActionRecorded",
    "sr.events.freeze": "FreezeCreated FreezeLifted",
    "sr.events.staleness": "StalenessDetected StalenessCleared",
    "sr.events.approval": "ApprovalRequested ApprovalRecorded",
    "sr.events.exception": "ExceptionRaised ExceptionResolved",
    "sr.events.decision": "DecisionRecorded",
    "sr.events.worksurface": "WorkSurfaceCreated WorkSurfaceArchived",
    "sr.events.other": "UserInvited loopcreated Loo work-surface",
}
COMMANDS = ("iteration.start", "iteration.complete", "candidate.register", "oracle.run")


def load(**variables: str) -> tuple[Settings, ContextSettings]:
    settings = load_settings(PROFILE, variables)
    return settings, settings.contexts["sr"]


@pytest.mark.parametrize(
    ("event_type", "subject"), [(name, subject) for subject, names in SUBJECTS.items() for name in names.split()]
)
def test_every_event_type_has_its_subject(event_type: str, subject: str) -> None:
    routing = load()[1].routing
    assert routing.subject(event_type, 1, None) == routing.subject(event_type, 2, None) == subject
    assert routing.stream(subject) == "sr-events"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_stream_of_commands_takes_subjects_of_two_tokens(command: str) -> None:
    """§3.1 says ``sr.commands.*``, which takes none of the subjects of §4.2."""
    routing = load()[1].routing
    subject = f"sr.commands.{command}"
    assert routing.destination("StartIteration", 1, subject) == (subject, None)
    assert routing.stream(subject) == "sr-commands"


def test_streams_without_variables_are_those_of_the_contracts() -> None:
    settings, _ = load()
    streams = {spec.name: spec for spec in settings.streams() if not spec.name.startswith("RELAY_")}
    assert list(streams) == ["sr-events", "sr-commands", "sr-queries", "sr-dlq"]
    assert streams["sr-events"].subjects == ("sr.events.*",)
    for name in ("sr-events", "sr-commands", "sr-queries"):
        spec = streams[name]
        assert (spec.max_age, spec.duplicate_window) == (timedelta(days=7), timedelta(seconds=120))
        assert (spec.max_msgs_per_subject, spec.no_ack) == (-1, name == "sr-queries")
    assert settings.nats_url.get_secret_value() == "nats://localhost:4222"
    assert settings.consumers()[0].durable == "sr-consumer-projections"


def test_the_six_variables_act_on_every_stream_and_consumer() -> None:
    settings, sr = load(
        NATS_URL="nats://elsewhere:4222",
        NATS_STREAM_PREFIX="dev",
        NATS_CONSUMER_PREFIX="dev-consumer",
        NATS_MESSAGE_TTL_SECS="3600",
        NATS_MAX_MSGS_PER_SUBJECT="9",
        NATS_DUPLICATE_WINDOW_SECS="60",
    )
    assert settings.nats_url.get_secret_value() == "nats://elsewhere:4222"
    assert [spec.name for spec in settings.streams()][:4] == [
        "dev-events",
        "dev-commands",
        "dev-queries",
        "dev-dlq",
    ]
    for stream in sr.event_streams:
        assert (stream.max_age, stream.duplicate_window) == (timedelta(hours=1), timedelta(seconds=60))
        assert stream.max_msgs_per_subject == 9
    projections = sr.subscriptions["projections"]
    assert (projections.stream, projections.durable) == ("dev-events", "dev-consumer-projections")
    assert source(settings, "contexts.sr.streams.events.max_age") == ("1h", "env NATS_MESSAGE_TTL_SECS")
    name, where = source(settings, "contexts.sr.streams.events.name")
    assert name == "dev-events"
    assert where.endswith(":23 (env NATS_STREAM_PREFIX)")


def test_no_event_goes_where_requests_are_answered() -> None:
    """The stream of requests confirms nothing, so a publisher would wait for ever."""
    with pytest.raises(InvalidSubject, match=r"sr\.queries\.loop\.get confirms nothing"):
        load()[1].routing.destination("LoopGet", 1, "sr.queries.loop.get")
