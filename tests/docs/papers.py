"""The papers of the repository, taken apart: code spans, code blocks, links, headings, commands."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAPERS = (
    "README.md",
    "ARCHITECTURE.md",
    "GLOSSARY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "connectors/client/README.md",
    "bench/README.md",
    "docs/operating.md",
    "docs/performance.md",
    "docs/verification.md",
)

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SLUG_DROPS = re.compile(r"[^\w\- ]")


class Said(NamedTuple):
    """Something that a paper says; str() tells where it stands, as a test's id."""

    paper: str
    text: str

    def __str__(self) -> str:
        return f"{self.paper}: {self.text}"


@cache
def text_of(paper: str) -> str:
    return (ROOT / paper).read_text()


def blocks(paper: str, language: str) -> list[str]:
    """The code blocks in a language."""
    return [body for found, body in _BLOCK.findall(text_of(paper)) if found == language]


def spans() -> list[Said]:
    """Every `code span` outside of blocks."""
    return [Said(paper, span) for paper in PAPERS for span in _SPAN.findall(_BLOCK.sub("", text_of(paper)))]


def links() -> list[Said]:
    """Every target of a link."""
    return [Said(paper, target) for paper in PAPERS for target in _LINK.findall(_BLOCK.sub("", text_of(paper)))]


def anchors(paper: str) -> set[str]:
    """What a link may name after its #."""
    headings = _HEADING.findall(_BLOCK.sub("", text_of(paper)))
    return {_SLUG_DROPS.sub("", heading.lower()).replace(" ", "-") for heading in headings}


def commands() -> list[Said]:
    """Every command line of a shell block, and every code span that is one."""
    lines = [Said(paper, line) for paper in PAPERS for block in blocks(paper, "sh") for line in block.splitlines()]
    return [said for said in (*lines, *spans()) if program(said)]


def words(said: Said) -> list[str]:
    """A command line without its comment and its variables, the program by its bare name."""
    try:
        split = shlex.split(said.text, comments=True)
    except ValueError:  # an apostrophe: no command line
        return []
    while split and re.fullmatch(r"[A-Z_]+=.*", split[0]):
        split.pop(0)
    return [Path(split[0]).name, *split[1:]] if split else []


def program(said: Said) -> str | None:
    """Which of the programs that we know the line calls; None for prose and the shell's own."""
    found = words(said)
    return found[0] if found and found[0] in ("make", "fencepostd", "fencepost", "pytest") else None


def commands_of(name: str) -> list[Said]:
    return [said for said in commands() if program(said) == name]
