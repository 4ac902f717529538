"""Commands in a real fleet: sent in a transaction, executed once by one handler (SR-MESSAGE-CONTRACTS §4.2)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import psycopg

from relay import Outbox
from tests.acceptance import command_effects
from tests.acceptance.command_effects import CompleteIteration, StartIteration
from tests.acceptance.fleet import Fleet
from tests.waiting import wait_for

COMMANDS = """
[contexts.sea.streams.SEA_COMMANDS]
subjects = ["sea.commands.>"]
[contexts.sea.subscriptions.commands]
stream = "SEA_COMMANDS"
filter_subject = "{filter_subject}"
handler = "python:tests.acceptance.command_effects"
"""


def executed(fleet: Fleet) -> Counter[tuple[str, str]]:
    return Counter(fleet.query("sea", "SELECT iteration_id, action FROM effects"))  # type: ignore[arg-type]


def test_a_command_is_executed_once_if_its_transaction_committed(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(more=COMMANDS.format(filter_subject="sea.commands.>"))
    fleet.query("sea", command_effects.TABLE)
    fleet.scheduler()
    workers = [fleet.worker(), fleet.worker()]
    outbox, expected = Outbox("vibespro"), Counter[tuple[str, str]]()
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        for n in range(150):
            with connection.transaction(force_rollback=n % 3 == 0):
                outbox.add(connection, StartIteration(iteration_id=f"iter_{n}"))
                outbox.add(connection, CompleteIteration(iteration_id=f"iter_{n}"))
            if n % 3:
                expected |= Counter({(f"iter_{n}", "start"): 1, (f"iter_{n}", "complete"): 1})
    wait_for("some are executed", lambda: len(executed(fleet)) > 20)
    fleet.kill(workers[0])
    wait_for("all are executed", lambda: len(executed(fleet)) == len(expected))
    done = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NULL"
    wait_for("all are processed", lambda: fleet.query("sea", done) == [(0,)])
    assert executed(fleet) == expected
    assert {it.subject for it in fleet.messages("SEA_COMMANDS")} == {
        "sea.commands.iteration.start",
        "sea.commands.iteration.complete",
    }


def test_a_worker_does_not_start_where_a_command_has_no_handler(start_fleet: Callable[..., Fleet]) -> None:
    fleet = start_fleet(more=COMMANDS.format(filter_subject="sea.commands.oracle.run"))
    assert fleet.worker().wait(30) != 0
    assert re.search(r"INVALID_HANDLER \[handler\]: .*oracle\.run", fleet.log("worker"))
