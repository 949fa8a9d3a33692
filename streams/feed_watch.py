"""Whether the feed of run events goes on, partition by partition.

What owners do not hear of they find in the ledger in the end, so a feed that stands still makes retries and ends of
leases late, by minutes, and breaks nothing that anybody would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class _Place:
    next_offset: int
    known_s: float


class FeedWatch:
    """Knows since when a partition is not known to go on, or to be at the topic's end. Looks at no clock of its own."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}

    def begin(self, partition: int, offset: int, now_s: float) -> None:
        """From now on it is read, from this offset on."""
        self._places[partition] = _Place(offset, now_s)

    def end(self, partition: int) -> None:
        """It is read no more; a no-op when it is not."""
        self._places.pop(partition, None)

    def went_on(self, partition: int, next_offset: int, now_s: float) -> None:
        """Events up to there were delivered; a no-op for a partition that is read no more."""
        if partition in self._places:
            self.begin(partition, next_offset, now_s)

    def looked(self, ends: Mapping[int, int], now_s: float) -> None:
        """The topic goes as far as this, as its leaders said."""
        for partition, end in ends.items():
            place = self._places.get(partition)
            if place is not None and place.next_offset >= end:
                place.known_s = now_s

    def longest_s(self, now_s: float) -> float:
        """For how long nothing good was known of the partition of which that is longest; 0 when none is read."""
        return max((now_s - place.known_s for place in self._places.values()), default=0.0)
