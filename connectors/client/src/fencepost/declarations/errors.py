"""What goes wrong with files and plans."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.errors import FencepostError, InvalidInput


class InvalidJobFile(InvalidInput):
    """The file cannot be right. place: file:line:column. field: dotted, from the file's root, or None."""

    def __init__(self, message: str, *, place: str, field: str | None = None) -> None:
        super().__init__(f"{place}: {field}: {message}" if field else f"{place}: {message}")
        self.place = place
        self.field = field


class PlanMoved(FencepostError):
    """What the plan was made from is not so any more: plan again. moved: a line about each thing that moved."""

    def __init__(self, moved: Sequence[str]) -> None:
        super().__init__(
            "the plan does not hold any more, make another one:" + "".join(f"\n  {line}" for line in moved)
        )
        self.moved = moved
