"""URLs are read so that nobody can understand another host, and compared with the allow-list."""

from __future__ import annotations

import socket

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fencepost.webhook.destinations import (
    AllowList,
    Destination,
    DestinationRefused,
    read_allowed_host,
    read_destination,
    read_host,
)

NO_URLS = ["", "a.example", "//a.example/", "https:/x", "https://", "https:///x", "https://:443/", "ftp://a.example/"]
NO_URLS += [
    "file:///etc/passwd",
    "gopher://a.example/",
    "HTTPSS://a.example/",
    " https://a.example/",
    "https://a.example/ x",
]
NO_URLS += ["https://a.example/\r\nX: y", "https://a.example/ä"]
NO_AUTHORITIES = {
    "a user": ["user@a.example", "user:pw@a.example", "@a.example", "a.example@b.example"],
    "numbers": ["2130706433", "017700000001", "0x7f000001", "0x7f.1", "0x"],
    "short": ["127.1", "127.0.1", "1", "a.1", "a.0x1"],
    "octal": ["0177.0.0.1", "127.0.0.01", "127.0.0.0x1", "256.1.1.1"],
    "dots": ["a.example.", "127.0.0.1.", "a..example", ".a.example", "."],
    "not ASCII": ["ä.example", "１２７.0.0.1", "a。example", "ⓐ.example"],
    "escapes": ["%31%32%37.0.0.1", "a%2eexample", "a.example%00", "a\\@b.example"],
    "blanks": ["a.example ", "a.exa\tmple"],
    "zones": ["[fe80::1%eth0]", "[fe80::1%25eth0]"],
    "brackets": ["[::1", "::1", "[127.0.0.1]", "[::1]x", "[v1.x]"],
    "ports": ["a.example:", "a.example:0", "a.example:65536", "a.example:+1"],
    "labels": ["-a.example", "a-.example", f"{'a' * 64}.example", ".".join(["a" * 60] * 5), "a,b.example", "*.example"],
}


@pytest.mark.parametrize("url", NO_URLS)
def test_what_is_no_plain_url_is_refused(url: str) -> None:
    with pytest.raises(DestinationRefused):
        read_destination(url)


@pytest.mark.parametrize("authority", [odd for those in NO_AUTHORITIES.values() for odd in those])
def test_an_odd_host_is_refused(authority: str) -> None:
    with pytest.raises(DestinationRefused):
        read_destination(f"https://{authority}/")


@pytest.mark.parametrize(
    ("url", "authority", "destination"),
    [
        ("https://hooks.example.com", "hooks.example.com", ("https", "hooks.example.com", 443, "/")),
        ("HTTPS://Hooks.Example.COM:443/A?b=C#d", "hooks.example.com", ("https", "hooks.example.com", 443, "/A?b=C")),
        ("http://mailer:8080?x=@", "mailer:8080", ("http", "mailer", 8080, "/?x=@")),
        ("https://192.0.2.1/", "192.0.2.1", ("https", "192.0.2.1", 443, "/")),
        ("https://[2001:DB8:0::1]:8443/", "[2001:db8::1]:8443", ("https", "2001:db8::1", 8443, "/")),
        ("https://xn--4ca.example/", "xn--4ca.example", ("https", "xn--4ca.example", 443, "/")),
    ],
)
def test_a_plain_url_is_read(url: str, authority: str, destination: tuple[object, ...]) -> None:
    assert read_destination(url) == destination
    assert read_destination(url).authority == authority


@settings(deadline=None)
@given(st.text("0123456789abcdefx.-:[]", max_size=24))
def test_no_host_but_an_address_as_usually_written_is_an_address_to_the_system(text: str) -> None:
    """inet_aton, with which the system's resolver begins, takes 127.1, 0x7f.1, 0177.1 and 2130706433."""
    try:
        host = read_host(text)
        packed = socket.inet_aton(host)
    except (DestinationRefused, OSError):
        return
    assert socket.inet_ntoa(packed) == host


@settings(deadline=None)
@given(st.text("aA1.:/@#?[]%\\-x2 e", max_size=20))
def test_another_reader_of_a_url_understands_the_same_host(rest: str) -> None:
    url = f"http://{rest}"
    try:
        destination = read_destination(url)
    except DestinationRefused:
        return
    other = httpx.URL(url)
    assert (other.host, other.port or 80, other.userinfo) == (destination.host, destination.port, b"")


def allowed(url: str, *hosts: str, http: bool = False) -> bool:
    try:
        AllowList([read_allowed_host(host) for host in hosts], http=http).check(read_destination(url))
    except DestinationRefused:
        return False
    return True


def test_the_allow_list_is_of_exact_hosts_and_ports() -> None:
    assert allowed("https://hooks.example.com/x", "hooks.example.com")
    assert allowed("https://hooks.example.com:8443/x", "other.example", "HOOKS.example.com:8443")
    assert not allowed("https://hooks.example.com:8443/x", "hooks.example.com")
    assert not allowed("https://hooks.example.com/", "hooks.example.com:8443")
    assert not allowed("https://evil-hooks.example.com/", "hooks.example.com")
    assert not allowed("https://hooks.example.com.evil.example/", "hooks.example.com")
    assert not allowed("https://hooks.example.com/")


def test_a_star_allows_what_is_below_and_nothing_beside() -> None:
    assert allowed("https://a.b.example.com/", "*.example.com")
    assert not allowed("https://example.com/", "*.example.com")
    assert not allowed("https://evil-example.test/", "*.example.test")
    assert not allowed("https://1.2.3.4/", "*.example.test")


@pytest.mark.parametrize(
    "text", ["*", "*.", "*.com", "*.1.2.3.4", "a.*.example.com", "https://a.example", "*.a.b.", ""]
)
def test_an_allowed_host_that_says_too_much_or_nothing_is_refused(text: str) -> None:
    with pytest.raises(DestinationRefused):
        read_allowed_host(text)


def test_http_must_be_allowed_by_name() -> None:
    assert not allowed("http://hooks.example.com/", "hooks.example.com")
    assert allowed("http://hooks.example.com/", "hooks.example.com", http=True)
    assert not allowed("http://hooks.example.com:443/", "hooks.example.com", http=True)


@pytest.mark.parametrize(
    ("location", "authority", "target"),
    [
        ("/other?x=1#y", "hooks.example.com", "/other?x=1"),
        ("../up", "hooks.example.com", "/up"),
        ("//cdn.example.com/z", "cdn.example.com", "/z"),
        ("https://cdn.example.com:444", "cdn.example.com:444", "/"),
    ],
)
def test_a_redirect_is_read_from_where_it_came(location: str, authority: str, target: str) -> None:
    destination = read_destination("https://hooks.example.com/a/b").redirected(location)
    assert (destination.authority, destination.target) == (authority, target)


@settings(deadline=None)
@given(st.text(max_size=40))
def test_whatever_a_redirect_says_is_a_destination_or_refused(location: str) -> None:
    try:
        destination = read_destination("https://hooks.example.com/a/b").redirected(location)
    except DestinationRefused:
        return
    assert isinstance(destination, Destination)
    assert destination.target.startswith("/")
