"""Mutants fit the source as it is, and name rules that there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos import checker, job_rules
from tests.chaos.mutants.patches import MUTANTS, Mutant, Replacement, Stale
from tests.chaos.mutants.source_tree import copy_source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_source(tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_source_and_is_python(mutant: Mutant, source: Path) -> None:
    files = {each.path: (source / each.path).read_text() for each in mutant.replacements}
    try:
        mutant.apply(source)
        for path, before in files.items():
            changed = (source / path).read_text()
            assert changed != before
            compile(changed, path, "exec")
    finally:
        for path, before in files.items():
            (source / path).write_text(before)


def test_a_mutant_whose_source_has_changed_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    for old in ("x = 2", "x = 1"):
        with pytest.raises(Stale, match=r"a\.py has . times"):
            Mutant("m", "policies", (), (Replacement("a.py", old, ""),)).apply(tmp_path)


def test_every_mutant_is_told_from_the_others_and_is_found_by_rules_that_exist() -> None:
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    rules = {*checker.RULES, *job_rules.RULES}
    assert all(mutant.rules and set(mutant.rules) <= rules for mutant in MUTANTS)


def test_the_suite_has_the_dozen_mutants_that_were_promised() -> None:
    assert len(MUTANTS) >= 12
