"""Whether its tenant's quota of leases kept a run waiting: told by how many leases the tenant had meanwhile.

Nobody notes which run a quota held back, for no call knows whose turn it would have been. But where a tenant has leased
what it may, more workers would have got no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ledger.tenant_limits import Quota
from schemas.waits import Hindrance, Timeline

SLICE_S = 2.0
# Of a slice too short for so many, one more or less would decide.
LEASES_A_SLICE = 10
SLICES_MAX = 500
# What is less than the whole of it: leases come in handfuls, and the history is a moment behind.
USED_UP = 0.8


@dataclass(frozen=True, slots=True)
class Slices:
    """Equal parts of a time, the last of which ends with it. count: of them."""

    start: datetime
    length: timedelta
    count: int

    def bounds(self, number: int) -> tuple[datetime, datetime]:
        return self.start + number * self.length, self.start + (number + 1) * self.length


def slices_of(quota: Quota, found: Timeline) -> Slices | None:
    """Those of the times in which a run was there to be leased, whoever asked; None when it never was."""
    waits = [each for each in found.intervals if each.cause == "no_worker_asked"]
    if not waits:
        return None
    start, end = waits[0].start, waits[-1].end
    span_s = (end - start).total_seconds()
    length_s = max(SLICE_S, LEASES_A_SLICE / quota.leases_per_s, span_s / SLICES_MAX)
    count = max(1, math.ceil(span_s / length_s))
    return Slices(end - count * timedelta(seconds=length_s), timedelta(seconds=length_s), count)


def used_up(quota: Quota, slices: Slices, leased: Mapping[int, int]) -> Sequence[Hindrance]:
    """When the quota was used up, as far back as it was set. leased: by the number of the slice."""
    enough = USED_UP * quota.leases_per_s * slices.length.total_seconds()
    sentence = f"its tenant's quota of {quota.leases_per_s:g} leases a second was used up"
    found: list[Hindrance] = []
    for number in range(slices.count):
        since, until = slices.bounds(number)
        if since < quota.set_at or leased.get(number, 0) < enough:
            continue
        if found and found[-1].until == since:
            found[-1] = found[-1]._replace(until=until)
        else:
            found.append(Hindrance("lease_quota", since, until, sentence))
    return found
