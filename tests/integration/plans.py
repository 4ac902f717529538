"""What tests of query plans share: run a statement of the product, roll it back, and look at how it was done."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg

from relay.adapters.postgres.sql import statement

Connection = psycopg.Connection[Any]
Node = dict[str, Any]
#: The tables that are read through indexes.
TABLES = {"outbox_events", "inbox_messages", "task_outbox"}
_EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, VERBOSE, FORMAT JSON)"


@dataclass(frozen=True)
class Plan:
    """How a statement was carried out. ``root`` is the tree of EXPLAIN."""

    root: Node

    @property
    def touched(self) -> float:
        """How many rows the busiest step has looked at in all, those it threw away included."""
        return max(map(_touched, _nodes(self.root)))

    @property
    def fetched(self) -> float:
        """How many rows the busiest scan of a table has looked at, those it threw away included."""
        return max(_touched(node) for node in _nodes(self.root) if "Relation Name" in node)

    @property
    def sorted(self) -> float:
        """How many rows the longest sort was given; one that sorts only within equal prefixes counts too."""
        return max(
            (
                _touched(child)
                for node in _nodes(self.root)
                if "Sort" in node["Node Type"]
                for child in node["Plans"]
            ),
            default=0,
        )

    def indexes(self) -> set[str]:
        """The indexes that were read."""
        return {node["Index Name"] for node in _nodes(self.root) if "Index Name" in node and _ran(node)}

    def calls(self) -> set[str]:
        """Our functions that are called. The planner puts the text of a rule in the place of its call."""
        return set(re.findall(r"\brelay_\w+(?=\()", json.dumps(self.root)))

    def read_whole(self) -> set[str]:
        """The tables that were read from end to end."""
        return {
            node["Relation Name"] for node in _nodes(self.root) if node["Node Type"] == "Seq Scan" and _ran(node)
        }


def explain(
    conn: Connection,
    name: str,
    *,
    generic: bool = False,
    after: str | None = None,
    turn: Callable[[str], str] = str,
    **parameters: Any,
) -> Plan:
    """Run a statement, roll it back, and return its plan. ``turn``: changes its text.

    ``generic``: the plan for any values, which PostgreSQL may choose once it has prepared a statement.
    ``after``: the statement that its transaction begins with.
    """
    with conn.transaction(force_rollback=True):
        if after is not None:
            conn.execute(statement(after))
        if not generic:
            cursor = conn.execute(f"{_EXPLAIN} {turn(statement(name))}".encode(), parameters)
        else:
            cursor = _explain_generic(conn, name, parameters)
        found = cursor.fetchone()
    assert found is not None
    return Plan(found[0][0]["Plan"])


def _explain_generic(conn: Connection, name: str, parameters: dict[str, Any]) -> psycopg.Cursor[Any]:
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement(name))))
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement(name))
    conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    conn.execute("DEALLOCATE ALL")
    # What the driver does not name a type for, PostgreSQL infers.
    types = ["interval" if isinstance(parameters[name], timedelta) else "unknown" for name in names]
    conn.execute(f"PREPARE prepared {_list(types)} AS {text}".encode())
    execute = f"{_EXPLAIN} EXECUTE prepared {_list(['%s'] * len(names))}"
    return psycopg.ClientCursor(conn).execute(execute.encode(), [parameters[name] for name in names])


def _list(items: Sequence[str]) -> str:
    return f"({', '.join(items)})" if items else ""


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", []):
        yield from _nodes(child)


def _ran(node: Node) -> bool:
    return bool(node["Actual Loops"])


def _touched(node: Node) -> float:
    if (
        node["Node Type"] == "Bitmap Index Scan"
    ):  # counts entries, also those of versions that nobody sees any more
        return 0
    return float(node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)))


def held_to(plan: Plan, touched: int, sorted_rows: int) -> None:
    """Check that a plan reads no table whole, and looks at and sorts no more rows than these."""
    assert not plan.read_whole() & TABLES
    assert plan.touched <= touched
    assert plan.sorted <= sorted_rows
