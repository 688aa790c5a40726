"""No connection is ever opened to an address that is not public: however it is written, whatever a name leads to, and
wherever an answer points.
"""

from __future__ import annotations

import itertools
import socket
import threading

import httpcore
import pytest

from jobs_admin import notices
from jobs_admin.core.refused import Refused
from jobs_admin.core.web_address import Allowed, BadAddress, parse, parse_allowed
from jobs_admin.models import Channel, Delivery
from jobs_admin.notices import guard, posting, sealing
from jobs_admin.notices.posting import Request
from tests.kit.addresses import ANSWERS, URLS
from tests.kit.endpoints import Listener, answering
from tests.kit.notices import ANN, deliver, notice, webhook

NOTHING = Allowed()


@pytest.fixture
def listener():
    found = Listener()
    yield found
    found.close()


def post_to(url: str, resolve=None, allowed_=NOTHING) -> posting.Answer | None:
    """The result; None where the URL is not read at all."""
    try:
        endpoint = parse(url)
    except BadAddress:
        return None
    return posting.send(Request(endpoint, {}, b"{}"), allowed_, resolve)


def test_the_listener_counts_what_reaches_it(listener):
    for url in (
        f"http://127.0.0.1:{listener.port}/",
        f"http://localhost:{listener.port}/",
        f"http://[::1]:{listener.port}/",
    ):
        post_to(url, allowed_=parse_allowed(["127.0.0.0/8", "::1", "localhost"]))
    assert listener.count == 3


def test_no_spelling_of_a_forbidden_address_opens_a_connection(listener):
    assert len(set(URLS)) >= 60
    for url in URLS:
        answer = post_to(url.format(port=listener.port))
        assert answer is None or answer.status is None, url
    assert listener.count == 0


def test_a_name_that_leads_to_a_forbidden_address_among_others_opens_none(listener):
    for answers in ANSWERS:
        answer = post_to(f"http://hooks.example:{listener.port}/", lambda host, port, answers=answers: answers)
        assert answer.status is None and answer.error, answers
    assert listener.count == 0


def test_a_name_that_leads_elsewhere_at_each_question_opens_none(listener):
    """Public when it is saved, the loopback when it is asked; or the other way round, a hundred times."""
    for first in (0, 1):
        turns = itertools.cycle([["127.0.0.1"], ["192.0.2.1"]] if first else [["192.0.2.1"], ["127.0.0.1"]])
        for _ in range(50):
            assert (
                post_to(
                    f"http://rebinding.example:{listener.port}/", lambda host, port, turns=turns: next(turns)
                ).status
                is None
            )
    assert listener.count == 0


def test_the_name_is_looked_up_once_a_request_and_the_connection_goes_to_what_was_judged(listener):
    requests = []

    def resolve(host, port):
        requests.append(host)
        return ["127.0.0.1"] if len(requests) == 1 else ["10.0.0.1"]

    post_to(f"http://once.example:{listener.port}/", resolve, parse_allowed(["127.0.0.1"]))
    assert (requests, listener.count) == (["once.example"], 1)


def test_the_connection_refuses_another_host_than_the_one_that_was_judged():
    pinned = guard.Pinned(parse("http://hooks.example/"), guard.Time(5), NOTHING, lambda host, port: ["1.1.1.1"])
    with pytest.raises(guard.NotPublic):
        pinned.connect_tcp("other.example", 80)
    with pytest.raises(guard.NotPublic):
        pinned.connect_unix_socket("/tmp/x")


def test_a_redirect_is_not_followed_wherever_it_points(listener, endpoint):
    for status in (301, 302, 303, 307, 308):
        there = endpoint(answering(status, Location=f"http://127.0.0.2:{listener.port}/"))
        assert post_to(there.url, allowed_=parse_allowed([f"127.0.0.1:{there.port}"])).status == status
    assert listener.count == 0


def test_proxies_of_the_environment_are_ignored(listener, endpoint, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.port}")
    there = endpoint(answering(204))
    assert post_to(there.url, allowed_=parse_allowed([f"127.0.0.1:{there.port}"])).status == 204
    assert listener.count == 0


def test_a_name_server_that_does_not_answer_takes_seconds_not_minutes(monkeypatch):
    monkeypatch.setattr(guard, "_LOOKUP_S", 0.2)
    is_over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: is_over.wait(90) and [])
    answer = post_to("http://hooks.example/")
    is_over.set()
    assert answer.error == "The lookup of hooks.example took longer than 0 s." and answer.took_ms < 60_000


def test_reads_and_writes_share_the_time_of_the_request(endpoint):
    there = endpoint(lambda client: None)
    stream = httpcore.SyncBackend().connect_tcp("127.0.0.1", there.port)
    timed = guard._Timed(stream, guard.Time(0))
    for act in (lambda: timed.read(1), lambda: timed.write(b"x"), lambda: timed.start_tls(None)):
        with pytest.raises(guard.TooSlow):
            act()


# -- when it is saved ---------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["webhook", "slack", "pagerduty"])
def test_a_channel_to_a_forbidden_address_is_refused_with_the_address_and_how_to_allow_it(kind, settings, listener):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": []}
    fields = {"webhook": {}, "slack": {}, "pagerduty": {"secret": "0" * 32}}[kind]
    for url in URLS:
        with pytest.raises(Refused) as refused:
            notices.save_channel(ANN, {"name": "x", "kind": kind, "url": url.format(port=listener.port), **fields})
        assert refused.value.field == "url" and refused.value.message.endswith("Nothing was changed.")
    with pytest.raises(Refused, match=r"127.0.0.1 is not a public address \(loopback\).*REDRIVE_WEBHOOK_ALLOW"):
        notices.save_channel(ANN, {"name": "x", "kind": kind, "url": "https://127.0.0.1/", **fields})
    with pytest.raises(Refused, match=r"localhost resolves to (127.0.0.1|::1), which is not a public address"):
        notices.save_channel(ANN, {"name": "x", "kind": kind, "url": "https://localhost/", **fields})
    assert not Channel.objects.exists() and listener.count == 0


@pytest.mark.django_db
def test_what_was_allowed_once_is_refused_at_the_socket_when_it_is_not_any_more(settings, listener):
    url = f"http://127.0.0.1:{listener.port}/"
    channel, _ = webhook("pager", url)
    Channel.objects.create(
        name="by hand", kind="webhook", url=f"http://localhost:{listener.port}/", secrets=[sealing.seal(sealing.make())]
    )
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": []}
    notice(*Channel.objects.all())
    deliver()
    assert listener.count == 0
    rows = list(Delivery.objects.order_by("channel__name"))
    assert {row.state for row in rows} == {"waiting"}
    assert all("not a public address" in row.error and "REDRIVE_WEBHOOK_ALLOW" in row.error for row in rows)
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": [f"localhost:{listener.port}"]}
    Delivery.objects.update(next_try_at="2026-01-01T00:00Z")
    deliver()
    assert listener.count >= 1 and "not a public" in Delivery.objects.get(channel=channel).error
