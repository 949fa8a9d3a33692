"""Another tzdata loses no occurrence and doubles none: against all the local minutes of some days, read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import NamedTuple
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from schemas.carry_over import carry_over
from schemas.cron import cron_expression
from schemas.schedule import Cron, fires_between, next_fire
from schemas.zones import KeptZone
from tests.schemas.zone_files import tzif

JOB = UUID(int=7)
START = datetime(2026, 3, 1, tzinfo=UTC)
CREATED_AT = START - timedelta(days=30)
DAYS = 5
QUARTER = timedelta(minutes=15)
CLOCK_LIKE = ["30 2 * * *", "0 9 * * *", "*/20 1-3 * * *", "0,15,45 0,23 * * *", "0 0 2-4 * *"]
INTERVAL_LIKE = ["0 * * * *", "*/30 * * * *", "7 * * * TUE"]


class Rules(NamedTuple):
    """A zone: its offset at first, and its changes at quarters of an hour after START."""

    offset_s: int
    changes: tuple[tuple[int, int], ...]

    def zone(self) -> KeptZone:
        return KeptZone.of("Test/Zone", tzif(self.offset_s, *((START + n * QUARTER, s) for n, s in self.changes)))

    def minutes(self) -> list[int]:
        """What the wall clock shows in each minute from START on, in minutes since 1970."""
        first = int(START.timestamp()) // 60
        shown = []
        for minute in range(DAYS * 1440):
            offset_s = [self.offset_s, *(offset for at, offset in self.changes if at * 15 <= minute)][-1]
            shown.append(first + minute + offset_s // 60)
        return shown


offsets = st.sampled_from([0, 1800, 3600, 5400, 7200, -3600])
# Each in its own third of a day and hours from the next: no zone changes again before its clock is out of the last one.
starts = st.tuples(st.integers(0, DAYS * 3 - 1), st.integers(1, 16)).map(lambda at: at[0] * 32 + at[1])
changes = st.lists(st.tuples(starts, offsets), max_size=3, unique_by=lambda change: change[0] // 32)
rules = st.builds(Rules, offsets, changes.map(lambda some: tuple(sorted(some))))


def matching(expression: str, minutes: list[int]) -> Iterator[int]:
    cron = cron_expression(expression, str(JOB))
    return (index for index, minute in enumerate(minutes) if cron.next_minute(minute) == minute)


def clock_like_fires(expression: str, zone: Rules) -> dict[int, int]:
    """Each local minute that matches, and the minute since START in which it is shown or passed first."""
    cron = cron_expression(expression, str(JOB))
    fires: dict[int, int] = {}
    shown = list(accumulate(zone.minutes(), max))
    local = cron.next_minute(shown[0] + 1)
    for index, latest in enumerate(shown):
        while local is not None and local <= latest:
            fires[local] = index
            local = cron.next_minute(local + 1)
    return fires


def from_the_upgrade_on(
    expression: str, former: Rules, rules: Rules, upgraded_at: datetime, *, taken: bool
) -> tuple[datetime, list[datetime]]:
    """When everything was decided up to by the former rules, and what fires after that by the new ones."""
    before, after = Cron(expr=expression, zone=former.zone()), Cron(expr=expression, zone=rules.zone())
    pending = next_fire(before, upgraded_at, job_id=JOB, created_at=CREATED_AT)
    assert pending is not None
    decided = [upgraded_at, *fires_between(before, upgraded_at, pending, job_id=JOB, created_at=CREATED_AT)]
    fire = carry_over(
        after, pending, former.zone(), taken=taken, edited=False, job_id=JOB, created_at=CREATED_AT
    )  # fmt: skip
    fires = []
    while fire is not None and fire < START + timedelta(days=DAYS - 1):
        fires.append(fire)
        fire = next_fire(after, fire, job_id=JOB, created_at=CREATED_AT)
    return (decided[-1] if taken else upgraded_at), fires


upgrades = st.integers(1440, 3 * 1440).map(lambda minute: START + timedelta(minutes=minute, seconds=1))


@given(st.sampled_from(CLOCK_LIKE), rules, rules, upgrades, st.booleans())
def test_every_local_minute_fires_once_whatever_the_rules_were_and_are(
    expression: str, former: Rules, rules: Rules, upgraded_at: datetime, taken: bool
) -> None:
    decided, fires = from_the_upgrade_on(expression, former, rules, upgraded_at, taken=taken)
    shown = max(former.minutes()[: (decided - START) // timedelta(minutes=1) + 1])
    left = {index for local, index in clock_like_fires(expression, rules).items() if local > shown}
    expected = [START + timedelta(minutes=index) for index in sorted(left)]
    assert fires == [fire for fire in expected if fire < START + timedelta(days=DAYS - 1)]


@given(st.sampled_from(INTERVAL_LIKE), rules, rules, upgrades, st.booleans())
def test_what_goes_by_real_time_goes_on_after_the_last_one_that_has_fired(
    expression: str, former: Rules, rules: Rules, upgraded_at: datetime, taken: bool
) -> None:
    decided, fires = from_the_upgrade_on(expression, former, rules, upgraded_at, taken=taken)
    if not taken:
        fired = [START + timedelta(minutes=index) for index in matching(expression, former.minutes())]
        pending = min((fire for fire in fired if fire > upgraded_at), default=None)
        if pending is None:
            return
        earlier = [fire for fire in fired if fire < pending]
        decided = max([pending - timedelta(days=1), *earlier])
    expected = [START + timedelta(minutes=index) for index in matching(expression, rules.minutes())]
    assert fires == [fire for fire in expected if decided < fire < START + timedelta(days=DAYS - 1)]
