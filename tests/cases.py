"""The cases of tests/data/cases.jsonl: public bugs of schedulers, and what should have happened."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
CASES = {
    case["id"]: case for case in map(json.loads, (TESTS / "data/cases.jsonl").read_text(encoding="utf-8").splitlines())
}


def given(case_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A case's input, and what is expected of it."""
    return CASES[case_id]["input"], CASES[case_id]["expected"]


def spelled(described: str) -> str:
    r"""A zone name of a case, which writes NUL as \u0000 and five thousand letters as a*5000."""
    return described.replace(r"\u0000", "\0").replace("a*5000", "a" * 5000)


def cases_of(areas: Iterable[str]) -> set[str]:
    """The ids of the cases of these areas."""
    return {case_id for case_id, case in CASES.items() if case["area"] in areas}


def is_asserted(where: str) -> bool:
    """Whether a file below tests/ has that test: "streams/test_edits.py test_an_edit_…"."""
    file, name = where.split()
    return f"def {name}(" in (TESTS / file).read_text(encoding="utf-8")


def named_in(file: str) -> set[str]:
    """The cases after which tests of a file below tests/ are called."""
    names = re.findall(
        r"^async def test_([a-z]{3}_[0-9]{3})\(", (TESTS / file).read_text(encoding="utf-8"), re.MULTILINE
    )
    return {name.replace("_", "-") for name in names}
