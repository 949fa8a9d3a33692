"""When a partition had nobody who kept its time: by the ledger's takeovers, and by what was done to its owners."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple


class Takeover(NamedTuple):
    """Who took a partition over when: the process's name, without its nonce."""

    partition: int
    owner: str
    at: datetime


class Stop(NamedTuple):
    """A process was killed or frozen: from this instant on it did nothing."""

    part: str
    at: datetime


class Ownerless(NamedTuple):
    """From an owner's stop to the takeover after it."""

    since: datetime
    until: datetime


class Tenures(NamedTuple):
    """Of one partition. takeovers: their instants, ascending. ownerless: the times in which nobody can have kept it."""

    takeovers: Sequence[datetime]
    ownerless: Sequence[Ownerless]

    def last_sign_before(self, takeover: datetime) -> datetime:
        """Until when there may have been an owner before that takeover."""
        return next((each.since for each in self.ownerless if each.until == takeover), takeover)


def tenures(takeovers: Iterable[Takeover], stops: Sequence[Stop]) -> Mapping[int, Tenures]:
    """Of each partition that was ever taken over. takeovers: in the order of their instants."""
    by_partition: defaultdict[int, list[Takeover]] = defaultdict(list)
    for each in takeovers:
        by_partition[each.partition].append(each)
    return {
        partition: Tenures([each.at for each in ours], [*_ownerless(ours, stops)])
        for partition, ours in by_partition.items()
    }


def _ownerless(takeovers: Sequence[Takeover], stops: Sequence[Stop]) -> Iterable[Ownerless]:
    for tenure, following in pairwise(takeovers):
        stopped = [stop.at for stop in stops if stop.part == tenure.owner and tenure.at <= stop.at < following.at]
        if stopped:
            yield Ownerless(min(stopped), following.at)
