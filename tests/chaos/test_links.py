"""A link delivers what it is given, late, not yet or never, as it is told to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from connectors.stack.ports import free_port
from tests.chaos.links import Link, Links


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_echo, args=(server,), daemon=True).start()
        yield server.getsockname()[1]


def _echo(server: socket.socket) -> None:
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_send_back, args=(client,), daemon=True).start()


def _send_back(client: socket.socket) -> None:
    with client, suppress(ConnectionError):
        while said := client.recv(1024):
            client.sendall(said)


@pytest.fixture
def link(echo_port: int) -> Iterator[Link]:
    links = Links()
    try:
        yield links.add("to the echo", free_port(), echo_port)
    finally:
        links.close()


@pytest.fixture
def client(link: Link) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as client:
        client.sendall(b"here")
        assert client.recv(4) == b"here"
        yield client


def test_a_delayed_link_delivers_later(link: Link, client: socket.socket) -> None:
    link.delay(0.1)
    began = time.monotonic()
    client.sendall(b"late")
    assert client.recv(4) == b"late"
    assert time.monotonic() - began >= 0.2, "there and back"


def test_a_silent_link_loses_nothing_and_takes_new_connections(link: Link, client: socket.socket) -> None:
    link.silence()
    client.sendall(b"held")
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as other:
        other.sendall(b"back")
        for waiting in (client, other):
            waiting.settimeout(0.1)
            with pytest.raises(TimeoutError):
                waiting.recv(4)
            waiting.settimeout(10)
        link.open()
        assert client.recv(4) == b"held"
        assert other.recv(4) == b"back"


def test_a_cut_link_resets_connections_old_and_new_until_it_is_open(link: Link, client: socket.socket) -> None:
    link.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(4)
    with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", link.port), timeout=10) as other:
        other.recv(4)
    link.open()
    with socket.create_connection(("127.0.0.1", link.port), timeout=10) as again:
        again.sendall(b"well")
        assert again.recv(4) == b"well"


def test_what_a_silent_link_holds_is_lost_when_it_is_cut(link: Link, client: socket.socket) -> None:
    link.silence()
    client.sendall(b"lost")
    link.cut()
    link.open()
    with pytest.raises(ConnectionResetError):
        client.recv(4)
