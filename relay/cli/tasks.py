"""`relay tasks`: look at background tasks, cancel those that have not begun, run failed ones again.

Types and queues of tasks can be paused, and types be limited.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from relay.cli.controls import add_controls
from relay.cli.options import JsonOption, OneContextOption, Options, one_context
from relay.cli.rows import group_of
from relay.cli.work import show_work
from relay.domain.controls import What
from relay.domain.errors import InvalidRequest
from relay.domain.history import Of
from relay.ops.kinds import TASKS

app: Final = group_of(TASKS)
_TYPE: Final = Annotated[str | None, typer.Option("--type", help="A type of tasks.")]
_EITHER: Final[Options] = {
    "type": (_TYPE, None),
    "queue": (Annotated[str | None, typer.Option("--queue", help="A queue of tasks.")], None),
}
_ONE: Final[Options] = {"type": (Annotated[str, typer.Option("--type", help="A type of tasks.")], ...)}


@app.command("type")
def _show_type(
    name: Annotated[str, typer.Argument(help="A type of tasks.")],
    context: OneContextOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one type of tasks: what waits, runs and fails, its history, its pause or limit."""
    show_work(one_context(context, lambda _: True), Of.TASK, name, as_json=as_json)


def _subject(options: dict[str, Any]) -> tuple[What, str]:
    task_type, queue = options["type"], options.get("queue")
    if (task_type is None) is (queue is None):
        raise InvalidRequest("say which: --type or --queue")
    return (What.TASK_QUEUE, str(queue)) if task_type is None else (What.TASK_TYPE, task_type)


add_controls(app, _EITHER, _subject, ("pause", "resume"), lambda _: True)
add_controls(app, _ONE, _subject, ("limit", "restore"), lambda _: True)
