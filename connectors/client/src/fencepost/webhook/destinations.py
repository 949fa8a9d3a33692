"""Where a webhook may go: URLs read strictly, and the list of hosts that it is compared with. Pure.

What is read here is what is connected to: nobody parses the URL again, so nobody can read another host out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple
from urllib.parse import urljoin

DEFAULT_PORTS = {"https": 443, "http": 80}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?")
_AUTHORITY = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?(?:\.[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?)*"
)
# A name whose last label looks like this is an address to somebody: 127.1, 0x7f000001, 2130706433 (WHATWG URL, 3.5).
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class DestinationRefused(Exception):
    """A webhook may not go there. The message says why, and names no more of the URL than its host."""


class Destination(NamedTuple):
    """A URL that was read. host: in lower case, an IPv6 address without brackets. target: path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """The Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    def redirected(self, location: str) -> Destination:
        """What a Location header means here. Raises DestinationRefused."""
        return read_destination(_joined(f"{self.scheme}://{self.authority}{self.target}", location))


class AllowedHost(NamedTuple):
    """host: exact, or a suffix such as .example.com when `below`. port: None is the scheme's own."""

    host: str
    below: bool
    port: int | None

    def covers(self, destination: Destination) -> bool:
        port = DEFAULT_PORTS[destination.scheme] if self.port is None else self.port
        if destination.port != port:
            return False
        return destination.host.endswith(self.host) if self.below else destination.host == self.host


class AllowList:
    """The hosts and ports that may be called. http: whether without encryption, too."""

    def __init__(self, hosts: Iterable[AllowedHost], *, http: bool = False) -> None:
        self._hosts = tuple(hosts)
        self._http = http

    def check(self, destination: Destination) -> None:
        """Raises DestinationRefused."""
        if destination.scheme != "https" and not self._http:
            raise DestinationRefused(f"{destination.authority} would be called without encryption (http)")
        if not any(host.covers(destination) for host in self._hosts):
            raise DestinationRefused(f"{destination.host} port {destination.port} is not on the allow-list")


def read_destination(url: str) -> Destination:
    """An absolute http(s) URL. Raises DestinationRefused for whatever two readers could understand differently."""
    if not re.fullmatch(r"[!-~]+", url) or "\\" in url:
        raise DestinationRefused("the URL has characters that no URL has: names in ASCII (xn--…), the rest as %XX")
    match = _URL.fullmatch(url)
    scheme = match.group(1).lower() if match else ""
    if match is None or scheme not in DEFAULT_PORTS:
        raise DestinationRefused("the URL is no absolute https URL")
    host, port = read_authority(match.group(2))
    target = match.group(3)
    return Destination(scheme, host, port or DEFAULT_PORTS[scheme], target if target.startswith("/") else f"/{target}")


def read_authority(text: str) -> tuple[str, int | None]:
    """Host and port, as DestinationRefused has it."""
    if "@" in text:
        raise DestinationRefused("the URL carries a user or a password")
    match = _AUTHORITY.fullmatch(text)
    if match is None:
        raise DestinationRefused(f"{text!r} is no host, with or without a port")
    port = None if match.group(2) is None else int(match.group(2))
    if port is not None and not 1 <= port <= 65535:
        raise DestinationRefused(f"{port} is no port")
    return read_host(match.group(1)), port


def read_host(text: str) -> str:
    """A name, or an address as it is usually written; an IPv6 address has brackets. Raises DestinationRefused."""
    host = text.lower()
    try:
        if host.startswith("["):
            address = IPv6Address(host[1:-1])
            if address.scope_id is None:
                return str(address)
            raise DestinationRefused(f"{text} names a zone of this machine")
        if _NUMBER.fullmatch(host.rpartition(".")[2]):
            return str(IPv4Address(host))
    except ValueError:
        raise DestinationRefused(f"{text} is an address in an odd spelling: write 192.0.2.1 or [2001:db8::1]") from None
    if host.endswith("."):
        raise DestinationRefused(f"{text} ends in a dot: write it without")
    if not _NAME.fullmatch(host):
        raise DestinationRefused(f"{text!r} is no host name")
    return host


def read_allowed_host(text: str) -> AllowedHost:
    """HOST, *.HOST, and either with :PORT. Raises DestinationRefused."""
    below = text.startswith("*.")
    host, port = read_authority(text[2:] if below else text)
    if not below:
        return AllowedHost(host, False, port)
    if "." not in host or _NUMBER.fullmatch(host.rpartition(".")[2]):
        raise DestinationRefused(f"{text} allows too much: a star stands before a domain, as in *.example.com")
    return AllowedHost(f".{host}", True, port)


def _joined(base: str, location: str) -> str:
    try:
        return urljoin(base, location)
    except ValueError:
        raise DestinationRefused("the redirect leads to what is no URL") from None
