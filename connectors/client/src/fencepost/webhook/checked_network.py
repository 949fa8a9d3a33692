"""Connections to addresses that were checked, and to no others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address

import httpcore

from fencepost.webhook.addresses import Address, Network, is_allowed, unmapped
from fencepost.webhook.destinations import DestinationRefused

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """The system's addresses of a host, in its order. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves, checks and connects in one place: a name that resolves to something else the next time gains nothing.

    Above it the host stays the host: in the Host header, in TLS' SNI, in the check of the certificate.
    private: networks that are allowed though they are not public. resolver: for tests.
    """

    def __init__(self, private: Iterable[Network] = (), *, resolver: Resolve = resolve) -> None:
        self._private = tuple(private)
        self._resolve = resolver
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """To the first address that takes the connection. timeout: of each, in seconds.

        Raises DestinationRefused when any address of the host is not allowed, httpcore.ConnectError, ConnectTimeout.
        """
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in await self.addresses(host, port):
            try:
                return await self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def addresses(self, host: str, port: int) -> list[Address]:
        """The host's addresses, every one of them allowed. Raises as `connect_tcp`."""
        try:
            found = [ip_address(text) for text in await self._resolve(host, port)]
        except OSError as error:
            raise httpcore.ConnectError(f"its name was not resolved: {error.strerror or error}") from error
        for address in found:
            if not is_allowed(address, self._private):
                found_at = host if str(address) == host else f"{host} resolves to {address}, which"
                raise DestinationRefused(f"{found_at} is not public and was not allowed")
        return [unmapped(address) for address in found]
