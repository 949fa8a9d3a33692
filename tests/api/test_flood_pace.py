"""How a flood's pace follows from how long calls take of those within their share. Instants are handed in."""

from __future__ import annotations

import math

from api.flood_pace import FORGOTTEN_S, LEAST, OPEN_FROM, ROUND_S, FloodPace

QUICK_S, LATE_S = 0.001, 0.050
HALF = 0.5


class Flood:
    """A pace, and a clock of the test's. usual: calls a round before anybody was late."""

    def __init__(self, usual: int) -> None:
        self.pace, self.now = FloodPace(), 1_000.0
        for _ in range(200):
            self.now += ROUND_S
            for _ in range(usual):
                self.pace.done(self.now)

    def tell(self, *took_s: float, runs: int = 1) -> float:
        """Of a lease each 20 ms; the pace after them."""
        for each in took_s:
            self.now += 0.02
            self.pace.tell(each, runs, self.now, HALF)
        return self.calls()

    def calls(self) -> float:
        return self.pace.calls(self.now)


def test_there_is_no_pace_while_leases_are_in_time() -> None:
    assert Flood(90).tell(*[QUICK_S] * 1_000) == math.inf


def test_a_late_lease_leaves_a_flood_its_share_of_what_was_usual() -> None:
    assert 0.9 * 45 < Flood(90).tell(QUICK_S, LATE_S) <= 45


def test_a_flood_slows_down_while_leases_are_late_to_half_of_its_share_at_the_least() -> None:
    flood = Flood(90)
    share = flood.tell(QUICK_S, LATE_S)
    assert flood.tell(LATE_S) < share
    assert flood.tell(*[LATE_S] * 100) == share / 2


def test_a_flood_that_was_slow_before_has_a_few_calls_a_round_whatever_happens() -> None:
    assert Flood(1).tell(QUICK_S, *[LATE_S] * 100) == LEAST


def test_a_flood_recovers_while_leases_are_in_time() -> None:
    flood = Flood(90)
    slow = flood.tell(QUICK_S, *[LATE_S] * 100)
    faster = flood.tell(*[QUICK_S] * 100)
    assert slow < faster < OPEN_FROM
    assert flood.tell(*[QUICK_S] * 1_000) == math.inf


def test_one_late_lease_in_thirty_keeps_the_pace() -> None:
    flood = Flood(90)
    before = flood.tell(QUICK_S, *[LATE_S] * 3)
    after = flood.tell(*([QUICK_S] * 30 + [LATE_S]) * 10)
    assert 0.8 * before < after < 1.25 * before


def test_nobody_is_slowed_down_for_a_ledger_that_is_slow_by_itself() -> None:
    assert Flood(90).tell(*[LATE_S, 3 * LATE_S] * 100) == math.inf


def test_a_lease_of_many_runs_takes_its_time_and_is_not_late_for_it() -> None:
    assert Flood(90).tell(QUICK_S, *[LATE_S] * 10, runs=1_000) == math.inf


def test_the_pace_is_forgotten_when_there_was_nobody_to_protect_for_a_while() -> None:
    flood = Flood(90)
    flood.tell(QUICK_S, LATE_S)
    flood.now += FORGOTTEN_S - 0.1
    assert flood.calls() < math.inf
    flood.now += 0.2
    assert flood.calls() == math.inf
