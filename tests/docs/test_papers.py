"""What the papers say about the code is true of the code: names, paths, links, commands, snippets."""

from __future__ import annotations

import ast
import importlib
import re
from operator import attrgetter
from pathlib import PurePosixPath

import click
import pytest

import fencepost.cli
import fencepostd.cli
from tests.docs.papers import ROOT, Said, anchors, blocks, commands_of, links, spans, text_of, words

PROGRAMS: dict[str, click.Command] = {"fencepost": fencepost.cli.main, "fencepostd": fencepostd.cli.main}
CLIENT_SOURCE = PurePosixPath("connectors/client/src")

_REFERENCE = re.compile(r"([\w./-]+\.(?:py|sql)): ([\w.]+)")
_PATH = re.compile(r"[\w.-]+(?:/[\w.-]*)+")
_PLACEHOLDER = "NNNN"


def references() -> list[Said]:
    return [said for said in spans() if _REFERENCE.fullmatch(said.text)]


@pytest.mark.parametrize("said", references(), ids=str)
def test_every_function_that_a_paper_names_exists(said: Said) -> None:
    match = _REFERENCE.fullmatch(said.text)
    assert match is not None
    path, name = match.groups()
    if path.endswith(".sql"):
        assert re.search(rf"^CREATE (FUNCTION|TABLE) {name}\b", (ROOT / path).read_text(), re.MULTILINE)
    else:
        attrgetter(name)(importlib.import_module(module_of(path)))


def module_of(path: str) -> str:
    parts = PurePosixPath(path)
    inside = parts.relative_to(CLIENT_SOURCE) if parts.is_relative_to(CLIENT_SOURCE) else parts
    return ".".join(inside.with_suffix("").parts)


def test_every_hop_of_a_run_s_life_names_its_functions() -> None:
    table = text_of("ARCHITECTURE.md").partition("## One run's life")[2].partition("```")[0]
    hops = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| hop ")]
    assert len(hops) >= 10
    assert [hop for hop in hops if not _REFERENCE.search(hop)] == []


def named_paths() -> list[Said]:
    """Code spans that begin with a folder of the repository."""
    folders = {entry.name for entry in ROOT.iterdir() if entry.is_dir() and entry.name not in ("state", ".venv")}
    return [
        said
        for said in spans()
        if _PATH.fullmatch(said.text) and said.text.split("/")[0] in folders and _PLACEHOLDER not in said.text
    ]


@pytest.mark.parametrize("said", named_paths(), ids=str)
def test_every_path_that_a_paper_names_exists(said: Said) -> None:
    assert (ROOT / said.text).exists()


@pytest.mark.parametrize("said", [said for said in links() if "://" not in said.text], ids=str)
def test_every_relative_link_leads_somewhere(said: Said) -> None:
    path, _, anchor = said.text.partition("#")
    target = (ROOT / said.paper).parent / path if path else ROOT / said.paper
    assert target.exists()
    if anchor:
        assert anchor in anchors(str(target.relative_to(ROOT)))


@pytest.mark.parametrize("said", commands_of("make"), ids=str)
def test_every_make_target_exists(said: Said) -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {word for word in words(said)[1:] if "=" not in word} <= targets | {"help"}


@pytest.mark.parametrize("said", commands_of("pytest"), ids=str)
def test_every_test_that_a_paper_tells_to_run_exists(said: Said) -> None:
    paths = [word for word in words(said) if word.startswith("tests/")]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("said", [*commands_of("fencepost"), *commands_of("fencepostd")], ids=str)
def test_every_command_exists_with_its_options(said: Said) -> None:
    name, *arguments = words(said)
    command, rest = resolve(PROGRAMS[name], arguments)
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word for word in rest if re.fullmatch(r"--[a-z-]+", word)} <= known


def shell_commands() -> list[Said]:
    """Those of the shell blocks: complete, to be typed as they are."""
    return [said for name in PROGRAMS for said in commands_of(name) if said not in spans()]


@pytest.mark.parametrize("said", shell_commands(), ids=str)
def test_every_command_of_a_shell_block_parses(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_KAFKA", "broker:9092")
    monkeypatch.setenv("FENCEPOST_POSTGRES", "postgresql://fencepost@db/fencepost")
    name, *arguments = words(said)
    command, rest = resolve(PROGRAMS[name], arguments)
    command.make_context(command.name, rest)  # raises click.UsageError


def resolve(command: click.Command, arguments: list[str]) -> tuple[click.Command, list[str]]:
    """The innermost command that the arguments name, and what is left of them."""
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        _, found, arguments = command.resolve_command(click.Context(command), arguments)
        assert found is not None
        command = found
    return command, arguments


SNIPPETS = [
    Said(paper, block) for paper in ("README.md", "connectors/client/README.md") for block in blocks(paper, "python")
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: f"{snippet.paper}: {snippet.text.splitlines()[0]}")
def test_every_snippet_compiles_and_imports_what_exists(snippet: Said) -> None:
    tree = compile(snippet.text, snippet.paper, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        module = importlib.import_module(node.module or "")
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def citations() -> list[str]:
    """The sections of ARCHITECTURE.md that sources cite, as in `Source: ARCHITECTURE, The fence.`"""
    files = [
        file for folder in ("api", "ledger", "schemas", "streams", "tests") for file in (ROOT / folder).rglob("*.*")
    ]
    sources = [file.read_text() for file in files if file.suffix in (".py", ".sql") and "docs" not in file.parts]
    return sorted(
        {found for source in sources for found in re.findall(r"ARCHITECTURE, ([A-Z][a-z]+(?: [a-z]+)*)", source)}
    )


@pytest.mark.parametrize("section", citations())
def test_every_section_that_sources_cite_exists(section: str) -> None:
    headings = re.findall(r"^## (.+)$", text_of("ARCHITECTURE.md"), re.MULTILINE)
    assert [heading for heading in headings if section.startswith(heading)]


def test_the_changelog_begins_with_what_is_unreleased() -> None:
    assert re.findall(r"^## (.+)$", text_of("CHANGELOG.md"), re.MULTILINE)[0] == "[Unreleased]"
