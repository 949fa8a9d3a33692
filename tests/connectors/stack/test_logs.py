"""Reading what the parts log."""

from __future__ import annotations

from pathlib import Path

from connectors.stack.logs import read_lines, tail


def test_the_tail_is_of_what_was_written_since(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("an earlier start\n")
    since = log.stat().st_size
    with log.open("a") as more:
        more.writelines(f"line {number}\n" for number in range(30))
    assert tail(log, since, lines=2) == "line 28\nline 29"
    assert "earlier" not in tail(log, since, lines=100)


def test_the_tail_of_a_log_that_was_never_written_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "nothing.log") == ""


def test_lines_are_read_to_the_end_even_an_unfinished_one(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("one\n\ntwo")
    assert list(read_lines(log, follow=False)) == ["one", "", "two"]


def test_following_yields_lines_written_later(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    log.write_text("one\ntw")
    lines = read_lines(log, follow=True)
    assert next(lines) == "one"
    with log.open("a") as more:
        more.write("o\nthree\n")
    assert [next(lines), next(lines)] == ["two", "three"]
    lines.close()
