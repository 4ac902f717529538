"""The watermark: what it may claim to know, whatever order deliveries arrive in."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from relay.domain.watermark import DeliveryRange, Watermark


def test_deliveries_without_a_gap_move_it() -> None:
    mark = Watermark().received([(1, 4), (2, 9)]).received([(3, 10)])
    assert mark == Watermark(3, 10)


def test_what_lies_beyond_a_gap_waits_until_the_gap_is_filled() -> None:
    behind = Watermark().received([(3, 30), (4, 40)])
    assert behind == Watermark(0, 0, (DeliveryRange(3, 4, 40),))
    assert behind.received([(1, 10)]) == Watermark(1, 10, (DeliveryRange(3, 4, 40),))
    assert behind.received([(1, 10)]).received([(2, 20)]) == Watermark(4, 40)


def test_a_redelivery_is_a_number_like_any_other() -> None:
    assert Watermark(5, 50).received([(6, 10)]) == Watermark(6, 50)


def test_a_delivery_that_is_known_changes_nothing() -> None:
    assert Watermark(5, 50).received([(4, 40)]) == Watermark(5, 50)


def test_a_known_number_for_a_new_place_means_that_the_server_has_gone_back() -> None:
    assert Watermark(5, 50).received([(4, 60)]).consumer_seq is None


def test_nothing_moves_it_while_the_numbers_are_not_known() -> None:
    mark = Watermark(None, 50).received([(1, 60)])
    assert (mark.consumer_seq, mark.stream_seq) == (None, 50)
    assert mark.compared(0, 55) == Watermark(1, 60)


def test_a_comparison_moves_it_over_the_gap_and_takes_what_is_beyond() -> None:
    mark = Watermark(2, 20).received([(7, 70), (8, 80)])
    assert mark.compared(6, 60) == Watermark(8, 80)
    assert mark.compared(4, 40) == Watermark(4, 40, (DeliveryRange(7, 8, 80),))


def test_a_comparison_that_is_late_takes_nothing_back() -> None:
    assert Watermark(9, 90).compared(6, 60) == Watermark(9, 90)


def test_a_comparison_of_a_part_moves_the_place_only() -> None:
    assert Watermark(2, 20).compared(None, 50) == Watermark(2, 50)


def test_a_server_that_went_back_is_followed_to_where_it_is() -> None:
    assert Watermark(9, 90).rewound(6, 60) == Watermark(6, 60)
    assert Watermark(9, 90).rewound(9, 90) == Watermark(9, 90)


def test_a_server_that_went_back_and_knows_places_we_do_not_must_be_compared() -> None:
    """Its number 6 was delivered to somebody who lost it: contiguous numbers from there would hide that."""
    assert Watermark(9, 40).rewound(6, 60) == Watermark(None, 40)


def test_the_spans_beyond_a_gap_are_bounded() -> None:
    mark = Watermark().received([(n, n) for n in range(2, 1000, 2)])
    assert len(mark.ahead) == 100
    assert mark.compared(999, 999) == Watermark(999, 999)


@given(st.integers(1, 60), st.integers(0, 2**32), st.integers(1, 8))
def test_it_never_passes_a_delivery_that_has_not_arrived(count: int, seed: int, size: int) -> None:
    """Batches of a consumer, some redelivered, in any order; after each, everything up to the mark is there."""
    chance = random.Random(seed)
    deliveries, place = list[tuple[int, int]](), 0
    for number in range(1, count + 1):
        redelivered = place > 0 and chance.random() < 0.3
        place += 0 if redelivered else chance.randint(1, 3)
        deliveries.append((number, chance.choice(deliveries)[1] if redelivered else place))
    batches = [deliveries[n : n + size] for n in range(0, count, size)]
    chance.shuffle(batches)
    mark, arrived = Watermark(), set[tuple[int, int]]()
    for batch in batches:
        arrived.update(batch)
        mark = mark.received(batch)
        assert all(it in arrived for it in deliveries if it[1] <= mark.stream_seq and first(it, deliveries))
    assert mark == Watermark(count, place)


def first(delivery: tuple[int, int], deliveries: list[tuple[int, int]]) -> bool:
    """Whether it is the first that brought its message."""
    return not any(other[1] == delivery[1] and other[0] < delivery[0] for other in deliveries)
