"""Any good chaos run passes, and any single thing gone wrong in it is caught."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chaos.history import Effect, InboxState, Operation, OutboxState, Outcome, Plan, Produced, Source, Stored
from tests.unit.chaos_support import BEGIN, EFFECTIVE, broken, exchange, good_run

choices = st.lists(
    st.tuples(st.sampled_from(Source), st.sampled_from(["", "a", "b", "c"]), st.sampled_from(Plan)),
    min_size=1,
    max_size=30,
).filter(lambda run: any(plan in EFFECTIVE for _, _, plan in run))
thorough = settings(max_examples=100, deadline=None)


@thorough
@given(choices)
def test_any_good_run_passes(run: list[tuple[Source, str, Plan]]) -> None:
    assert broken(good_run(run)) == set()


@thorough
@given(choices, st.data())
def test_any_single_missing_row_is_caught(run: list[tuple[Source, str, Plan]], data: st.DataObject) -> None:
    evidence = good_run(run)
    place = data.draw(st.sampled_from(["outbox", "stream", "inbox", "effects", "incidents"]))
    rows = getattr(evidence, place)
    assume(rows)
    del rows[data.draw(st.integers(0, len(rows) - 1))]
    assert broken(evidence)


@thorough
@given(choices, st.data())
def test_any_single_extra_row_is_caught(run: list[tuple[Source, str, Plan]], data: st.DataObject) -> None:
    evidence = good_run(run)
    place = data.draw(st.sampled_from(["effects", "incidents"]))
    rows = getattr(evidence, place)
    assume(rows)
    rows.append(data.draw(st.sampled_from(rows)))
    assert broken(evidence) == {3 if place == "effects" else 5}


@thorough
@given(choices, st.data())
def test_any_two_events_of_a_key_in_the_wrong_order_are_caught(
    run: list[tuple[Source, str, Plan]], data: st.DataObject
) -> None:
    evidence = good_run(run)
    keys = [[row.event_id for row in evidence.business if row.key == key] for key in ("a", "b", "c")]
    assume(several := [ids for ids in keys if len(ids) > 1])
    one, other = data.draw(
        st.lists(st.sampled_from(data.draw(st.sampled_from(several))), min_size=2, unique=True)
    )[:2]
    exchange(evidence, one, other)
    assert broken(evidence) == {4}


@thorough
@given(choices, st.data())
def test_any_phantom_is_caught(run: list[tuple[Source, str, Plan]], data: st.DataObject) -> None:
    evidence = good_run(run)
    ghost = Produced("ghost", Source.HTTP, "a", Plan.ACCEPT)
    evidence.operations.append(Operation(99, "rollback", Outcome.FAILED, [ghost], BEGIN))
    rows, row = data.draw(
        st.sampled_from(
            [
                (evidence.outbox, OutboxState("ghost", "published", 99)),
                (evidence.stream, Stored(99, "ghost")),
                (evidence.inbox, InboxState("ghost", "http", "processed", 1)),
                (evidence.effects, Effect("ghost", Source.HTTP, "a", 99)),
            ]
        )
    )
    rows.append(row)
    assert broken(evidence) == {2}
