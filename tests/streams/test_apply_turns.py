"""Partitions of a process take turns in applying commands; those in which somebody waits beside a flood go first."""

from __future__ import annotations

import asyncio

from streams.apply_turns import IN_ORDER_EVERY, ApplyTurns


class Line:
    """Partitions that wait in line, by name, and who has had a turn."""

    def __init__(self, at_once: int = 1) -> None:
        self.turns, self.had = ApplyTurns(at_once), list[str]()

    async def wait(self, name: str, *, urgent: bool) -> asyncio.Task[None]:
        async def work() -> None:
            async with self.turns.turn(lambda: urgent):
                self.had.append(name)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task


async def test_who_is_urgent_comes_first_and_the_others_now_and_then() -> None:
    line = Line()
    async with line.turns.turn(lambda: False):
        waits = [await line.wait("flood", urgent=False)]
        waits += [await line.wait(f"calm-{number}", urgent=True) for number in range(IN_ORDER_EVERY)]
        assert line.had == []
    await asyncio.gather(*waits)
    assert line.had[0] == "calm-0"
    assert line.had.index("flood") == IN_ORDER_EVERY - 1


async def test_a_turn_that_is_given_as_its_wait_is_cancelled_goes_on_to_the_next() -> None:
    line = Line()
    async with line.turns.turn(lambda: False):
        first, second = await line.wait("a", urgent=False), await line.wait("b", urgent=False)
    first.cancel()
    await asyncio.wait([first])
    await second
    assert line.had == ["b"]


async def test_who_does_not_wait_any_more_is_passed_over() -> None:
    line = Line()
    async with line.turns.turn(lambda: False):
        first, second = await line.wait("a", urgent=True), await line.wait("b", urgent=False)
        first.cancel()
    await second
    assert line.had == ["b"]
    async with line.turns.turn(lambda: False):
        pass
