"""Settings as few databases have them. Nothing of ours may depend on them."""

from __future__ import annotations

from typing import Final

import psycopg

SETTINGS: Final = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Pacific/Chatham",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "plpgsql.extra_errors": "all",
    "client_min_messages": "error",
    "client_encoding": "LATIN1",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
}
#: The same from the environment of a process, and limits that are too short for what owners do.
OPTIONS: Final = "-c DateStyle=German -c IntervalStyle=iso_8601 -c lock_timeout=2s -c idle_session_timeout=10s"


def make_odd(url: str) -> None:
    """Let all sessions of this database have them, from their next connect on."""
    with psycopg.connect(url, autocommit=True) as owner:
        [[name]] = owner.execute("SELECT current_database()").fetchall()
        for setting, value in SETTINGS.items():
            owner.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
