"""What waits for a place of a full queue or concurrency key, in memory."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from api import full_scopes
from api.full_scopes import KEPT, FullScopes, Scope
from api.ready_index import Queue, ReadyIndex, ReadyRun

MAIL = ("acme", "mail")
OF_QUEUE, OF_KEY = Scope(MAIL), Scope(MAIL, "a")


class Bench:
    def __init__(self) -> None:
        self.index, self.left_out = ReadyIndex(), list[Queue]()
        self.full = FullScopes(self.index, self.left_out.append)

    def claim(self, count: int, first: int = 0) -> list[ReadyRun]:
        """Runs that somebody has popped."""
        self.index.add(MAIL, [ReadyRun(UUID(int=first + number), 1, 1) for number in range(count)])
        return self.index.pop(MAIL, count)


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_of_what_is_not_full_everybody_may_ask(bench: Bench) -> None:
    assert bench.full.may_ask(OF_QUEUE, 7) == 7
    assert not bench.full.is_full(MAIL)


async def test_what_was_refused_is_not_popped_until_there_is_a_place(bench: Bench) -> None:
    runs = bench.claim(3)
    bench.full.put_aside(OF_QUEUE, runs)
    assert bench.full.is_full(MAIL)
    assert bench.full.may_ask(OF_QUEUE, 3) == 0
    bench.index.add(MAIL, runs)  # a look, or a hint that came twice
    assert bench.index.pop(MAIL, 10) == []


async def test_for_each_place_one_run_is_asked_for_in_order(bench: Bench) -> None:
    runs = bench.claim(3)
    bench.full.put_aside(OF_QUEUE, runs)
    for run in runs[:2]:
        bench.full.free(MAIL, None)
        assert bench.index.pop(MAIL, 10) == [run]
        assert bench.full.may_ask(OF_QUEUE, 5) == 1
        assert bench.full.may_ask(OF_QUEUE, 5) == 0


async def test_whoever_comes_too_late_for_the_place_is_first_again(bench: Bench) -> None:
    runs = bench.claim(2)
    bench.full.put_aside(OF_QUEUE, runs)
    bench.full.free(MAIL, None)
    bench.full.may_ask(OF_QUEUE)
    bench.full.put_aside(OF_QUEUE, bench.index.pop(MAIL, 1))  # another process took it
    bench.full.free(MAIL, None)
    assert bench.index.pop(MAIL, 10) == runs[:1]


async def test_a_place_of_another_key_is_none(bench: Bench) -> None:
    bench.full.put_aside(OF_KEY, bench.claim(1))
    bench.full.free(MAIL, "b")
    assert bench.full.full_keys([MAIL]) == [("acme", "mail", "a")]
    assert not bench.full.is_full(MAIL)
    bench.full.free(MAIL, "a")
    assert bench.full.full_keys([MAIL]) == []


async def test_what_is_not_kept_is_looked_for_once_there_is_a_place_that_nobody_waits_for(bench: Bench) -> None:
    runs = bench.claim(KEPT + 1)
    bench.full.put_aside(OF_QUEUE, runs)
    for _ in range(KEPT):
        bench.full.free(MAIL, None)
    assert bench.left_out == []
    bench.full.free(MAIL, None)
    assert bench.left_out == [MAIL]
    bench.index.add(MAIL, runs[KEPT:])  # the look finds it: nobody has it claimed
    assert runs[KEPT] in bench.index.pop(MAIL, KEPT + 1)


async def test_after_a_moment_all_are_asked_for_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_scopes, "ASK_AGAIN_S", 0.01)
    runs = bench.claim(3)
    bench.full.put_aside(OF_QUEUE, runs[:2])
    bench.full.put_aside(OF_KEY, runs[2:])
    async with asyncio.timeout(10):
        while bench.full.is_full(MAIL):  # noqa: ASYNC110
            await asyncio.sleep(0.005)  # a timer tells nobody
    assert {*bench.index.pop(MAIL, 10)} == {*runs}
    assert bench.full.full_keys([MAIL]) == []
