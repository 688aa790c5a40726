"""Wrong passwords are counted for the client's address, whatever a client writes into headers."""

from __future__ import annotations

import random
from ipaddress import ip_address, ip_network

import pytest
from axes.models import AccessAttempt

from dashboard.setup import checkup, environment
from dashboard.web import addresses
from tests.kit.people import PASSWORD

PROXY = [ip_network("127.0.0.1"), ip_network("10.2.0.0/16"), ip_network("fd00::/8")]


@pytest.fixture
def user(db, django_user_model):
    return django_user_model.objects.create_user("ann", password=PASSWORD)


@pytest.fixture
def proxied(settings):
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": PROXY}


def log_in(client, password, forwarded=None, peer="127.0.0.1", name="ann"):
    headers = {"X-Forwarded-For": forwarded} if forwarded is not None else {}
    return client.post(
        "/login/", {"username": name, "password": password}, headers=headers, REMOTE_ADDR=peer
    ).status_code


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "203.0.113.9, 10.2.3.4", "203.0.113.9"),  # two proxies
        ("127.0.0.1", "198.51.100.1, 203.0.113.9", "203.0.113.9"),  # the client wrote the first
        ("127.0.0.1", "10.2.0.1, 203.0.113.9, 10.2.3.4", "203.0.113.9"),  # … also the name of a proxy
        ("127.0.0.1", "127.0.0.1, 203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),  # no proxy: no header is believed
        ("203.0.113.9", "127.0.0.1", "203.0.113.9"),
        ("127.0.0.1", "203.0.113.9:51234", "203.0.113.9"),
        ("127.0.0.1", "[2001:db8::9]:51234", "2001:db8::9"),
        ("127.0.0.1", "2001:db8::9", "2001:db8::9"),
        ("::ffff:127.0.0.1", "::ffff:203.0.113.9", "203.0.113.9"),
        ("fd00::1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "unknown", "127.0.0.1"),
        ("127.0.0.1", "198.51.100.1, garbage, 10.2.3.4", "10.2.3.4"),  # not beyond what cannot be read
        ("127.0.0.1", "198.51.100.1, , 10.2.3.4", "10.2.3.4"),
        ("127.0.0.1", "fe80::1%eth0", "127.0.0.1"),
        ("127.0.0.1", "10.2.0.1, 10.2.0.2", "10.2.0.1"),
        ("127.0.0.1", "127.0.0.1," * 5000 + "203.0.113.9", "203.0.113.9"),
        ("", "203.0.113.9", None),
    ],
)
def test_the_client_is_the_nearest_hop_that_is_no_trusted_proxy(peer, forwarded, client):
    found = addresses.find_client(peer, forwarded, PROXY)
    assert found == (ip_address(client) if client else None)


def test_no_header_of_a_client_changes_what_a_trusted_proxy_appended():
    chance = random.Random(20)
    words = [
        "127.0.0.1",
        "10.2.9.9",
        "::1",
        "fd00::2",
        "1.2.3.4",
        "unknown",
        "",
        "[",
        "]:1",
        "%",
        "🦊",
        "0",
        "a,b",
        "\x00",
    ]
    for _ in range(5000):
        forged = ",".join(chance.choice(words) for _ in range(chance.randrange(12)))
        appended = f"{forged}, 203.0.113.9" + chance.choice(["", ", 10.2.3.4", ", fd00::7, 10.2.0.1"])
        assert addresses.find_client("127.0.0.1", appended, PROXY) == ip_address("203.0.113.9"), forged


def test_wrong_passwords_from_elsewhere_leave_the_account_open_behind_a_proxy(client, user, proxied):
    codes = [log_in(client, "wrong", f"{n}.1.1.1, 203.0.113.9") for n in range(1, 12)]
    assert codes[-1] == 429  # a forged first hop makes nobody another
    assert log_in(client, PASSWORD, "203.0.113.9") == 429
    assert log_in(client, PASSWORD, "198.51.100.7") == 302


def test_without_a_trusted_proxy_no_header_is_believed(client, user, settings):
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": []}
    codes = [log_in(client, "wrong", f"198.51.100.{n}") for n in range(11)]
    assert codes[-1] == 429


def test_an_address_that_tries_many_names_is_locked_and_no_other(client, user, proxied):
    AccessAttempt.objects.bulk_create(
        AccessAttempt(username=f"n{n}", ip_address="203.0.113.9", user_agent="", failures_since_start=9, get_data="",
                      post_data="", http_accept="", path_info="") for n in range(11)
    )  # fmt: skip
    assert log_in(client, PASSWORD, "203.0.113.9", name="nobody") == 429  # the hundredth
    assert log_in(client, PASSWORD, "203.0.113.9") == 429
    assert log_in(client, PASSWORD, "203.0.113.10") == 302


def test_wrong_passwords_from_the_proxy_itself_lock_names_and_not_everyone(client, user, proxied):
    AccessAttempt.objects.create(
        username="other", ip_address="127.0.0.1", user_agent="", failures_since_start=500, get_data="", post_data="",
        http_accept="", path_info="",
    )  # fmt: skip
    assert log_in(client, PASSWORD) == 302


def test_wrong_passwords_from_an_ipv6_proxy_that_names_no_client_do_not_lock_everyone(client, user, settings):
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": [ip_network("2001:db8:7::5")]}
    AccessAttempt.objects.create(
        username="other", ip_address="2001:db8:7::5", user_agent="", failures_since_start=500, get_data="", post_data="",
        http_accept="", path_info="",
    )  # fmt: skip
    for n in range(11):
        log_in(client, "wrong", "unknown", peer="2001:db8:7::5", name=f"n{n}")
    AccessAttempt.objects.update(failures_since_start=50)
    assert log_in(client, PASSWORD, "unknown", peer="2001:db8:7::5") == 302


def test_addresses_of_one_ipv6_site_are_one(client, user, proxied):
    codes = [log_in(client, "wrong", f"2001:db8:1:2::{n:x}") for n in range(1, 12)]
    assert codes[-1] == 429
    assert log_in(client, PASSWORD, "2001:db8:1:3::1") == 302


@pytest.mark.parametrize("text", ["10.0.0.0/99", "proxy.internal", "0.0.0.0/0", "127.0.0.1, ::/0"])
def test_a_network_that_is_none_or_is_everything_ends_the_start(monkeypatch, text):
    monkeypatch.setenv("REDRIVE_TRUSTED_PROXIES", text)
    with pytest.raises(environment.Misconfigured, match=r"REDRIVE_TRUSTED_PROXIES: .* Nothing was started"):
        environment.redrive()


@pytest.mark.django_db
def test_doctor_shows_where_clients_cannot_be_reported_apart(settings, proxied):
    assert checkup.check_logins().findings == []
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": []}
    assert checkup.check_logins().findings == []  # at the loopback only
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://ops.example.com"}
    (found,) = checkup.check_logins().findings
    assert found.severity == "warning" and "lock an account for everyone" in found.text
    settings.REDRIVE = settings.REDRIVE | {"TRUSTED_PROXIES": PROXY}
    AccessAttempt.objects.create(username="ann", ip_address="10.2.3.4", failures_since_start=1)
    (found,) = checkup.check_logins().findings
    assert "the proxy does not send the client" in found.text
