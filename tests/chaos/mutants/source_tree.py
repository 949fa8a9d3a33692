"""A copy of the product's source, to be broken: its roles are run from there, and the original is never touched."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.chaos.cluster import ROOT

PACKAGES = ("schemas", "ledger", "streams", "api", "fencepostd", "connectors")


def copy_source(to: Path) -> Path:
    """With what Python has compiled of it, and the files' times: only what is changed is compiled anew."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, to / package, copy_function=shutil.copy2)
    return to
