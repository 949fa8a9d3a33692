"""YAML of which every value's place is known, read as YAML 1.2 has it: no dates, and `no` is text.

PyYAML reads YAML 1.1, in which 2026-12-25 is a date, 12:30 a number and `on` a truth value; a file of schedules is full
of such texts. A key that occurs twice is an error instead of the last one winning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from fencepost.declarations.errors import InvalidJobFile

T = TypeVar("T")

MOST_VALUES = 1_000_000


class PlacedYaml(NamedTuple):
    """value: the document as plain values. root: its nodes, which know their places."""

    file: str
    value: Any
    root: Node | None

    def invalid(self, path: Sequence[Any], message: str) -> InvalidJobFile:
        """The error about what is at the path, or about the innermost thing around it that is there."""
        return InvalidJobFile(message, place=self._place(path), field=".".join(map(str, path)) or None)

    def _place(self, path: Sequence[Any]) -> str:
        node, mark = self.root, self.root.start_mark if self.root else None
        for step in path:
            found = _step(node, str(step))
            if found is None:
                break
            key, node = found
            mark = key.start_mark
        return f"{self.file}:{mark.line + 1}:{mark.column + 1}" if mark else self.file


def read_yaml(text: str, file: str) -> PlacedYaml:
    """The one document of a text. Raises InvalidJobFile where it is no YAML."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _values_in(root, {})
        return PlacedYaml(file, loader.construct_document(root) if root else None, root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise InvalidJobFile(error.problem or str(error), place=place) from error
    except (yaml.YAMLError, RecursionError) as error:  # a character that no YAML has, a depth that nobody needs
        raise InvalidJobFile(" ".join(str(error).split()), place=file) from error


def _values_in(node: Node, counted: dict[int, int]) -> int:
    """How many values a node stands for, each alias with all that it stands for. Raises MarkedYAMLError.

    A few hundred characters whose aliases stand for aliases are billions of values, once they are written out.
    """
    if counted.get(id(node)) == 0:
        raise yaml.MarkedYAMLError(problem="an alias stands for what it is a part of", problem_mark=node.start_mark)
    if id(node) not in counted:
        counted[id(node)] = 0  # until it is known
        items = node.value if isinstance(node, MappingNode | SequenceNode) else ()
        parts = (part for item in items for part in (item if isinstance(item, tuple) else (item,)))
        counted[id(node)] = 1 + sum(_values_in(part, counted) for part in parts)
        if counted[id(node)] > MOST_VALUES:
            told = f"with its aliases written out it has more than {MOST_VALUES:,} values"
            raise yaml.MarkedYAMLError(problem=told, problem_mark=node.start_mark)
    return counted[id(node)]


def _number(node: ScalarNode, read: Callable[[str], T]) -> T:
    """What !!int and !!float stand before need not be one."""
    try:
        return read(node.value)
    except ValueError as error:
        raise yaml.MarkedYAMLError(problem="it is no number", problem_mark=node.start_mark) from error


def _step(node: Node | None, name: str) -> tuple[Node, Node] | None:
    """The key (of a list: the item) and the value under a name."""
    if isinstance(node, MappingNode):
        return next(((key, value) for key, value in node.value if key.value == name), None)
    if isinstance(node, SequenceNode) and name.isdigit() and int(name) < len(node.value):
        return node.value[int(name)], node.value[int(name)]
    return None


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2, and merge keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self._refuse_repeated_keys(node)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_map(self, node: MappingNode) -> Any:
        """As SafeLoader's, which would merge before the keys are looked at."""
        self._refuse_repeated_keys(node)
        yield from super().construct_yaml_map(node)

    def construct_whole_number(self, node: ScalarNode) -> int:
        return _number(node, lambda text: int(text, 16) if "x" in text else int(text))

    def construct_number(self, node: ScalarNode) -> float:
        return _number(node, float)

    def _refuse_repeated_keys(self, node: MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise yaml.MarkedYAMLError(problem="a key is a plain text", problem_mark=key.start_mark)
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)


for _tag, _pattern, _first in (
    ("null", r"(?:~|null|Null|NULL|)", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(?:[.][0-9]+|[0-9]+(?:[.][0-9]*)?)(?:[eE][-+]?[0-9]+)?", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_yaml_map)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_whole_number)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_number)
