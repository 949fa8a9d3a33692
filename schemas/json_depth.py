"""How deep tenants' JSON may be nested.

A decoder's own limit is what is left of the stack that it is called on, some 900 levels. So what an API can just take
a worker may not be able to read, nor any other run of the answer that it came with.
"""

from __future__ import annotations

import re

MAX_DEPTH = 128

_TEXT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_BRACKET = re.compile(r"[\[\]{}]")


def is_too_deep(text: str) -> bool:
    """Whether more than 128 arrays and objects are inside of each other.

    text: known to be JSON; what is none could take seconds.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _BRACKET.findall(_TEXT.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False
