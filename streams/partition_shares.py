"""Which member of the group is to own which partition: an even share each, of what it has the timing state of.

Pure, and the same for the same question. In this order: shares are even; as few partitions as possible go to somebody
who has nothing of them; a partition stays with whoever has its newest state, which is its owner while there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

NOTHING_YET = 0  # an epoch: the partition is the member's, which has not got its state yet
_FAR = 1 << 63


def share_out(partitions: Collection[int], kept: Mapping[str, Mapping[int, int]]) -> dict[str, set[int]]:
    """The partitions of each member. kept: by member, of which partitions it has a state, and of which epoch."""
    holders = {partition: _by_epoch(partition, kept) for partition in partitions}
    epochs = {partition: [kept[member][partition] for member in holders[partition]] for partition in partitions}
    shares = _Shares(holders, _quotas(len(partitions), kept, holders))
    # Those first for which the second best is furthest behind: it has missed the most, or has nothing.
    left = [p for p in sorted(partitions, key=lambda p: (-_lead(epochs[p]), p)) if not shares.keep(p, holders[p])]
    left = [p for p in left if not shares.make_room(p)]
    left = [p for p in left if not shares.keep(p, sorted(member for member in kept if p in kept[member]))]
    shares.fill(left)
    return shares.of


def _by_epoch(partition: int, kept: Mapping[str, Mapping[int, int]]) -> list[str]:
    """Who has a state of it, the newest first."""
    holders = [member for member, epochs in kept.items() if epochs.get(partition, NOTHING_YET) != NOTHING_YET]
    return sorted(holders, key=lambda member: (-kept[member][partition], member))


def _lead(epochs: Sequence[int]) -> int:
    """How far the newest state is ahead of the second one. epochs: descending."""
    return epochs[0] - epochs[1] if len(epochs) > 1 else _FAR


def _quotas(count: int, kept: Mapping[str, object], holders: Mapping[int, Sequence[str]]) -> dict[str, int]:
    """How many each gets. The odd ones go to members that would have to give up most."""
    newest = dict.fromkeys(sorted(kept), 0)
    for members in holders.values():
        for member in members[:1]:
            newest[member] += 1
    even, odd = divmod(count, len(kept))
    ranked = sorted(newest, key=lambda member: -newest[member])
    return {member: even + (rank < odd) for rank, member in enumerate(ranked)}


class _Shares:
    """Shares as they grow, none beyond its quota. holders: of each partition, the one with its newest state first."""

    def __init__(self, holders: Mapping[int, Sequence[str]], quotas: Mapping[str, int]) -> None:
        self.of: dict[str, set[int]] = {member: set() for member in sorted(quotas)}
        self._holders, self._quotas = holders, quotas
        self._settled: set[str] = set()  # who can give nothing up to another that has a state of it

    def keep(self, partition: int, members: Sequence[str]) -> bool:
        """Give it to the first of these that has room."""
        for member in members:
            if self._has_room(member):
                self.of[member].add(partition)
                return True
        return False

    def make_room(self, partition: int) -> bool:
        """Give it to one of its holders, who gives up another partition to a holder of that, and so on."""
        seen = set(self._settled)
        if self._place(partition, seen):
            return True
        self._settled = seen  # as in any matching: what did not help now will not help later
        return False

    def fill(self, partitions: Iterable[int]) -> None:
        """Give these, all that are left, to whoever has room."""
        rooms = (member for member, share in self.of.items() for _ in range(self._quotas[member] - len(share)))
        for partition, member in zip(partitions, list(rooms), strict=True):
            self.of[member].add(partition)

    def _place(self, partition: int, seen: set[str]) -> bool:
        if self.keep(partition, self._holders[partition]):
            return True
        for member in self._holders[partition]:
            if member in seen:
                continue
            seen.add(member)
            for other in sorted(self.of[member]):
                if self._place(other, seen):
                    self.of[member].remove(other)
                    self.of[member].add(partition)
                    return True
        return False

    def _has_room(self, member: str) -> bool:
        return len(self.of[member]) < self._quotas[member]
