"""Which addresses a webhook may be sent to. Pure.

Source of the ranges: IANA's registries of special-purpose addresses. The standard library's `is_global` is not asked:
it differs between Python's patch releases, and takes an address that embeds another one as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

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
# Where clouds tell a machine its own credentials, and neighbours on its link: no allowed network opens these.
_NEVER = tuple(
    map(
        ip_network,
        (
            "169.254.0.0/16",
            "168.63.129.16/32",  # Azure
            "100.100.100.200/32",  # Alibaba Cloud
            "fe80::/10",
            "fd00:ec2::/32",  # AWS
            "fd20:ce::254/128",  # Google Cloud
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
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
    """Whether it is public, or in one of the networks that were allowed by name and not one of those never called."""
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    plain = unmapped(address)
    return is_public(plain) or (any(plain in network for network in private) and not is_never_called(plain))


def is_never_called(address: Address) -> bool:
    """Whether it is link-local or a cloud's own service, as it stands or by the IPv4 address that it embeds."""
    inner = _embedded(address)
    return any(address in network or (inner is not None and inner in network) for network in _NEVER)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address inside of an IPv6 one, in the forms that gateways and hosts unpack."""
    if isinstance(address, IPv4Address):
        return None
    if address.sixtofour is not None:
        return address.sixtofour
    low, form = IPv4Address(int(address) & 0xFFFFFFFF), (int(address) >> 32) & 0xFDFFFFFF
    if form == _ISATAP or any(address in network for network in (_NAT64, _NAT64_LOCAL, _COMPATIBLE)):
        return low
    return address.ipv4_mapped


def unmapped(address: Address) -> Address:
    """An IPv4 address in IPv6's clothes (::ffff:a.b.c.d) as what it is."""
    if isinstance(address, IPv6Address) and (inner := address.ipv4_mapped) is not None:
        return inner
    return address
