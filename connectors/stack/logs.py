"""The log files of the parts: where they are, their last lines, and following them."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

TAIL_BYTES = 64 * 1024
FOLLOW_S = 0.2


def log_path(state_dir: Path, name: str) -> Path:
    return state_dir / "logs" / f"{name}.log"


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def tail(path: Path, since: int = 0, lines: int = 20) -> str:
    """The last lines that were written after `since` (an offset in bytes)."""
    if not path.exists():
        return ""
    with path.open("rb") as log:
        log.seek(max(since, size(path) - TAIL_BYTES))
        text = log.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def read_lines(path: Path, follow: bool) -> Generator[str, None, None]:
    """Every line without its end; with follow, go on with what is still being written until closed."""
    with path.open(encoding="utf-8", errors="replace") as log:
        partial = ""
        while True:
            chunk = log.readline()
            partial += chunk
            if partial.endswith("\n"):
                yield partial.removesuffix("\n")
                partial = ""
            elif not chunk and follow:
                time.sleep(FOLLOW_S)
            elif not chunk:
                break
        if partial:
            yield partial
