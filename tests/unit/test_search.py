"""The line that operators search with: it is read or refused, and its terms survive being written."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.errors import InvalidRequest
from relay.domain.search import Term, fits, ids_from, like, names_of, parse, written

TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1, max_size=20)
NAMES = st.from_regex(r"[a-z][a-z0-9_.]{0,9}", fullmatch=True) | st.just("")


@given(st.lists(st.builds(Term, NAMES, TEXTS), min_size=1, max_size=5).map(tuple))
def test_what_is_written_is_read_again(terms: tuple[Term, ...]) -> None:
    assert parse(written(terms)) == terms


@given(st.text(max_size=320) | st.text(':" \\ab*', max_size=40))
def test_any_text_is_read_or_refused_and_reads_the_same_when_written(text: str) -> None:
    with suppress(InvalidRequest):
        terms = parse(text)
        assert terms
        assert parse(written(terms)) == terms


def test_the_line_of_the_manual() -> None:
    assert parse('customer:47 reason:timeout since:6h type:order_* "two words" SEA_EVENTS:12') == (
        Term("customer", "47"),
        Term("reason", "timeout"),
        Term("since", "6h"),
        Term("type", "order_*"),
        Term("", "two words"),
        Term("", "SEA_EVENTS:12"),
    )


@pytest.mark.parametrize("text", ["", "   ", '"open', 'a:""', 'x"y', "a " * 11, "x" * 301, "a\x00"])
def test_what_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(text)
    assert (refused.value.field, bool(refused.value.hint)) == ("q", True)


@given(TEXTS)
def test_a_text_without_a_star_at_its_end_fits_itself_only(text: str) -> None:
    assert fits(text, text.rstrip("*") if text.endswith("*") else text) is True
    if not text.endswith("*"):
        assert not fits(text, f"{text}x")
    assert fits(f"{text}*", f"{text}tail")
    assert not fits(text, None)


def test_patterns_of_sql_mean_nothing_of_their_own() -> None:
    assert like("order_placed") == r"order\_placed"
    assert like("order_*") == r"order\_%"
    assert like("100%") == r"100\%"
    assert like(None) is None


@given(st.uuids(), st.integers(8, 36))
def test_the_beginning_of_an_id_finds_it(id: UUID, length: int) -> None:
    found = ids_from(str(id)[:length])
    assert found is not None
    low, high = found
    assert UUID(low) <= id <= UUID(high)


def test_a_word_that_begins_no_id() -> None:
    assert [ids_from(it) for it in ("019c", "xyz", "019C0000", "")] == [None] * 4


def test_fields_have_short_names() -> None:
    assert names_of("customer_id") == {"customer_id", "customer"}
    assert names_of("order.id") == {"order.id", "order"}
