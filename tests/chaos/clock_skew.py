"""Clocks of single processes that can be set wrong, by a library that is compiled for it: see clock_skew.c."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_skew.c")


class ClockSkew:
    """missing: why no clock can be set, for instance for want of a C compiler; empty when they can."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._library = folder / "clock_skew.so"
        self.missing = self._compile()

    def env(self, process: str) -> Mapping[str, str]:
        """What the process must have in its environment; nothing where it cannot be done."""
        if self.missing:
            return {}
        self.set(process, 0)
        return {"LD_PRELOAD": str(self._library), "CLOCK_SKEW_FILE": str(self._file(process))}

    def set(self, process: str, skew_s: float) -> None:
        """From now on its clock is so much ahead (or behind)."""
        file = self._file(process)
        with file.open("r+b" if file.exists() else "w+b") as written:  # in place: the process has it mapped
            written.write(round(skew_s * 1e9).to_bytes(8, "little", signed=True))

    def _file(self, process: str) -> Path:
        return self._folder / f"{process}.skew"

    def _compile(self) -> str:
        """Why it cannot be done; empty when it can."""
        self._folder.mkdir(parents=True, exist_ok=True)
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            return "there is no C compiler"
        argv = [compiler, "-shared", "-fPIC", "-O2", "-o", str(self._library), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""
