"""Fires against the brute-force oracle: every zone of tzdata, 1970 to 2100, half of the instants near a clock change.

FENCEPOST_PROPERTY_EXAMPLES sets how many triples are tried, FENCEPOST_SEED repeats a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from random import Random

import pytest

from schemas.schedule import Cron, fires_between, next_fire, previous_fire
from schemas.zones import DAWN_S, timeline, zone_names
from tests.properties.cron_oracle import (
    DrawnCron,
    clock_like_fires,
    draw_cron,
    expected_next,
    interval_like_fires,
    oracle_zone,
)

EXAMPLES = int(os.environ.get("FENCEPOST_PROPERTY_EXAMPLES", "20000"))
_NEW = Random().randrange(1, 1 << 32) if os.environ.get("FENCEPOST_EXPLORE") else 20261129
SEED = int(os.environ.get("FENCEPOST_SEED", "0")) or _NEW
SHARDS = 8
BEGIN = datetime(1970, 1, 3, tzinfo=UTC)
END = datetime(2100, 1, 1, tzinfo=UTC)
ZONES = sorted(zone_names())
ALL_DAY = frozenset(range(24))


def fire_after(cron: Cron, after: datetime) -> datetime | None:
    return next_fire(cron, after, job_id="property", created_at=BEGIN)


def changes_of(zone: str) -> list[datetime]:
    """The zone's clock changes in our years; used only to aim at them."""
    starts = timeline(zone).starts
    instants = [datetime.fromtimestamp(start, UTC) for start in starts if start != DAWN_S]
    return [instant for instant in instants if BEGIN < instant < END]


def draw_instant(random: Random, changes: list[datetime]) -> datetime:
    """Any microsecond of our years, or one within 2 h or 30 h of a change."""
    if changes and random.random() < 0.5:
        width_s = random.choice((7_200, 108_000))
        instant = random.choice(changes) + timedelta(seconds=random.randint(-width_s, width_s))
    else:
        instant = BEGIN + random.random() * (END - BEGIN)
    return random.choice((instant, instant.replace(microsecond=0), instant.replace(second=0, microsecond=0)))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_next_fire_equals_the_oracle_for_any_expression_zone_and_instant(shard: int) -> None:
    print(f"FENCEPOST_SEED={SEED}")
    random = Random(SEED * SHARDS + shard)
    zones = ZONES[shard::SHARDS]
    for number in range(EXAMPLES // SHARDS):
        zone = zones[number % len(zones)]
        drawn, after = draw_cron(random), draw_instant(random, changes_of(zone))
        schedule = Cron(expr=drawn.expr, zone=zone)
        context = f"seed {SEED}: {drawn.expr!r} in {zone} after {after.isoformat()}"
        expected = expected_next(drawn, zone, after)
        assert fire_after(schedule, after) == expected, context
        assert_neighbours(schedule, after, context)
        assert_neighbours(schedule, expected, context)


def assert_neighbours(schedule: Cron, instant: datetime, context: str) -> None:
    """Nothing fires between the previous fire of an instant and the instant."""
    before = previous_fire(schedule, instant, job_id="property", created_at=BEGIN)
    assert before is not None, context
    assert before < instant, context
    following = fire_after(schedule, before)
    assert following is not None, context
    assert following >= instant, context


def distinct_changes() -> Iterator[tuple[str, datetime]]:
    """One zone for each (instant, offsets) of a change: most zones share theirs with others."""
    seen = set()
    for zone in ZONES:
        line = timeline(zone)
        for start, (before, after) in zip(line.starts[1:], pairwise(line.offsets), strict=True):
            instant = datetime.fromtimestamp(start, UTC)
            if BEGIN < instant < END and (start, before, after) not in seen:
                seen.add((start, before, after))
                yield zone, instant


def is_odd(zone: str, change: datetime) -> bool:
    """Not the hour that everybody knows."""
    before, after = (
        (change + d).astimezone(oracle_zone(zone)).utcoffset() for d in (-timedelta(seconds=1), timedelta())
    )
    assert before is not None
    assert after is not None
    return abs(after - before) != timedelta(hours=1)


CLOCK_LIKE = DrawnCron(
    "*/10 0-22 * * *", frozenset(range(0, 60, 10)), ALL_DAY - {23}, frozenset(range(1, 13)), None, None
)
INTERVAL_LIKE = DrawnCron("*/7 * * * *", frozenset(range(0, 60, 7)), ALL_DAY, frozenset(range(1, 13)), None, None)


@pytest.mark.parametrize("drawn", [CLOCK_LIKE, INTERVAL_LIKE], ids=["clock-like", "interval-like"])
def test_no_fire_is_lost_or_doubled_across_a_clock_change(drawn: DrawnCron) -> None:
    print(f"FENCEPOST_SEED={SEED}")
    changes = list(distinct_changes())
    odd = [change for change in changes if is_odd(*change)]
    usual = Random(SEED).sample(changes, min(len(changes), EXAMPLES // 40))
    assert len(odd) > 100
    walk = interval_like_fires if drawn.interval_like else clock_like_fires
    for zone, change in [*odd, *usual]:
        start, end = change - timedelta(hours=3), change + timedelta(hours=28)
        expected = set()
        for fire in walk(drawn, oracle_zone(zone), start):
            if fire > end:
                break
            if fire > start:
                expected.add(fire)
        schedule = Cron(expr=drawn.expr, zone=zone)
        fires = list(fires_between(schedule, start, end, job_id="property", created_at=BEGIN))
        context = f"{drawn.expr!r} in {zone} around {change.isoformat()}"
        assert fires == sorted(expected), context
        for quarters in range(-4, 9):
            at = change + quarters * timedelta(minutes=15, seconds=1)
            before = previous_fire(schedule, at, job_id="property", created_at=BEGIN)
            assert before == max(fire for fire in fires if fire < at), context


@pytest.mark.parametrize("shard", range(SHARDS))
def test_fires_strictly_increase_and_walking_back_finds_the_same(shard: int) -> None:
    print(f"FENCEPOST_SEED={SEED}")
    random = Random(SEED * SHARDS + shard)
    for zone in ZONES[shard::SHARDS]:
        schedule = Cron(expr=draw_cron(random).expr, zone=zone)
        fire = draw_instant(random, changes_of(zone))
        forward: list[datetime] = []
        for _ in range(30):
            following = fire_after(schedule, fire)
            assert following is not None
            assert following > fire, f"seed {SEED}: {schedule} at {fire.isoformat()}"
            forward.append(fire := following)
        back = [fire]
        while len(back) < len(forward):
            earlier = previous_fire(schedule, back[-1], job_id="property", created_at=BEGIN)
            assert earlier is not None
            back.append(earlier)
        assert back[::-1] == forward, f"seed {SEED}: {schedule}"
