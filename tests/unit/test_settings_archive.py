"""The section `archive`: off by default, and refused where a row would not outlive its message."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.settings_support import BASE, Load, loader, refusal, source

ARCHIVE = '[contexts.sea.archive]\nafter = "90d"\ndirectory = "/var/lib/relay/archive"\n'


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def test_it_is_off_by_default(load: Load) -> None:
    archive = load().contexts["sea"].archive
    assert (archive.after, archive.directory) == (None, None)


BUCKET = """[contexts.sea.archive]
after = "90d"
bucket = "s3://company/relay"
endpoint = "https://s3.example:9000"
access_key_id = "ann"
secret_access_key = "s3cret"
options = { aws_server_side_encryption = "aws:kms" }
"""


def test_a_bucket_with_its_access_and_options_and_no_secret_is_shown(load: Load) -> None:
    settings = load(BASE + BUCKET, RELAY_CONTEXTS__SEA__ARCHIVE__REGION="eu-west-1")
    archive = settings.contexts["sea"].archive
    assert (archive.place, archive.region) == ("s3://company/relay", "eu-west-1")
    assert archive.options["aws_server_side_encryption"].get_secret_value() == "aws:kms"
    for key in ("access_key_id", "secret_access_key", "options.aws_server_side_encryption"):
        assert source(settings, f"contexts.sea.archive.{key}")[0] == "***"


def test_the_key_may_be_in_a_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from a file\n")
    text = BUCKET.replace('secret_access_key = "s3cret"', f'secret_access_key_file = "{tmp_path / "key"}"')
    key = load(BASE + text).contexts["sea"].archive.secret_access_key
    assert key is not None
    assert key.get_secret_value() == "from a file"


def test_it_is_on_with_both_values(load: Load) -> None:
    settings = load(BASE + ARCHIVE)
    archive = settings.contexts["sea"].archive
    assert (archive.after, archive.directory) == (timedelta(days=90), Path("/var/lib/relay/archive"))
    assert source(settings, "contexts.sea.archive.after") == ("90d", "relay.toml:10")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('after = "90d"', r"relay.toml:9: contexts.sea.archive.directory: is required"),
        ('directory = "/a"', r'contexts.sea.archive.after: is required \(for example after = "90d"'),
        ('after = "90d"\ndirectory = "a"', r"relay.toml:11: contexts.sea.archive.directory: must begin with /"),
        ('after = "7d"\ndirectory = "/a"', r"archive.after: must be longer than the max_age of SEA_EVENTS"),
        ('after = "59m"\ndirectory = "/a"', "archive.after: must be 1h to 10y; 90d to 365d is usual"),
        ('after = "11y"\ndirectory = "/a"', "archive.after: must be 1h to 10y"),
        ('after = "90d"\nbucket = "company"', r"archive.bucket: 'company' is not a bucket; write \"s3://name\""),
        ('after = "90d"\nbucket = "s3://a@b"', "is not a bucket"),
        ('after = "90d"\ndirectory = "/a"\nkeep = "90d"', r"archive.keep: must be longer than after \(90d\)"),
        ('bucket = "s3://a"', r"archive.after: is required"),
        (
            'after = "90d"\nbucket = "s3://a"\nendpoint = "s3.example"',
            "archive.endpoint: 's3.example' is not an add",
        ),
        ('after = "90d"\ndirectory = "/a"\nregion = "eu"', "archive.region: is not for a directory"),
        ('after = "90d"\nbucket = "s3://a"\naccess_key_id = "ann"', "goes together with secret_access_key"),
        ('after = "soon"', "'soon' is not a duration"),
        ('age = "90d"', "unknown key"),
    ],
)
def test_refusals(load: Load, lines: str, expected: str) -> None:
    assert re.search(expected, refusal(load, f"{BASE}[contexts.sea.archive]\n{lines}\n"))


@pytest.mark.parametrize(
    ("age", "keeps"), [("90d", "for 90d"), ("100d", "for 100d"), ("unlimited", "for ever"), ("0", "for ever")]
)
@pytest.mark.parametrize("context", ["sea", "vibespro"])
def test_rows_must_outlive_the_messages_of_every_declared_stream(
    load: Load, context: str, age: str, keeps: str
) -> None:
    """Its own stream, and those it reads."""
    text = f'{BASE}{ARCHIVE}[contexts.{context}.stream]\nmax_age = "{age}"\n'
    stream = f"{context.upper()}_EVENTS"
    expected = rf"relay.toml:10: contexts.sea.archive.after: .* max_age of {stream}, which keeps messages {keeps}"
    assert re.search(expected, refusal(load, text))


def test_a_day_longer_is_enough(load: Load) -> None:
    load(f'{BASE}{ARCHIVE}[contexts.vibespro.stream]\nmax_age = "89d"\n')


def test_the_stream_of_a_context_that_sea_does_not_read_is_not_asked(load: Load) -> None:
    text = BASE.replace("VIBESPRO_EVENTS", "OTHER").replace("vibespro.event", "other.event")
    load(f'{text}{ARCHIVE}[contexts.vibespro.stream]\nmax_age = "unlimited"\n')


@pytest.mark.parametrize(
    ("reader", "writer", "warned"),
    [
        ("", "", []),  # no ids are ever forgotten
        ('keep = "3y"', "", ["vibespro"]),  # its events stay for ever
        ('keep = "3y"', 'keep = "4y"', ["vibespro"]),
        ('keep = "3y"', 'keep = "3y"', []),
        ('keep = "3y"', 'keep = "2y"', []),
    ],
)
def test_a_consumer_that_forgets_ids_before_their_events_are_deleted_is_found(
    load: Load, reader: str, writer: str, warned: list[str]
) -> None:
    settings = load(f"{BASE}{ARCHIVE}{reader}\n{ARCHIVE.replace('sea', 'vibespro')}{writer}\n")
    assert settings.outlived("sea") == warned
    assert settings.outlived("vibespro") == []
