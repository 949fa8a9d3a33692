"""A first look at every target, what was found before, and that the fuzzer finds what it is there to find."""

from __future__ import annotations

import time
from tempfile import NamedTemporaryFile
from threading import Thread
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.apart import LastInput
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.trial import INPUT_MAX_BYTES, SLOW_S, Trial

# What a target could not take once, each by itself: the rest of what is kept stands in the tests of what was mended.
KEPT = [
    ("cron", "0 0 29 2 *,0"),
    ("job-files", "!!int x"),
    ("job-files", "jobs: &a [*a]"),
    ("queries", "SELECT " + "(" * 15_000),
    ("queries", "SELECT " + "- " * 9_900),
]


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_whatever_comes(name: str) -> None:
    report = Trial(TARGETS[name]).run(seeded=1, inputs=15)
    assert report.finding is None
    assert report.tried == 15


@pytest.mark.parametrize(("name", "value"), KEPT, ids=[f"{name} {str(value)[:20]}" for name, value in KEPT])
def test_what_was_found_once_is_refused(name: str, value: Any) -> None:
    trial = Trial(TARGETS[name])
    trial.feed(value)
    assert trial.report.finding is None


def finding_in(feed: Any) -> tuple[Any, str]:
    report = Trial(Target(st.integers(0, 1_000), feed, (KeyError,))).run(seeded=1, inputs=5_000)
    assert report.finding is not None
    return report.finding.value, report.finding.reason


def test_an_error_that_refuses_nothing_is_found_by_its_smallest_input() -> None:
    def read(number: int) -> None:
        if number % 2:
            raise KeyError
        if number >= 100:
            raise IndexError("too large")

    assert finding_in(read) == (100, "IndexError: too large")


def test_an_input_that_takes_too_long_is_found() -> None:
    def read(number: int) -> None:
        until = time.thread_time() + SLOW_S
        while number > 100 and time.thread_time() < until:
            pass

    value, reason = finding_in(read)
    assert value > 100
    assert reason == "it took 1.0 s"


def test_an_input_that_takes_too_much_memory_is_found() -> None:
    def read(number: int) -> None:
        bytearray(b"x") * (number > 100) * (4 * INPUT_MAX_BYTES)

    value, reason = finding_in(read)
    assert value > 100
    assert reason.endswith("MiB")


def test_the_number_of_inputs_can_be_told_while_a_larger_one_is_noted() -> None:
    with NamedTemporaryFile() as file:
        last = LastInput(file)

        def note_all() -> None:
            for size in (1, 400_000) * 100:
                last.note("é" * size)

        noting = Thread(target=note_all)
        noting.start()
        counts = [0]
        while counts[-1] < 200:
            counts.append(LastInput(file).count())
        noting.join()
        assert counts == sorted(counts)
        assert last.value() == "é" * 400_000
