"""Nothing is kept without a rule: each table, each stream, and the times that the rules repeat."""

from __future__ import annotations

import re
from pathlib import Path

from dramatiq.brokers.redis import DEFAULT_DEAD_MESSAGE_TTL

from relay.adapters.postgres.grants import TABLES
from relay.adapters.postgres.sql import statement
from relay.domain.archive import ArchiveKind
from relay.domain.retention import DEAD_JOBS_KEPT, Ends, KeptIn, rules_of
from relay.ops.retention import kept_streams
from relay.settings import Settings

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "relay" / "adapters" / "postgres" / "schema"
#: What has no time of its own: it goes with another row, or is few.
UNDATED = {"archived_messages", "scheduled_jobs", "subject_keys", "erased_messages", "archive_batches"}
CREATED = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?(\w+)", re.MULTILINE)


def test_each_table_of_the_schema_has_a_rule() -> None:
    made = {it for file in SCHEMA.glob("*.sql") for it in CREATED.findall(file.read_text())}
    assert len(made) > 20
    assert {*rules_of(KeptIn.TABLE)} == {*TABLES}
    assert made - {*rules_of(KeptIn.TABLE)} == set()


def test_each_stream_of_a_configuration_has_a_rule() -> None:
    sea = {"database_url": "postgresql://h/sea", "streams": {"AUDIT": {"subjects": ["sea.audit.>"]}}, "stream": {}}
    lake = {"database_url": "postgresql://h/lake"}
    settings = Settings.model_validate({"contexts": {"sea": sea, "lake": lake}})
    for name, context in settings.contexts.items():
        assert [it.name for it in kept_streams(context)] == [it.name for it in settings.streams(name)]
    assert {it.rule.name for it in kept_streams(settings.contexts["sea"])} == {*rules_of(KeptIn.STREAM)}


def test_each_part_of_the_archive_has_a_rule() -> None:
    assert [*rules_of(KeptIn.ARCHIVE)] == [*ArchiveKind]


def test_what_goes_by_time_and_what_never_goes_shows_its_oldest() -> None:
    asked = {*re.findall(r"SELECT '(\w+)'", statement("server/oldest"))}
    lasting = {name for name, it in rules_of(KeptIn.TABLE).items() if it.ends in (Ends.TIME, Ends.NEVER)}
    assert asked == lasting - UNDATED


def test_dramatiq_keeps_dead_jobs_as_long_as_the_rule_says() -> None:
    assert DEAD_JOBS_KEPT.total_seconds() * 1000 == DEFAULT_DEAD_MESSAGE_TTL
