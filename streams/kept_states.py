"""Which partitions' timing states are on this process's disk, and of which epochs: the group is told, to use them.

A word beside each state, for a state is opened by one user at a time. Only a hint: where it is wrong, a partition is
given to somebody who has to rebuild it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PREFIX, _WORD = "p-", "EPOCH"


def folder_of(state_folder: Path, partition: int) -> Path:
    """Where the partition's timing state is."""
    return state_folder / f"{_PREFIX}{partition:04d}"


def note(folder: Path, epoch: int) -> None:
    """The state in the folder is that of the epoch's owner."""
    (folder / _WORD).write_text(str(epoch))


def forget(folder: Path) -> None:
    """The state in the folder is none any more."""
    (folder / _WORD).unlink(missing_ok=True)


def kept_epochs(state_folder: Path) -> dict[int, int]:
    """The epoch of each partition's state, as far as is known. Any thread may call this."""
    epochs: dict[int, int] = {}
    for word in state_folder.glob(f"{_PREFIX}*/{_WORD}"):
        with suppress(OSError, ValueError):  # it is just being written or taken away
            epochs[int(word.parent.name.removeprefix(_PREFIX))] = int(word.read_text())
    return epochs
