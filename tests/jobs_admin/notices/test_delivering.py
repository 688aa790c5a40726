"""Notices arrive: signed, once by their id however often they are tried, and no one waits for another person's endpoint."""

from __future__ import annotations

import random
import socket
import time
from datetime import timedelta

import pytest
from django.utils import timezone
from standardwebhooks import Webhook, WebhookVerificationError

from jobs_admin import notices
from jobs_admin.models import AuditEvent, Channel, Delivery
from jobs_admin.notices import delivering, posting, routing
from tests.kit.endpoints import HOSTILE, IN_THREE_HOURS, answering, certified, hang, opened, reset
from tests.kit.notices import ANN, deliver, due_now, notice, webhook
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def delivery_of(channel: Channel) -> Delivery:
    return Delivery.objects.get(channel=channel)


def test_a_notice_arrives_signed_as_the_library_verifies(endpoint):
    there = endpoint(answering(204))
    channel, secret = webhook("pager", there.url)
    sent_notice = notice(channel)
    deliver()
    (seen,) = there.seen
    found = Webhook(secret).verify(seen.body, seen.headers)
    assert (found["type"], found["timestamp"]) == ("alert.firing", sent_notice.created_at.isoformat())
    assert found["data"]["message"] == "emails has 1,243 dead jobs" and found["data"]["source"] == "shop"
    row = delivery_of(channel)
    assert (row.state, row.status, row.tries, row.request) == ("delivered", 204, 1, seen.body.decode())
    assert secret not in str(Delivery.objects.values()) + str(AuditEvent.objects.values())


def test_of_a_thousand_bit_flips_a_thousand_are_refused(endpoint):
    there = endpoint(answering(204))
    channel, secret = webhook("pager", there.url)
    notice(channel)
    deliver()
    (seen,), draw, refused = there.seen, random.Random(1), 0
    for _ in range(1_000):
        body = bytearray(seen.body)
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        try:
            Webhook(secret).verify(bytes(body), seen.headers)
        except (WebhookVerificationError, UnicodeDecodeError):
            refused += 1
    assert refused == 1_000


def test_while_a_secret_is_rotated_both_verify_and_afterwards_only_the_new_one(endpoint):
    there = endpoint(answering(204))
    channel, old = webhook("pager", there.url)
    new = notices.rotate(ANN, channel.pk)
    notice(channel)
    deliver()
    for secret in (old, new):
        Webhook(secret).verify(there.seen[0].body, there.seen[0].headers)
    notices.end_rotation(ANN, channel.pk)
    notice(channel, key="alert-1-2")
    deliver()
    Webhook(new).verify(there.seen[1].body, there.seen[1].headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(old).verify(there.seen[1].body, there.seen[1].headers)


def test_every_retry_has_the_same_id_and_body_and_the_last_is_parked(endpoint):
    there = endpoint(answering(500))
    channel, secret = webhook("pager", there.url)
    notice(channel)
    waits = []
    for _ in range(posting.MOST_TRIES):
        deliver(timezone.now())  # one time for a whole try: else its answer may be recorded seconds after its beginning
        row = delivery_of(channel)
        waits.append(round((row.next_try_at - row.tried_at).total_seconds()) if row.next_try_at else None)
        due_now()
    assert len(there.seen) == posting.MOST_TRIES == 10
    assert {seen.headers["webhook-id"] for seen in there.seen} == {"alert-1-1"}
    assert len({seen.body for seen in there.seen}) == 1
    for seen in there.seen:
        Webhook(secret).verify(seen.body, seen.headers)
    for wait, wanted in zip(waits[:-1], posting.WAITS_S, strict=True):
        assert 0.9 * wanted - 1 <= wait <= wanted + 2
    row = delivery_of(channel)
    assert (row.state, waits[-1], len(row.log)) == ("parked", None, 10)
    assert row.error == "The endpoint answered 500. All 10 tries are used."


def test_who_is_killed_between_the_request_and_its_record_has_it_sent_again_with_the_same_id(endpoint):
    there = endpoint(answering(204))
    channel, _ = webhook("pager", there.url)
    notice(channel)
    now = timezone.now()
    notices.deliver(now)  # begun
    wait_until(lambda: there.seen, "the request")
    delivering._lanes.clear()  # as a killed process: what came back is recorded by nobody
    assert delivery_of(channel).state == "sending"
    deliver(now)
    assert len(there.seen) == 1  # the claim still stands
    deliver(now + timedelta(seconds=31))
    assert [seen.headers["webhook-id"] for seen in there.seen] == ["alert-1-1"] * 2
    assert (delivery_of(channel).state, delivery_of(channel).tries) == ("delivered", 2)


def test_two_watches_send_a_delivery_once(endpoint):
    there = endpoint(answering(204))
    channel, _ = webhook("pager", there.url)
    notice(channel)
    now = timezone.now()
    notices.deliver(now)
    mine = list(delivering._lanes)
    delivering._lanes.clear()  # the other watch
    for _ in range(5):
        notices.deliver(now)
    delivering._lanes[:] = mine
    deliver(now)
    assert len(there.seen) == 1 and delivery_of(channel).state == "delivered"


def test_a_watch_that_slept_beyond_its_claim_does_not_undo_what_another_has_recorded(endpoint):
    there = endpoint(reset)
    channel, _ = webhook("pager", there.url)
    notice(channel)
    now = timezone.now()
    notices.deliver(now)
    slept = list(delivering._lanes)
    delivering._lanes.clear()
    there.behave = answering(204)
    deliver(now + timedelta(seconds=31))
    assert delivery_of(channel).state == "delivered"
    delivering._lanes[:] = slept
    deliver(now + timedelta(seconds=32))
    assert delivery_of(channel).state == "delivered" and Channel.objects.get(pk=channel.pk).failures == 0


@pytest.mark.parametrize(
    "left",
    [
        {"state": "waiting", "tries": 0, "tried_at": None},
        {"state": "waiting", "tries": 2, "tried_at": timedelta(minutes=55)},
        {"state": "sending", "tries": 1, "tried_at": timedelta(minutes=59)},
    ],
)
def test_a_clock_that_was_set_back_an_hour_keeps_no_delivery_waiting(endpoint, left):
    there = endpoint(answering(204))
    channel, _ = webhook("pager", there.url)
    now = timezone.now()
    routing.route(now), notice(channel), routing.route(now)
    left = {name: now + value if isinstance(value, timedelta) else value for name, value in left.items()}
    Delivery.objects.update(next_try_at=now + timedelta(minutes=60), **left)
    delivering._set_right_at.clear()
    deliver(now)
    assert delivery_of(channel).state == "delivered"


def test_what_waits_for_its_next_try_goes_on_waiting(endpoint):
    there = endpoint(answering(204))
    channel, _ = webhook("pager", there.url)
    notice(channel)
    now = timezone.now()
    routing.route(now)
    day = now + timedelta(seconds=95_000)  # the last of the waits, with its jitter
    Delivery.objects.update(state="waiting", tries=9, tried_at=now, next_try_at=day)
    delivering._set_right_at.clear()
    deliver(now)
    Delivery.objects.update(state="sending", next_try_at=day)
    Delivery.objects.update(next_try_at=now + timedelta(seconds=120))
    delivering._set_right_at.clear()
    deliver(now)
    assert delivery_of(channel).state == "sending" and not there.seen


# Less than one try of an endpoint that hangs: who had waited for one would come later.
NOT_BEHIND_S = posting.LONGEST_S - 5
QUICK = [name for name in HOSTILE if name not in ("hangs", "a byte a second", "a slow body", "100 for ever")]


def test_what_endpoints_do_is_reported_in_words_and_tried_again_when_they_report(tmp_path):
    bad_tls, _ = certified(tmp_path)
    with opened(*(HOSTILE[name] for name in QUICK)) as hostile, opened(answering(204), tls=bad_tls) as (untrusted,):
        channels = [webhook(name, one.url)[0] for name, one in zip(QUICK, hostile, strict=True)]
        notice(*channels, webhook("bad TLS", untrusted.url)[0])
        deliver()
    rows = {row.channel.name: row for row in Delivery.objects.select_related("channel")}
    assert {name: row.state for name, row in rows.items() if row.state != "waiting"} == {
        "204": "delivered",
        "410": "parked",
    }
    assert Channel.objects.get(name="410").disabled_at
    assert rows["429"].next_try_at - rows["429"].tried_at >= timedelta(hours=2)
    assert timedelta(0) <= rows["503 until a date"].next_try_at - IN_THREE_HOURS < timedelta(hours=0.4)
    assert rows["301"].error == "The endpoint answered 301: redirects are not followed."
    assert "not decoded" in rows["gzip bomb"].answer
    assert "certificate" in rows["bad TLS"].error and not untrusted.seen
    assert all(len(row.answer.encode()) <= 2_000 and "\x00" not in row.answer for row in rows.values())
    assert rows["500"].answer.startswith("<script>alert(1)</script>␀")


def test_hostile_endpoints_are_delivered_or_parked_and_a_healthy_one_does_not_wait(endpoint):
    with opened(*HOSTILE.values()) as hostile:
        channels = [webhook(name, one.url)[0] for name, one in zip(HOSTILE, hostile, strict=True)]
        there = endpoint(answering(204))
        healthy, _ = webhook("healthy", there.url)
        notice(*channels)
        routing.route(timezone.now())
        Delivery.objects.update(tries=posting.MOST_TRIES - 1)  # the last try of each
        began = time.monotonic()
        for n in range(2, 8):  # in the middle of it
            written = time.monotonic()
            notice(healthy, key=f"alert-1-{n}")
            deliver(until=lambda n=n: len(there.seen) == n - 1)
            assert there.seen[-1].at - written < NOT_BEHIND_S
        deliver()
        assert time.monotonic() - began < 3 * posting.LONGEST_S  # side by side, not one after the other
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered", "parked"}
    assert Delivery.objects.filter(channel=healthy, state="delivered").count() == 6
    assert max(Delivery.objects.values_list("took_ms", flat=True)) < 2_000 * posting.LONGEST_S


def test_a_hundred_channels_that_hang_keep_no_one_else_waiting(endpoint):
    with opened(hang) as (one,):
        hanging = [
            Channel.objects.create(
                name=f"h{n}", kind="webhook", url=one.url, secrets=webhook(f"s{n}", one.url)[0].secrets
            )
            for n in range(2)
        ]
        hanging += [
            Channel.objects.create(name=f"x{n}", kind="webhook", url=one.url, secrets=hanging[0].secrets)
            for n in range(98)
        ]
        there = endpoint(answering(204))
        healthy, _ = webhook("healthy", there.url)
        notice(*hanging)
        deliver(until=lambda: len(one.seen) == 100)
        written = time.monotonic()
        notice(healthy, key="alert-2-1")
        deliver(until=lambda: bool(there.seen))
        assert there.seen[0].at - written < NOT_BEHIND_S


def test_a_compressed_answer_is_not_opened_and_a_script_in_one_is_text():
    assert posting._read_text(b"\x1f\x8b", "gzip") == "(2 bytes or more, compressed, not decoded)"
    assert posting._read_text(b"<script>\x00\xff" + "é".encode() * 2_000, "").startswith("<script>␀�é")
    assert len(posting._read_text("é".encode() * 2_000, "").encode()) <= 2_000


def test_a_name_is_verified_in_the_certificate_though_the_connection_goes_to_a_pinned_address(
    endpoint, tmp_path, monkeypatch
):
    tls, trusted = certified(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    posting._trust.cache_clear()
    there = endpoint(answering(204), tls)
    good, _ = webhook("by name", f"https://localhost:{there.port}/")
    other, _ = webhook("by address", there.url)
    notice(good, other)
    deliver()
    posting._trust.cache_clear()
    assert (delivery_of(good).state, there.seen[0].headers["host"]) == ("delivered", f"localhost:{there.port}")
    assert delivery_of(other).state == "waiting" and "certificate" in delivery_of(other).error


def test_a_permanent_refusal_disables_the_channel_reports_it_and_parks_what_waits(endpoint):
    there = endpoint(answering(500))
    channel, _ = webhook("pager", there.url)
    notice(channel)
    deliver()
    there.behave = answering(410, b"gone")
    notice(channel, key="alert-1-2")
    deliver()
    channel.refresh_from_db()
    assert channel.disabled_at is not None and channel.why_disabled == "The endpoint answered 410 (gone)."
    assert set(Delivery.objects.values_list("state", flat=True)) == {"parked"}
    event = AuditEvent.objects.get(act="channel.disable")
    assert (event.actor, event.object, event.reason) == (
        "redrive",
        f"channel:{channel.pk}",
        "The endpoint answered 410 (gone).",
    )
    notice(channel, key="alert-1-3")
    deliver()
    assert Delivery.objects.get(notice__key="alert-1-3").error.startswith(
        "The channel is disabled: The endpoint answered 410"
    )
    assert len(there.seen) == 2
    notices.enable(ANN, channel.pk)
    there.behave = answering(204)
    notices.resend(ANN, Delivery.objects.get(notice__key="alert-1-3").pk)
    deliver()
    assert (
        there.seen[-1].headers["webhook-id"] == "alert-1-3" and Delivery.objects.filter(state="delivered").count() == 1
    )


def test_a_notice_that_cannot_be_written_is_parked_in_the_end_and_keeps_no_one_waiting(endpoint, caplog):
    there = endpoint(answering(204))
    saved = notices.save_channel(ANN, {"name": "chat", "kind": "slack", "url": there.url})
    chat, (good, _) = Channel.objects.get(pk=saved.channel.pk), webhook("pager", there.url)
    notice(chat, key="bad", body={"value": 10**400})  # no number that a float holds
    notice(good, chat, key="good")
    deliver()
    assert (
        delivery_of(good).state == "delivered"
        and Delivery.objects.get(channel=chat, notice__key="good").state == "delivered"
    )
    bad = Delivery.objects.get(notice__key="bad")
    assert (bad.state, bad.tries) == ("waiting", 1) and "could not build the request: OverflowError" in bad.error
    for _ in range(posting.MOST_TRIES - 1):
        due_now()
        deliver()
    bad.refresh_from_db()
    assert bad.state == "parked" and "OverflowError" in bad.error and len(bad.log) == posting.MOST_TRIES
    assert Channel.objects.get(pk=chat.pk).failures > 0 and "could not be written" in caplog.text


def test_an_answer_that_cannot_be_recorded_ends_no_round_and_loses_no_other(endpoint):
    lanes, now = delivering._own_lanes(), timezone.now()
    channels = [webhook(f"c{n}", "http://127.0.0.1:9/")[0] for n in range(3)]
    sent_notice = notice(*channels)
    for channel, status in zip(channels, (200, 500, 204), strict=True):
        one = Delivery.objects.create(notice=sent_notice, channel=channel, state="sending", tries=1, next_try_at=now)
        text = "" if status == 204 else "\ud800"  # what no database takes
        answer = posting.Answer(status, text)
        lanes.start(channel.pk, delivering._InFlight(one), lambda answer=answer: answer)
    while lanes.busy:
        delivering._record_all(lanes, now, 0.1)
    rows = list(Delivery.objects.order_by("channel").values_list("state", "status"))
    assert rows == [("delivered", 200), ("waiting", None), ("delivered", 204)]
    assert "could not record the response: Unicode" in delivery_of(channels[1]).error


def test_what_came_back_is_not_forgotten_while_it_cannot_be_recorded():
    lanes = delivering._own_lanes()
    lanes.start(1, delivering._InFlight(None), lambda: posting.Answer(204))
    (came,) = lanes.ended(5)
    lanes.give_back([came])
    assert lanes.ended() == [came] and lanes.ended() == []


def test_a_test_is_tried_at_once_and_once(endpoint):
    there = endpoint(answering(500, b"no"))
    channel, secret = webhook("pager", there.url)
    row = notices.test(ANN, channel.pk)
    deliver()
    verified = Webhook(secret).verify(there.seen[0].body, there.seen[0].headers)
    assert verified["type"] == "ping" and verified["data"]["title"] == "Test of pager"
    row = notices.delivery(ANN, row.pk)
    assert (row.state, row.status, row.answer, row.error) == ("parked", 500, "no", "The endpoint answered 500.")
    assert len(there.seen) == 1


def test_the_deliveries_of_a_channel_go_in_order(endpoint):
    there = endpoint(answering(204))
    channel, _ = webhook("pager", there.url)
    for n in range(1, 21):
        notice(channel, key=f"alert-1-{n}")
    deliver()
    assert [seen.headers["webhook-id"] for seen in there.seen] == [f"alert-1-{n}" for n in range(1, 21)]


def test_a_round_with_nothing_to_do_queries_little_and_writes_nothing(django_assert_num_queries):
    notices.deliver(timezone.now())
    with django_assert_num_queries(3):
        assert notices.deliver(timezone.now()) is False


def test_a_connection_that_no_one_answers_is_an_error_in_words(endpoint):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    channel, _ = webhook("away", f"http://127.0.0.1:{port}/")
    notice(channel)
    deliver()
    row = delivery_of(channel)
    assert row.state == "waiting" and row.status is None and row.error.startswith("No connection: ")
    assert row.log == [{"at": row.tried_at.isoformat(), "status": None, "error": row.error, "took_ms": row.took_ms}]
