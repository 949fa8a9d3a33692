"""What every test may ask for, and how tests are shared out between the processes of a parallel run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.broker_fixtures", "tests.ledger_fixtures", "tests.pair_fixtures"]

TESTS = Path(__file__).parent
FIRST, LAST = ("chaos", "streams"), ("contract", "docs", "properties", "schemas")

# The same examples each time, so that a change fails for what it changed; FENCEPOST_EXPLORE=1 looks for new ones.
settings.register_profile("the same", derandomize=True)
if not os.environ.get("FENCEPOST_EXPLORE"):
    settings.load_profile("the same")


@pytest.hookimpl(tryfirst=True)  # the plugin that shares the tests out reads the groups in a hook of the same name
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2 --dist loadgroup` a file's tests stay in one process, and clusters are hurt one at a time.

    What takes longest is begun first, the chaos tests above all, and what needs no server and takes a moment is left to
    the end, where one process would wait for the other. It takes `--no-loadscope-reorder`: else numbers would decide.
    """
    items.sort(key=_turn)
    for item in items:
        inside = item.path.relative_to(TESTS)
        group = "chaos" if inside.parts[0] == "chaos" else str(inside)
        item.add_marker(pytest.mark.xdist_group(group))


def _turn(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0]
    return (folder not in FIRST) + (folder in LAST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Raises UsageError for a parallel run whose groups are not heeded: clusters would be hurt side by side."""
    if not getattr(session.config.option, "loadgroup", False):
        return
    alone = [item.nodeid for item in session.items if "@" not in item.nodeid]
    if alone:
        raise pytest.UsageError(f"the plugin that shares the tests out does not see the group of {alone[0]}")
