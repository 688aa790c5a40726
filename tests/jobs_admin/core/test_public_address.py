"""Public addresses and readable URLs."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from jobs_admin.core.web_address import BadAddress, BadAllowance, parse, parse_allowed, why_not
from tests.kit.cases import with_cases

PUBLIC = ["1.1.1.1", "8.8.8.8", "9.9.9.9", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.0.1.1"]
PUBLIC += [
    "198.17.0.1",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450::1",
    "2620:fe::fe",
]
NOT_PUBLIC = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.255.254", "168.63.129.16",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1", "192.88.99.1", "192.168.1.1",
    "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1",
    "255.255.255.255", "::", "::1", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:127.0.0.1",
    "64:ff9b::a9fe:a9fe", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "100::1", "2001::1", "2001:0:4136:e378::1", "2001:2::1",
    "2001:10::1", "2001:20::1", "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "3fff::1", "5f00::1", "fc00::1",
    "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "2606:4700::1%eth0", "febf::1", "fec0::1", "feff::1", "ff02::1", "4000::1",
    "0400::1", "e000::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_it_is_public(text):
    assert why_not(ip_address(text)) is None


@with_cases("text", NOT_PUBLIC)
def test_it_is_not_public_and_is_labelled_as_such(text):
    assert why_not(ip_address(text))


def test_what_is_allowed_is_a_host_or_a_network_with_a_port_or_without():
    found = parse_allowed(
        ["hooks.internal", "10.2.0.0/16", "[::1]:9000", "127.0.0.1:8025", " ", "fd00::/8", "build:80"]
    )
    assert (
        found.names("hooks.internal", 1)
        and found.names("HOOKS.internal", 443)
        and not found.names("x.hooks.internal", 1)
    )
    assert found.names("build", 80) and not found.names("build", 81)
    assert found.holds(ip_address("10.2.255.1"), 1) and not found.holds(ip_address("10.3.0.1"), 1)
    assert found.holds(ip_address("::ffff:10.2.0.1"), 1) and found.holds(ip_address("fd12::1"), 5)
    assert found.holds(ip_address("127.0.0.1"), 8025) and not found.holds(ip_address("127.0.0.1"), 8026)
    assert found.holds(ip_address("::1"), 9000) and not found.holds(ip_address("::1"), 9001)


@pytest.mark.parametrize(
    "entry",
    [
        "10.0.0.0/33",
        "10.0.0.1/8",
        "1.2.3",
        "a b",
        "host/8",
        "h:0",
        "h:70000",
        "10.0.0.1:99999",
        "[::1]:0",
        "*",
        "https://x",
        "[x]:1",
    ],
)
def test_what_is_neither_is_refused_by_name(entry):
    with pytest.raises(BadAllowance, match="neither a host nor a network"):
        parse_allowed([entry])


def test_a_url_is_read_into_its_parts():
    found = parse("HTTPS://Hooks.Example:8443/a/b?c=d%20e")
    assert (found.scheme, found.host, found.port, found.target) == ("https", "hooks.example", 8443, "/a/b?c=d%20e")
    assert (str(found), found.without_path) == (
        "https://hooks.example:8443/a/b?c=d%20e",
        "https://hooks.example:8443/…",
    )
    assert (parse("http://a").server, parse("https://[2606:4700::1]").server) == ("a", "[2606:4700::1]")
    assert parse("https://a?b=c").target == "/?b=c"


@with_cases(
    "url",
    [
        "", "hooks.example", "ftp://a/", "file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "https://", "https:///a",
        "https:/a", "//a", "https://user@a/", "https://user:pw@a/", "https://a@127.0.0.1/", "https://a\\@127.0.0.1/",
        "https://a/#b", "https://a b/", "https://a\r\nX: y/", "https://a\t/", "https://ä.example/", "https://①②⑦.0.0.1/",
        "https://127。0。0。1/", "https://a./", "https://.a/", "https://a..b/", "https://-a/", "https://a:0/", "https://a:99999/",
        "https://a:b/", "https://a:80:80/", "https://[::1/", "https://[::1]x/", "https://[fe80::1%25eth0]/", "https://[127.0.0.1]/",
        "https://0x7f.1/", "https://0x7f000001/", "https://2130706433/", "https://127.1/", "https://0177.0.0.1/",
        "https://127.0.0.1.1/", "https://127.0.0.01/", "https://1.2.3.256/", "https://a.0x1/", "https://%31%32%37.0.0.1/",
        "https://a/" + "b" * 1_000, "https://a/<b>", "https://a/b c", "https://a/\\b", "https://a/{b}", "https://" + "a" * 64,
    ],
)  # fmt: skip
def test_a_url_that_two_readers_could_take_differently_is_not_read(url):
    with pytest.raises(BadAddress):
        parse(url)
