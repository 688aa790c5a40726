"""URLs of a Redis behind Sentinels: the desk's form, Celery's form, and what is refused."""

from __future__ import annotations

import pytest

from jobs_admin.core.sentinel_url import for_kombu, parse, with_options
from jobs_admin.core.service_url import Unreadable, display_url

SECRET = "pa%3Ass%2Cwo%3Brd"


def test_the_parts_of_the_desks_form():
    found = parse(f"rediss+sentinel://ann:{SECRET}@a:1,[::1],c:3/shop/4?sentinel_password=own&ssl_ca_certs=%2Fca")
    assert found.sentinels == (("a", 1), ("::1", 26379), ("c", 3))
    assert (found.set_name, found.password, found.is_tls) == ("shop", "own", True)
    assert found.server_url == f"rediss://ann:{SECRET}@primary/4?ssl_ca_certs=%2Fca"
    assert SECRET not in found.display and "own" not in found.display


def test_tls_to_the_servers_alone():
    assert not parse("rediss+sentinel://a/shop?sentinel_tls=no").is_tls


def test_celerys_form_and_its_options_are_the_desks_form():
    url = f"sentinel://:{SECRET}@a:1/2;sentinel://b:2/2"
    options = {"master_name": "shop", "sentinel_kwargs": {"password": "o@wn"}}
    assert with_options(url, options) == f"redis+sentinel://:{SECRET}@a:1,b:2/shop/2?sentinel_password=o%40wn"
    assert with_options(url + "?master_name=shop", {}) == f"redis+sentinel://:{SECRET}@a:1,b:2/shop/2"
    assert with_options(url, options | {"ssl": True}).startswith("rediss+sentinel://")


@pytest.mark.parametrize("tls", ["", "&ssl_ca_certs=%2Fca"])
def test_kombu_gets_what_it_was_made_of(tls):
    scheme = "rediss+sentinel" if tls else "redis+sentinel"
    url, options, ssl = for_kombu(f"{scheme}://:{SECRET}@a:1,b:2/shop/2?sentinel_password=own{tls}")
    assert url == f"sentinel://:{SECRET}@a:1/2;sentinel://:{SECRET}@b:2/2"
    assert options["master_name"] == "shop" and options["sentinel_kwargs"]["password"] == "own"
    assert ssl == ({"ssl_cert_reqs": "required", "ssl_ca_certs": "/ca"} if tls else None)
    assert for_kombu("redis://a/0") == ("redis://a/0", {}, None)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+sentinel://a:1", "names the set"),
        ("redis+sentinel://a:1/0/0/0", "database must be a number"),
        ("sentinel://a:1/0", "the option master_name"),
        ("redis+sentinel://:hid@den@a:1@b/shop", "is like"),
        ("redis+sentinel://:hid/den@a:1/shop", "is like"),
        ("redis+sentinel://:hidden@a:1;redis+sentinel://b:1/shop", "is like"),
        ("redis+sentinel://:hid#den@a:1/shop", "is like"),
        ("redis+sentinel://a:99999/shop", "is like"),
        ("redis+sentinel://a:1,/shop", "is like"),
    ],
)
def test_what_is_unclear_is_refused_without_the_password(url, why):
    with pytest.raises(Unreadable, match=why) as refused:
        parse(url)
    assert "den" not in str(refused.value).replace("hidden", "den") or "hid" not in str(refused.value)


def test_the_shown_url_has_no_password():
    assert display_url(f"redis+sentinel://ann:{SECRET}@a:1,b:2/shop/0") == "redis+sentinel://a:1,b:2"
    assert display_url("redis+sentinel://:hid@den@a:1/shop") == "redis+sentinel://…"
