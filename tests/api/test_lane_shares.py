"""The lanes' shares of what is leased while all of them have more than is taken: counted, through the API."""

from __future__ import annotations

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from schemas.commands import LANES
from tests.api.conftest import Caller
from tests.api.owner import Owner

WITHIN_POINTS = 2


async def lease_by_lane(worker: Caller, lanes: dict[UUID, str], count: int, *, pollers: int, batch: int) -> list[str]:
    """The lanes of the first `count` runs that pollers lease side by side, in the order in which they get them."""
    leased: list[str] = []

    async def poll() -> None:
        while len(leased) < count:
            runs = await worker.lease(max=batch, waitSeconds=10)
            leased.extend(lanes[UUID(run["runId"])] for run in runs)

    await asyncio.gather(*(poll() for _ in range(pollers)))
    return leased


def points(leased: list[str]) -> dict[str, float]:
    counts = Counter(leased)
    return {lane: 100 * counts[lane] / len(leased) for lane in LANES}


async def make_backlog(owner: Owner, **sizes: int) -> dict[UUID, str]:
    """So many due runs a lane, of which no hint tells; the lane of each."""
    lanes: dict[UUID, str] = {}
    for lane, size in sizes.items():
        lanes |= dict.fromkeys(await owner.make_due(size, lane=LANES.index(lane)), lane)
    return lanes


@pytest.mark.parametrize(("pollers", "batch"), [(1, 10), (8, 1), (4, 50)])
async def test_lanes_of_a_backlog_are_leased_seventy_twenty_ten(
    worker: Caller, owner: Owner, pollers: int, batch: int
) -> None:
    """None of it is hinted: it comes from looks into the ledger, which bring some hundreds of each lane at a time."""
    lanes = await make_backlog(owner, high=900, normal=900, low=900)
    shares = points(await lease_by_lane(worker, lanes, 1_000, pollers=pollers, batch=batch))
    assert shares == pytest.approx({"high": 70, "normal": 20, "low": 10}, abs=WITHIN_POINTS)


async def test_the_share_of_a_lane_that_is_empty_goes_to_the_next_below(worker: Caller, owner: Owner) -> None:
    lanes = await make_backlog(owner, normal=900, low=600)
    shares = points(await lease_by_lane(worker, lanes, 800, pollers=4, batch=10))
    assert shares == pytest.approx({"high": 0, "normal": 90, "low": 10}, abs=WITHIN_POINTS)


async def test_a_lane_that_has_become_empty_leaves_no_slot_idle(worker: Caller, owner: Owner) -> None:
    """No call comes back with nothing while runs wait; one gets fewer than it wants only as long as a look is due."""
    lanes = await make_backlog(owner, high=350, normal=300, low=300)
    sizes = []
    while lanes:
        runs = await worker.lease(max=50, waitSeconds=10)
        sizes.append(len(runs))
        for run in runs:
            del lanes[UUID(run["runId"])]
    assert min(sizes) > 0
    assert sizes[-6:-1] == [50] * 5
