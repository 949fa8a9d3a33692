"""How deep JSON is nested, whatever its texts hold."""

from __future__ import annotations

import json

import pytest

from schemas.json_depth import MAX_DEPTH, is_too_deep


def nested(depth: int) -> str:
    return '{"a":[' * (depth // 2) + "[]" * (depth % 2) + "]}" * (depth // 2)


@pytest.mark.parametrize("inner", ["", "]]]]", '"[{', '\\"]]', "\\"])
def test_the_limit_is_of_levels_and_not_of_brackets(inner: str) -> None:
    text = json.dumps(inner)
    assert not is_too_deep(f"[{text},{nested(MAX_DEPTH - 1)},{text}]")
    assert is_too_deep(f"[{text},{nested(MAX_DEPTH)},{text}]")
    assert not is_too_deep("[" + ",".join(["[{}]", text] * 5_000) + "]")
    assert not is_too_deep(json.dumps("[" * 10_000))
