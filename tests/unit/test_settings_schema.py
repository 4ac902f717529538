"""``schema`` of a context: which addresses it makes, and when two contexts may share a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.domain.errors import ConfigurationError
from relay.outbox import Outbox
from relay.settings.urls import database_of, with_search_path
from tests.unit.settings_support import BASE, Load, loader, refusal, refused, source

SHARED = BASE.replace("sea:s3cret@db/sea", "db/vibespro")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def both(sea: str, vibespro: str) -> str:
    text = SHARED.replace("[contexts.sea.sub", f"{sea}\n[contexts.sea.sub", 1)
    return f"{text}{vibespro}\n"


def test_two_contexts_share_a_database_by_schemas(load: Load) -> None:
    settings = load(both('schema = "sea"', 'schema = "public"'))
    sea, vibespro = settings.contexts["sea"], settings.contexts["vibespro"]
    assert sea.database == "postgresql://db/vibespro?options=-csearch_path%3Dsea"
    assert sea.handler_database.endswith("?options=-csearch_path%3Dsea%2C%22%24user%22%2Cpublic")
    assert vibespro.database.endswith("?options=-csearch_path%3Dpublic")
    assert source(settings, "contexts.sea.schema") == ("sea", "relay.toml:3")


def test_without_a_schema_the_address_is_as_it_was_written(load: Load) -> None:
    sea = load().contexts["sea"]
    assert sea.database == sea.handler_database == sea.database_url.get_secret_value()


@pytest.mark.parametrize(
    ("sea", "vibespro", "expected"),
    [
        ("", "", "is also the database of the context sea"),
        ('schema = "sea"', "", "is also the database of the context sea"),
        ("", 'schema = "vibespro"', "is also the database of the context sea"),
        ('schema = "one"', 'schema = "one"', "contexts.vibespro.schema: one is also contexts.sea.schema"),
        (
            'schema = "one"',
            'schema = "two"\nmicrodao_schema = "one"',
            "contexts.vibespro.microdao_schema: one is also contexts.sea.schema",
        ),
        (
            'schema = "one"\nmicrodao_schema = "view"',
            'schema = "two"\nmicrodao_schema = "view"',
            "vibespro.microdao_schema: view is also contexts.sea.microdao_schema",
        ),
    ],
)
def test_the_same_tables_are_refused(load: Load, sea: str, vibespro: str, expected: str) -> None:
    assert expected in refusal(load, both(sea, vibespro))


SAME = [
    "postgresql://vibespro:other@db/vibespro",
    "postgres://DB:5432/vibespro",
    "postgresql://db/vibespro?application_name=x",
    "postgresql:///vibespro?host=db",
    "postgresql:///?host=db&dbname=vibespro",
    "postgresql://vibespro@db",
]


@pytest.mark.parametrize("url", SAME)
def test_a_database_is_the_same_however_its_address_is_written(load: Load, url: str) -> None:
    text = both("", "").replace("postgresql://db/vibespro", url, 1)
    assert refused(load, text).field == "contexts.vibespro.database_url"
    text = both('schema = "one"', 'schema = "one"').replace("postgresql://db/vibespro", url, 1)
    assert refused(load, text).field == "contexts.vibespro.schema"


@pytest.mark.parametrize(
    "url",
    ["postgresql://db:5433/vibespro", "postgresql://db/Vibespro", "postgresql://db2/vibespro", "postgresql://db/"],
)
def test_another_server_port_or_name_is_another_database(load: Load, url: str) -> None:
    load(both("", "").replace("postgresql://db/vibespro", url, 1))


def test_the_servers_of_a_cluster_may_stand_in_any_order() -> None:
    one = database_of("postgresql://u:p@a,b:5433/d")
    assert one == database_of("postgresql://B:5433,a:5432/d") == (("a:5432,b:5433"), "d")
    assert database_of("postgresql://[::1]/d") == database_of("postgresql://[::1]:5432/d")


@pytest.mark.parametrize("name", ["", "Sea", "sea-1", "1sea", "pg_sea", "s" * 49, 'a"; DROP', "sea,public"])
def test_only_plain_names_are_schemas(load: Load, name: str) -> None:
    assert refused(load, f"{BASE}schema = {name!r}\n").field == "contexts.vibespro.schema"
    with pytest.raises(ConfigurationError) as caught:
        Outbox("sea", schema=name)
    assert caught.value.field == "schema"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://h/d", "postgresql://h/d?options=-csearch_path%3Da"),
        ("postgresql://h/d?sslmode=require", "postgresql://h/d?sslmode=require&options=-csearch_path%3Da"),
        (
            "postgresql:///d?options=-cgeqo%3Doff&host=/run",
            "postgresql:///d?host=/run&options=-cgeqo%3Doff%20-csearch_path%3Da",
        ),
    ],
)
def test_an_address_keeps_its_other_options(url: str, expected: str) -> None:
    assert with_search_path(url, "a") == expected
