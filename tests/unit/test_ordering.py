"""Order per key: lanes, shards and chains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.ordering import LANES, UNORDERED, Shard, chains, default_key, goes_on, order_key, shards_of

quick = settings(max_examples=100, deadline=None)

Event = tuple[str, int]
#: Events as (key, number): numbers rise in the order of the batch, keys repeat, some opted out.
batches = st.lists(st.sampled_from(["", "a", "b", "c", "vibe:1"]), max_size=40).map(
    lambda keys: [(key, number) for number, key in enumerate(keys)]
)


def key_of(event: Event) -> str:
    return event[0]


def test_there_are_64_lanes_as_the_statements_assume() -> None:
    assert LANES == 64


def test_an_event_without_a_key_is_ordered_by_its_aggregate() -> None:
    assert default_key("vibe", "42") == "vibe:42"


def test_events_of_one_key_form_one_chain_and_the_others_their_own() -> None:
    batch = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5), ("a", 6)]
    assert chains(batch, key_of) == [[("a", 1), ("a", 3), ("a", 6)], [("b", 2), ("b", 5)], [("c", 4)]]


def test_events_that_opted_out_of_order_wait_for_nobody() -> None:
    assert UNORDERED == ""
    assert chains([("", 1), ("", 2), ("a", 3), ("", 4)], key_of) == [[("", 1)], [("", 2)], [("a", 3)], [("", 4)]]


def test_nothing_makes_no_chain() -> None:
    assert chains([], key_of) == []


@quick
@given(batches)
def test_chains_keep_the_order_of_every_key(batch: list[Event]) -> None:
    for chain in chains(batch, key_of):
        numbers = [number for _, number in chain]
        assert numbers == sorted(numbers)


@quick
@given(batches)
def test_every_event_is_in_exactly_one_chain(batch: list[Event]) -> None:
    assert sorted(number for chain in chains(batch, key_of) for _, number in chain) == list(range(len(batch)))


@quick
@given(batches)
def test_a_key_never_spans_two_chains_nor_a_chain_two_keys(batch: list[Event]) -> None:
    result = chains(batch, key_of)
    ordered = [chain for chain in result if chain[0][0] != ""]
    assert all(len({key for key, _ in chain}) == 1 for chain in result)
    assert len({chain[0][0] for chain in ordered}) == len(ordered)
    assert all(len(chain) == 1 for chain in result if chain[0][0] == "")


@quick
@given(batches)
def test_the_heads_of_the_chains_leave_in_the_order_of_the_batch(batch: list[Event]) -> None:
    heads = [chain[0][1] for chain in chains(batch, key_of)]
    assert heads == sorted(heads)


def test_four_shards_share_the_lanes_in_turn() -> None:
    assert Shard(0, 4).lanes[:4] == [0, 4, 8, 12]
    assert Shard(3, 4).lanes[-2:] == [59, 63]


@given(st.integers(min_value=1, max_value=64))
def test_the_shards_of_any_count_partition_the_64_lanes_exactly(count: int) -> None:
    lanes = [lane for index in range(count) for lane in Shard(index, count).lanes]
    assert sorted(lanes) == list(range(64))
    assert all(Shard(index, count).lanes for index in range(count))


@pytest.mark.parametrize(("index", "count"), [(4, 4), (-1, 4), (0, 0), (0, 65), (64, 64), (0, -1)])
def test_a_shard_that_does_not_exist_is_refused(index: int, count: int) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        Shard(index, count)


def test_a_received_key_is_its_own_order_unless_no_index_takes_it() -> None:
    assert order_key("vibe:1") == "vibe:1"
    assert order_key("") is order_key(None) is None
    one, other = order_key("x" * 10_000), order_key("x" * 10_001)
    assert one is not None
    assert one != other
    assert len(one) < 100


@pytest.mark.parametrize(
    ("shards", "workers", "count"), [(2, 1, 2), (2, 3, 6), (1, 5, 5), (2, 100, 64), (64, 2, 64)]
)
def test_a_backlog_is_shared_by_all_workers_as_far_as_there_are_lanes(
    shards: int, workers: int, count: int
) -> None:
    assert shards_of(shards, workers) == count


@pytest.mark.parametrize(
    ("count", "workers", "seconds", "goes"),
    [(2, 1, 1000.0, True), (2, 4, 1.0, True), (2, 4, 1000.0, False), (8, 4, 1000.0, True), (8, 1, 1000.0, False)],
)
def test_a_long_drain_makes_room_when_the_number_of_workers_is_another(
    count: int, workers: int, seconds: float, goes: bool
) -> None:
    """It has a while in any case: who sends jobs may know of the number later than who runs them."""
    assert goes_on(count, 2, workers, seconds) is goes
