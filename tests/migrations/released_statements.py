"""Every statement that the ledger's code of a release sends, kept after its code is gone.

Processes of the last release go on while `fencepostd init --pre-only` migrates, so their statements must mean the same
on the new schema. Of a release that is about to be made, a file is recorded by

    python -m tests.migrations.released_statements > tests/migrations/released/NNNN.json

with the number of its last migration; it is never edited.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import ledger

RELEASED = Path(__file__).parent / "released"

_STATEMENT = re.compile(r"\s*(WITH|SELECT|INSERT|UPDATE|DELETE)\b")
_PLACEHOLDER = re.compile(r"%%|%\((\w+)\)[sbt]|%[sbt]")


def recorded(migration: int) -> dict[str, str]:
    """The statements of the release whose last migration that was, by the module and name of their constants."""
    found: dict[str, str] = json.loads((RELEASED / f"{migration:04d}.json").read_text())
    return found


def releases() -> list[int]:
    """Those that are recorded, by their last migration."""
    return sorted(int(file.stem) for file in RELEASED.glob("*.json"))


def numbered(statement: str) -> bytes:
    """As it is sent: with $1, $2, …; a name that comes twice is one parameter."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        name = found[1] or f"at {found.start()}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PLACEHOLDER.sub(number, statement).encode()


def statements() -> dict[str, str]:
    """Those of the code at hand."""
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(ledger.__path__):
        names = vars(importlib.import_module(f"ledger.{module.name}"))
        for name, value in names.items():
            if name.isupper() and not name.startswith("_") and isinstance(value, str) and _STATEMENT.match(value):
                found.setdefault(f"{module.name}.{name}", value)
    return {name: value for name, value in found.items() if not _is_part(value, found.values())}


def _is_part(statement: str, others: Iterable[str]) -> bool:
    """Whether another one has it inside: it is sent as a part of that."""
    return any(statement != other and statement.strip() in other for other in others)


if __name__ == "__main__":
    json.dump(statements(), sys.stdout, indent=1, ensure_ascii=False)
    print()
