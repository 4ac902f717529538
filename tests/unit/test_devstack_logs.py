"""Several logs on one screen."""

from __future__ import annotations

import io
from pathlib import Path

from relay.devstack.logs import LogConsole, last_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedPipe(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def shown(path: Path, text: str, output: io.StringIO) -> str:
    path.write_text("old\n")
    console = LogConsole(output)
    console.follow("worker", path)
    with path.open("a") as log:
        log.write(text)
    console.stop()
    return output.getvalue()


def test_each_new_line_carries_the_name_of_its_process(tmp_path: Path) -> None:
    assert shown(tmp_path / "a.log", "one\ntwo\n", io.StringIO()) == "worker    | one\nworker    | two\n"


def test_without_a_terminal_there_are_no_colours(tmp_path: Path) -> None:
    assert shown(tmp_path / "a.log", "\x1b[31mred\x1b[0m\n", io.StringIO()) == "worker    | red\n"


def test_on_a_terminal_the_prefix_is_coloured(tmp_path: Path) -> None:
    assert shown(tmp_path / "a.log", "one\n", Terminal()) == "\x1b[36mworker    |\x1b[0m one\n"


def test_a_last_line_without_an_end_is_shown(tmp_path: Path) -> None:
    assert shown(tmp_path / "a.log", "half", io.StringIO()) == "worker    | half\n"


def test_a_line_is_not_torn_apart(tmp_path: Path) -> None:
    path, output = tmp_path / "a.log", io.StringIO()
    console = LogConsole(output)
    console.follow("worker", path)
    path.write_text("one li")
    console._print_new()
    assert output.getvalue() == ""
    path.write_text("one line\n")
    console.stop()
    assert output.getvalue() == "worker    | one line\n"


def test_a_reader_that_went_away_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    console = LogConsole(ClosedPipe())
    console.follow("worker", path)
    path.write_text("one\n")
    console.stop()
    assert console.closed.is_set()


def test_the_end_of_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "none.log") == ""


def test_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"{number}\n" for number in range(30)))
    assert last_lines(path, 2) == "28\n29"
