"""Arrays that we write ourselves come out of PostgreSQL as they went in."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.adapters.postgres import array

#: All that a text of PostgreSQL can hold, and often what means something within an array.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")) | st.text('{}",\\ \n\tNUL')
MOMENTS = [
    datetime(2026, 7, 1, 12, 30, 15, 123456, tzinfo=UTC),
    datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
    datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=19, seconds=32))),
    None,
]


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url) as connection:
        yield connection


def read(connection: psycopg.Connection[Any], written: str, kind: str) -> Any:
    cursor = psycopg.Cursor(connection)
    cursor.execute(f"SELECT %s::{kind}[]", [written])  # type: ignore[call-overload]
    [(found,)] = cursor.fetchall()
    return found


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(TEXT | st.none()))
def test_texts(connection: psycopg.Connection[Any], texts: list[str | None]) -> None:
    assert read(connection, array.of_texts(texts), "text") == texts


@settings(
    max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.binary()))
def test_bytes(connection: psycopg.Connection[Any], bodies: list[bytes]) -> None:
    assert read(connection, array.of_bytes(bodies), "bytea") == bodies


def test_moments(connection: psycopg.Connection[Any]) -> None:
    assert read(connection, array.of_moments(MOMENTS), "timestamptz") == MOMENTS


@pytest.mark.parametrize(
    ("kind", "elements"),
    [("int", [1, -2, None]), ("boolean", [True, False, None]), ("uuid", [UUID(int=7), None]), ("text", [])],
)
def test_what_needs_no_quotes(connection: psycopg.Connection[Any], kind: str, elements: list[Any]) -> None:
    assert read(connection, array.of_plain(elements), kind) == elements
