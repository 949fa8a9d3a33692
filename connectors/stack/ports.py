"""Free loopback ports outside the ephemeral range."""

from __future__ import annotations

import random
import socket

# Not from the ephemeral range (32768 and up on Linux): while a broker is down, a client that keeps reconnecting
# to a loopback port of that range can be given the same port as its source, connect to itself and keep it taken.
FIRST_PORT = 20_000
LAST_PORT = 32_000


def is_free(port: int) -> bool:
    """Nothing listens there. SO_REUSEADDR as the servers set it: closed connections in TIME_WAIT do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(taken: frozenset[int] = frozenset()) -> int:
    """A port nobody listens on, picked at random so that stacks started side by side rarely meet."""
    while True:
        port = random.randint(FIRST_PORT, LAST_PORT)
        if port not in taken and is_free(port):
            return port
