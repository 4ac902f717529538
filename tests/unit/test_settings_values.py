"""How durations, sizes and keys are written in relay.toml."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from relay.settings import MetricsSettings
from relay.settings.sources import key_lines
from relay.settings.values import format_duration, format_size, parse_duration, parse_size, parse_start

SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("120s", 120),
        ("2m", 120),
        ("1h", 3600),
        ("7d", 604800),
        ("1.5s", 1.5),
        ("1h30m", 5400),
        (9, 9),
        (0.5, 0.5),
        ("90", 90),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("value", "start"),
    [
        ("beginning", "beginning"),
        ("now", "now"),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ],
)
def test_starts(value: object, start: object) -> None:
    assert parse_start(value) == start


@pytest.mark.parametrize("value", ["", "new", "2026-01-31T12:00:00", datetime(2026, 1, 31), 7, None, True])  # noqa: DTZ001
def test_no_starts(value: object) -> None:
    with pytest.raises(ValueError, match="is not a start; write beginning, now, or 2026"):
        parse_start(value)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1w", "1s2", "nan", "1e9", None, True, "9" * 400, "٣s"])
def test_not_durations(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration|100 years"):
        parse_duration(text)


@given(
    st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=9999)).map(lambda t: t - t % (SECOND / 1000))
)
def test_durations_read_as_written(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GB", 10 * 1024**3),
        ("512 MB", 512 * 1024**2),
        ("1KiB", 1024),
        ("7b", 7),
        (5, 5),
        ("-1", -1),
        ("unlimited", -1),
    ],
)
def test_sizes_are_binary_as_in_nats_server(text: object, size: int) -> None:
    assert parse_size(text) == size


@given(st.integers(min_value=-1, max_value=2**50))
def test_sizes_read_as_written(value: int) -> None:
    assert parse_size(format_size(value)) == value


def test_lines_of_every_way_to_write_a_key() -> None:
    text = (
        "# comment = 1\n"
        "a = 1\n"
        "b.c = '''\n"
        "x = 2\n"
        "[no.table]\n"
        "'''\n"
        "\n"
        '["t".u]  # here\n'
        "list = [\n"
        '  "x = 1", # ]\n'
        "]\n"
        "inline = { k = 1 }\n"
        "[[many]]\n"
        "z = 1\n"
        "[[many]]\n"
        "z = 2\n"
        "rows = [\n"
        "  { z = 3 },\n"
        "]\n"
    )
    assert key_lines(text) == {
        ("a",): 2,
        ("b",): 3,
        ("b", "c"): 3,
        ("t", "u"): 8,
        ("t", "u", "list"): 9,
        ("t", "u", "inline"): 12,
        ("t", "u", "inline", "k"): 12,
        ("many",): 13,
        ("many", "0"): 13,
        ("many", "0", "z"): 14,
        ("many", "1"): 15,
        ("many", "1", "z"): 16,
        ("many", "1", "rows"): 17,
        ("many", "1", "rows", "0"): 17,
        ("many", "1", "rows", "0", "z"): 17,
    }


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (9464, "127.0.0.1:9464"),
        ("9464", "127.0.0.1:9464"),
        ("0.0.0.0:9464", "0.0.0.0:9464"),
        ("metrics.internal:80", "metrics.internal:80"),
        ("[::1]:9464", "[::1]:9464"),
    ],
)
def test_an_address_to_listen_at_is_a_port_of_this_machine_unless_it_names_a_host(
    text: object, address: str
) -> None:
    assert MetricsSettings(scheduler=text).scheduler == address  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "0", "65536", "-1", "host:", ":9464", "::1:9464", "http://h:80", True, "94.64"]
)
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ValidationError, match="not an address to listen at; write 9464"):
        MetricsSettings(scheduler=text)  # type: ignore[arg-type]
