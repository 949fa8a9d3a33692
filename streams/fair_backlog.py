"""Commands that come faster than they are applied: whose turn it is, and what is to be read again.

The tenants of a partition take turns, so that nobody waits for another's flood to be over. What waits is held up to a
size; beyond it the tenant that has most in here loses its latest records, and whatever more of it is read is left out,
while reading goes on: what others have sent behind it is found. What was left out is read again once there is room.

So the commands of a tenant are applied in the order of the topic, but some tenants are ahead of others. Everything
below the position is applied, and of a tenant that is ahead everything below an offset of its own.

Pure: it knows of records that were read and says where to read on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import NamedTuple

from streams.rejections import RawCommand

RECORD_BYTES = 500  # what a record takes beside its value
TENANTS = 10_000  # known at once
REFILL_RECORDS = 20_000  # read again at most before the topic's end is looked at again


class Batch(NamedTuple):
    """Records to apply together, and how far the partition is then.

    position: everything below it is applied. ahead: of tenants that are ahead of it, the offset below which all of
    theirs is applied; None where nobody is, nor was before.
    """

    records: list[RawCommand]
    position: int
    ahead: Mapping[str, int] | None = None

    @classmethod
    def of(cls, records: list[RawCommand]) -> Batch:
        """All that there is up to the last of them."""
        return cls(records, records[-1].offset + 1)


class FairBacklog:
    """Of one partition. Records are added in the order of the topic from `read_at` on, wherever that is."""

    def __init__(self, next_offset: int, ahead: Mapping[str, int], capacity_bytes: int) -> None:
        self.read_at = next_offset
        self._seen = next_offset  # everything below it has been read once
        self._capacity = capacity_bytes
        self._queues: dict[str, deque[RawCommand]] = {}  # whose turn is next comes first
        self._weights: Counter[str] = Counter()
        self._weight = 0
        self._left: dict[str, int] = {}  # tenants with records that were left out, from that offset on
        self._refilled: set[str] = set()  # those of them whose records are read again just now
        self._refill_of: str | None = None  # for whom
        self._refill_ends = 0
        self._may_refill = True
        self._taken = dict(ahead)  # of a tenant everything below is taken, where that is above the position
        self._are_noted = bool(ahead)
        self._told = next_offset  # the position after the last batch

    @property
    def is_over(self) -> bool:
        """Nothing waits, nothing was left out, and nobody is ahead."""
        return not self._queues and not self._left and all(at <= self._seen for at in self._taken.values())

    @property
    def is_empty(self) -> bool:
        """There is nothing to take: no record, nor a position that nobody has noted since what was read is applied."""
        return not self._queues and not (self.is_over and self._told < self._seen)

    @property
    def is_shared(self) -> bool:
        """Whether records of more than one tenant wait."""
        return len(self._queues) > 1

    @property
    def is_full(self) -> bool:
        """It knows as many tenants as it may."""
        return len(self._left) + len(self._taken) + len(self._queues) >= TENANTS

    def has_place(self, tenant: str) -> bool:
        """Whether records of the tenant may be added at all."""
        return not self.is_full or tenant in self._queues or tenant in self._left or tenant in self._taken

    def add(self, tenant: str, record: RawCommand) -> None:
        """Take in the record that was read at `read_at`, or is the next one that there is."""
        offset = record.offset
        if offset >= self._seen:
            self._caught_up()
            self._seen = offset + 1
            is_next = tenant not in self._left
        else:
            is_next = tenant in self._refilled and offset >= self._left[tenant]
        self.read_at = offset + 1
        if is_next and offset >= self._taken.get(tenant, 0):
            if self._make_room(tenant, weight := _weight(record)):
                self._queues.setdefault(tenant, deque()).append(record)
                self._weigh(tenant, weight)
            else:
                self._left[tenant] = offset
                self._refilled.discard(tenant)

    def take(self, limit: int, limit_bytes: int) -> Batch:
        """Up to about these limits, which the tenants share, and at least one record, if there is one."""
        records: list[RawCommand] = []
        size_bytes, served, tenants = 0, set[str](), len(self._queues)
        while self._queues and len(records) < limit and size_bytes < limit_bytes:
            tenant = next(iter(self._queues))
            turn = self._turn_of(tenant, max(1, limit // tenants), limit_bytes // tenants)
            served.add(tenant)
            records += turn
            size_bytes += sum(map(_size, turn))
        self._told = position = self._position()
        ahead = {tenant: at for tenant in served if (at := self._taken[tenant]) > position}
        is_told = self._are_noted or bool(ahead)
        self._taken = {tenant: at for tenant, at in self._taken.items() if at > position}
        self._are_noted = bool(self._taken)
        if not is_told:
            records.sort(key=lambda record: record.offset)  # one by one, too, everything below each is applied
        return Batch(records, position, ahead if is_told else None)

    def is_refill_over(self) -> bool:
        """Whether reading is to go on where it was before a refill; then `read_at` is there."""
        if self._refill_of is None:
            return False
        if self.read_at >= self._seen:
            self._caught_up()
            return False
        if self._refill_of in self._refilled and self.read_at < self._refill_ends:
            return False
        for tenant in self._refilled:
            self._left[tenant] = max(self._left[tenant], self.read_at)
        self._end_refill()
        self._may_refill = False
        self.read_at = self._seen
        return True

    def looked(self) -> None:
        """Reading has gone on for a while since the last refill, which may have been too short."""
        self._may_refill = True

    def begin_refill(self) -> bool:
        """Whether to read again what was left out, because its tenant runs short; then `read_at` is there."""
        if self._refill_of is not None or not self._may_refill or not self._left:
            return False
        share = self._capacity // len(self._queues.keys() | self._left.keys())
        tenant = min(self._left, key=lambda each: (self._weights[each], self._left[each]))
        weight = self._weights[tenant]
        if 2 * weight >= max(share, self._capacity - self._weight + weight):
            return False
        self._refill_of, self.read_at = tenant, self._left[tenant]
        self._refill_ends = self.read_at + REFILL_RECORDS
        self._refilled = {each for each, at in self._left.items() if at >= self.read_at}
        return True

    def _caught_up(self) -> None:
        """What a refill reads again is all that there was."""
        for tenant in self._refilled:
            del self._left[tenant]
        self._end_refill()

    def _end_refill(self) -> None:
        self._refilled, self._refill_of = set(), None

    def _turn_of(self, tenant: str, limit: int, limit_bytes: int) -> list[RawCommand]:
        queue = self._queues.pop(tenant)
        turn = [queue.popleft()]
        size_bytes = _size(turn[0])
        while queue and len(turn) < limit and (size_bytes := size_bytes + _size(queue[0])) <= limit_bytes:
            turn.append(queue.popleft())
        if queue:
            self._queues[tenant] = queue  # at the end: the others come first
        self._weigh(tenant, -sum(map(_weight, turn)))
        self._taken[tenant] = turn[-1].offset + 1
        return turn

    def _position(self) -> int:
        left = (max(at, self.read_at) if tenant in self._refilled else at for tenant, at in self._left.items())
        return min((self._seen, *(queue[0].offset for queue in self._queues.values()), *left))

    def _make_room(self, tenant: str, weight: int) -> bool:
        """Whether there is room, after the tenant that has most has lost some, unless that is the one that asks."""
        while self._weight and self._weight + weight > self._capacity:
            largest = max(self._weights, key=self._weights.__getitem__)
            if self._weights[largest] <= self._weights[tenant]:
                return False
            self._leave_half_out(largest)
        return True

    def _leave_half_out(self, tenant: str) -> None:
        queue = self._queues[tenant]
        lost = [queue.pop() for _ in range((len(queue) + 1) // 2)]
        if not queue:
            del self._queues[tenant]
        self._weigh(tenant, -sum(map(_weight, lost)))
        self._left[tenant] = lost[-1].offset
        self._refilled.discard(tenant)

    def _weigh(self, tenant: str, weight: int) -> None:
        self._weight += weight
        self._weights[tenant] += weight
        if not self._weights[tenant]:
            del self._weights[tenant]


def _size(record: RawCommand) -> int:
    return len(record.value or b"")


def _weight(record: RawCommand) -> int:
    return RECORD_BYTES + _size(record)
