"""Hints that are noted instead of sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from uuid import UUID

from ledger.fence import Fence
from streams.ready_hints import ReadyHints
from streams.timers import Waiting


class HintLog(ReadyHints):
    """Hints that are noted instead of sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, UUID]] = []  # (epoch, run id)

    def send(
        self,
        fence: Fence,
        due: Mapping[Waiting, Sequence[bytes]],
        soon: Mapping[Waiting, Sequence[tuple[int, bytes]]] = {},
    ) -> None:
        run_ids = [*chain.from_iterable(due.values()), *(run_id for _, run_id in chain.from_iterable(soon.values()))]
        self.sent += [(fence.epoch, UUID(bytes=run_id)) for run_id in run_ids]

    def runs(self) -> list[UUID]:
        return [run_id for _, run_id in self.sent]
