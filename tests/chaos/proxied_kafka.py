"""A Kafka whose clients can be cut off one by one: a listener for each, which tells of itself the address of a proxy.

A client learns from the broker where to connect, so a proxy before the usual listener would be passed by.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from connectors.stack import KafkaBroker, StackError, default_cache_dir
from connectors.stack.kafka import Flavour
from connectors.stack.part import Say


class Listener(NamedTuple):
    """port: where the broker listens. told_port: where it tells its clients to connect."""

    port: int
    told_port: int


class ProxiedKafka(KafkaBroker):
    """An Apache Kafka with more listeners, by name."""

    def __init__(self, state_dir: Path, listeners: Mapping[str, Listener], *, say: Say) -> None:
        super().__init__(state_dir, default_cache_dir(), say=say)
        self._listeners = listeners

    def _choose(self) -> tuple[Flavour, list[str]]:
        flavour, argv = super()._choose()
        if flavour != "apache":
            raise StackError("only Apache Kafka can have a listener for each client")
        properties = Path(argv[-1])
        properties.write_text(with_listeners(properties.read_text(), self._listeners))
        return flavour, argv


def with_listeners(properties: str, listeners: Mapping[str, Listener]) -> str:
    """A broker's settings with more listeners than they have."""
    names = {name: name.upper().replace("-", "_") for name in listeners}
    more = {
        "listeners": [f"{names[name]}://127.0.0.1:{each.port}" for name, each in listeners.items()],
        "advertised.listeners": [f"{names[name]}://127.0.0.1:{each.told_port}" for name, each in listeners.items()],
        "listener.security.protocol.map": [f"{name}:PLAINTEXT" for name in names.values()],
    }
    lines = []
    for line in properties.splitlines():
        key = line.partition("=")[0]
        lines.append(",".join([line, *more.get(key, ())]))
    return "\n".join(lines) + "\n"
