"""Which addresses a webhook may be sent to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.webhook.addresses import is_allowed, is_never_called, is_public

CLOSED = {
    "unspecified": ["0.0.0.0", "0.1.2.3", "::"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd00:ec2::254"],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255", "100.100.100.200"],
    "link-local": ["169.254.169.254", "fe80::1", "febf::1"],
    "site-local": ["fec0::1"],
    "platforms": ["168.63.129.16", "192.0.0.192"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarks": ["198.18.0.1", "198.19.255.255", "2001:2::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "reserved": ["240.0.0.1", "255.255.255.255", "4000::1", "5f00::1", "100::1"],
    "mapped": ["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"],
    "translated": ["::ffff:0:127.0.0.1"],
    "compatible": ["::127.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8"],
    "6to4": ["2002:7f00:1::", "2002:a00:1::1", "2002:808:808::1", "192.88.99.1"],
    "Teredo": ["2001:0:4136:e378:8000:63bf:f5ff:fffe", "2001::1"],
    "ISATAP": ["2a00:1450:4001:81b::5efe:7f00:1", "2a00:1450:4001:81b:200:5efe:a00:1"],
}
PUBLIC = ["1.1.1.1", "8.8.8.8", "100.63.255.255", "172.32.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::1"]
PUBLIC += ["::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]

v4 = st.integers(0, 2**32 - 1).map(IPv4Address)
v6 = st.one_of(
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**125 - 1).map(lambda low: (1 << 125) + low),
    st.builds(lambda top, low: (top << 96) + low, st.integers(0x20010000, 0x20020010), st.integers(0, 2**96 - 1)),
).map(IPv6Address)


@pytest.mark.parametrize("text", [text for texts in CLOSED.values() for text in texts])
def test_what_is_no_host_of_the_internet_is_not_public(text: str) -> None:
    assert not is_public(ip_address(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_host_of_the_internet_is_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", ["10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"])
def test_a_closed_network_is_closed_from_its_first_address_to_its_last_and_no_further(text: str) -> None:
    network = IPv4Network(text)
    assert not is_public(network[0])
    assert not is_public(network[-1])
    assert is_public(network[0] - 1)
    assert is_public(network[-1] + 1)


@settings(deadline=None)
@given(st.one_of(v4, v6))
def test_whatever_is_public_is_so_to_the_standard_library_too(address: IPv4Address | IPv6Address) -> None:
    if is_public(address) and address not in IPv6Network("64:ff9b::/96"):
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_loopback, address.is_link_local))


@settings(deadline=None)
@given(v4)
def test_an_embedded_address_is_judged_as_itself_or_refused(address: IPv4Address) -> None:
    bits = int(address)
    for prefix in (0xFFFF << 32, 0x64FF9B << 96):
        assert is_public(IPv6Address(prefix + bits)) == is_public(address)
    compatible, six_to_four = IPv6Address(bits), IPv6Address((0x2002 << 112) + (bits << 80))
    teredo, local_nat64 = (
        IPv6Address((0x20010000 << 96) + (bits ^ 0xFFFFFFFF)),
        IPv6Address((0x64FF9B0001 << 80) + bits),
    )
    isatap = IPv6Address((0x2A001450 << 96) + (0x5EFE << 32) + bits)
    assert not any(map(is_public, (compatible, six_to_four, teredo, local_nat64, isatap)))


def test_a_network_that_was_allowed_is_allowed_and_its_neighbours_are_not() -> None:
    private = [ip_network("10.1.0.0/16"), ip_network("fd00::/64")]
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd00::7", "8.8.8.8"):
        assert is_allowed(ip_address(text), private)
    for text in ("10.2.0.0", "::ffff:10.2.0.0", "fd00:0:0:1::", "127.0.0.1", "64:ff9b::10.1.2.3", "::10.1.2.3"):
        assert not is_allowed(ip_address(text), private)


@pytest.mark.parametrize(
    "text",
    [
        "169.254.169.254", "::ffff:169.254.169.254", "168.63.129.16", "100.100.100.200", "fe80::1", "fd00:ec2::254",
        "fd20:ce::254", "64:ff9b::169.254.169.254", "64:ff9b:1::169.254.169.254", "2002:a9fe:a9fe::1",
        "::169.254.169.254", "fd00::5efe:a9fe:a9fe",
    ],
)  # fmt: skip
def test_no_network_that_is_allowed_opens_link_local_or_a_clouds_own(text: str) -> None:
    assert not is_allowed(ip_address(text), [ip_network("0.0.0.0/0"), ip_network("::/0")])
    assert is_never_called(ip_address(text))
    assert is_allowed(ip_address("127.0.0.1"), [ip_network("0.0.0.0/0")])


def test_an_address_with_a_zone_is_never_allowed() -> None:
    assert not is_allowed(ip_address("fe80::1%eth0"), [ip_network("fe80::/10")])
    assert not is_allowed(ip_address("2a00:1450::1%eth0"), [])
