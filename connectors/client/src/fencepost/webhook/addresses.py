"""Which addresses a webhook may be sent to. Pure.

Source of the ranges: IANA's registries of special-purpose addresses. The standard library's `is_global` is not asked:
it differs between Python's patch releases, and takes an address that embeds another one as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_CLOSED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address by its look; in Azure it is the platform's own, of every machine
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
# All of IPv6 that is assigned to hosts of the internet. Loopback, link-local, private (fc00::/7), multicast, NAT64 of a
# site (64:ff9b:1::/48) and the deprecated ::a.b.c.d are outside of it.
_UNICAST = IPv6Network("2000::/3")
_CLOSED_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo, 2001::/32, embeds IPv4 addresses
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4 embeds an IPv4 address
        "3ffe::/16",  # given back
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = 0x5EFE  # bits 32 to 63 of an address that embeds an IPv4 address; bit 57 may be set


def is_public(address: Address) -> bool:
    """Whether it is a host of the internet. An address that embeds an IPv4 address is judged by that, or refused."""
    address = unmapped(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _CLOSED_V4)
    if address in _NAT64:  # what DNS64 answers in a network without IPv4
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    if address not in _UNICAST or (int(address) >> 32) & 0xFDFFFFFF == _ISATAP:
        return False
    return not any(address in network for network in _CLOSED_V6)


def is_allowed(address: Address, private: Iterable[Network]) -> bool:
    """Whether it is public, or in one of the networks that were allowed by name."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    plain = unmapped(address)
    return is_public(plain) or any(plain in network for network in private)


def unmapped(address: Address) -> Address:
    """An IPv4 address in IPv6's clothes (::ffff:a.b.c.d) as what it is."""
    if isinstance(address, IPv6Address) and (inner := address.ipv4_mapped) is not None:
        return inner
    return address
