"""Every audit event reaches the receiver, in order, whatever the receiver or this process did meanwhile."""

from __future__ import annotations

import json
import random
import re
import socket
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone
from standardwebhooks import Webhook

from dashboard.setup import checkup
from jobs_admin.core import desk_settings
from jobs_admin.db import audit, audit_export, audit_position
from jobs_admin.desk import overview
from jobs_admin.models import AuditEvent, AuditPosition
from jobs_admin.models.access import AUDITOR, ENGINE, EVERY_SOURCE, Viewer
from jobs_admin.notices import audit_forwarding, syslog
from jobs_admin.queues import liveness
from tests.kit.endpoints import answering
from tests.kit.notices import webhook
from tests.kit.people import log_in
from tests.kit.syslog import Receiver
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@transaction.atomic
def acted(n=1, **fields):
    entry = audit.Entry(**{"object": "replay:12", "source": "shop", **fields})
    return [event.pk for event in audit.record_all(ENGINE, "replay.start", [entry] * n)]


@pytest.fixture(params=["tcp", "udp", "unix"])
def receiver(request, tmp_path, settings):
    made = Receiver(request.param, str(tmp_path / "log"))
    forward_to(settings, made.target)
    yield made
    made.close()


@pytest.fixture
def tcp(settings):
    made = Receiver("tcp")
    forward_to(settings, made.target)
    yield made
    made.close()


def forward_to(settings, target):
    settings.REDRIVE = settings.REDRIVE | {"AUDIT_FORWARD": target}
    audit_forwarding.step(timezone.now())  # starts behind what there is


def forward(now=None):
    now = now or timezone.now()
    while audit_forwarding.step(now):
        pass


def ids(receiver):
    return [event["id"] for event in receiver.events]


def test_each_new_event_arrives_as_rfc_5424_with_all_that_an_export_has(receiver, settings):
    made = acted(45, reason="ä\n\x00<x>", after={"rate": 50.5}) + acted(allowed=False)
    forward()
    wait_until(lambda: len(receiver.messages) == 46, "the events")
    assert ids(receiver) == made
    assert [one | {"when": ""} for one in receiver.events] == [
        json.loads(json.dumps(audit_export.document(event))) | {"when": ""}
        for event in AuditEvent.objects.order_by("pk")
    ]
    priority, when, host, name = receiver.headers[0]
    assert (priority, host, name) == ("109", socket.gethostname(), "replay.start") and receiver.headers[-1][0] == "108"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", when) and when == receiver.events[0]["when"]
    forward()
    assert len(receiver.messages) == 46 and not audit_position.is_due()


def test_a_forwarding_that_has_not_begun_is_on_the_page_and_a_finding(tcp, django_user_model):
    AuditPosition.objects.all().delete()
    assert "begins with the first entry after" in audit_position.finding().text
    client = log_in(django_user_model, "aud", every="auditor")
    page = client.get("/audit/").content.decode()
    assert "Not forwarded</span> to" in page and "Forwarded to" not in page
    forward()
    assert audit_position.finding() is None and "Forwarded to" in client.get("/audit/").content.decode()


def test_what_was_recorded_before_is_not_sent_and_only_with_the_setting(tcp, settings):
    settings.REDRIVE = settings.REDRIVE | {"AUDIT_FORWARD": ""}
    later = acted(2)
    assert not audit_position.is_due() and audit_position.read() is None and not audit_forwarding.step(timezone.now())
    settings.REDRIVE = settings.REDRIVE | {"AUDIT_FORWARD": tcp.target}
    assert audit_position.is_due()
    forward()
    assert ids(tcp) == later, "what was recorded while forwarding was off follows"


def test_while_the_receiver_is_away_nothing_is_lost_and_the_finding_has_the_reason(receiver, client, store):
    first = acted(3)
    forward()
    wait_until(lambda: len(receiver.messages) == 3, "the events before")
    receiver.close()
    missed, now = acted(30), timezone.now()
    for seconds in (0, 3, 6, 9):
        forward(now + timedelta(seconds=seconds))
    state = audit_position.read()
    assert (state.waiting, state.position, len(receiver.messages)) == (30, first[-1], 3)
    assert state.error in {"Connection refused.", "No such file or directory."}
    later = now + timedelta(minutes=2)
    found = audit_position.finding(later)
    assert found.text.startswith("30 audit entries since ") and found.text.endswith(
        f"to {receiver.target}: {state.error}"
    )
    assert audit_position.finding(now) is None, "not within the first minute"
    receiver.open()
    missed += acted(1)
    forward(later)
    wait_until(lambda: len(receiver.messages) == 34, "the events after")
    assert ids(receiver) == [*first, *missed]
    assert audit_position.finding(later) is None and AuditPosition.objects.get().failing_since is None


def test_a_receiver_that_ends_anywhere_in_between_has_every_event_in_order_in_the_end(tcp):
    """The receiver resets after a random number of bytes, is away for a while, and comes back, again and again."""
    draw, now, made = random.Random(7), timezone.now(), []
    for _ in range(30):
        made += acted(draw.randrange(1, 8))
        now += timedelta(minutes=2)
        if draw.random() < 0.6:
            tcp.breaks_after = draw.randrange(1, 2_500)
        if draw.random() < 0.3:
            tcp.close()
            forward(now)
            tcp.open()
            now += timedelta(minutes=2)
        forward(now)
    forward(now + timedelta(minutes=2))
    arrived = ids(tcp)
    assert list(dict.fromkeys(arrived)) == made, "each, and the first time in order"
    assert len(arrived) > len(made), "the draw had a receiver that took a part"


def test_a_receiver_that_never_reads_to_the_end_counts_as_not_reached(tcp, monkeypatch):
    monkeypatch.setattr(syslog, "WITHIN_S", 0.3)
    tcp.close()
    silent = socket.create_server(("127.0.0.1", tcp.port))
    acted()
    forward()
    silent.close()
    assert audit_position.read().error == "It did not close the connection within 0 s after its end."
    tcp.open()
    forward(timezone.now() + timedelta(minutes=1))
    assert len(tcp.messages) == 1


def test_a_process_that_died_while_sending_is_followed_by_another_after_its_claim(tcp):
    made, now = acted(3), timezone.now()
    position = audit_position.get()
    assert audit_forwarding._claim(position, now) and not audit_forwarding._claim(position, now)
    forward(now + timedelta(seconds=59))
    assert tcp.messages == []
    forward(now + timedelta(seconds=60))
    assert ids(tcp) == made
    assert audit_forwarding._claim(audit_position.get(), now + timedelta(days=2))
    made += acted()
    forward(now)  # the clock was set back by two days
    assert ids(tcp) == made


def test_an_event_too_large_for_a_datagram_arrives_without_its_values(settings):
    udp = Receiver("udp")
    forward_to(settings, udp.target)
    made = acted(after={"text": "x" * 70_000}) + acted()
    forward()
    wait_until(lambda: len(udp.messages) == 2, "both")
    large, small = udp.events
    assert (
        [large["id"], small["id"]] == made
        and large["shortened"]
        and large["after"] is None
        and "shortened" not in small
    )
    udp.close()


def test_a_webhook_channel_gets_each_event_signed_and_again_until_it_answers(endpoint, settings):
    codes = iter([204, 500, 204, 204])
    there = endpoint(lambda client: answering(next(codes))(client))
    _, secret = webhook("SIEM", there.url)
    forward_to(settings, "channel:SIEM")
    made, now = acted(3), timezone.now()
    forward(now)
    assert audit_position.read().error == "The endpoint answered 500." and audit_position.read().waiting == 2
    forward(now + timedelta(seconds=3))
    bodies = [Webhook(secret).verify(seen.body, seen.headers) for seen in there.seen]
    assert [body["data"]["id"] for body in bodies] == [made[0], made[1], made[1], made[2]]
    assert [seen.headers["webhook-id"] for seen in there.seen][1:3] == [
        f"audit-{made[1]}-{AuditEvent.objects.get(pk=made[1]).mac[:12]}"
    ] * 2
    assert {body["type"] for body in bodies} == {"audit.recorded"}


def test_a_channel_that_is_not_there_is_named(settings):
    forward_to(settings, "channel:SIEM")
    acted()
    forward()
    assert audit_position.read().error == "There is no webhook channel named SIEM."


def test_a_forwarding_that_is_late_is_on_every_screen_of_the_desk(tcp, store, django_user_model, monkeypatch):
    tcp.close()
    acted()
    AuditEvent.objects.update(at=timezone.now() - timedelta(minutes=5))
    forward()
    text = f"is not forwarded to {tcp.target}: Connection refused."
    assert any(text in one.text for one in checkup.check_audit().findings)
    assert any(text in one["text"] for one in overview.findings(Viewer("aud", {EVERY_SOURCE: AUDITOR})))
    assert not any("forwarded" in one["text"] for one in overview.findings(Viewer("una", {"shop": AUDITOR})))
    stall = liveness.stalled_audit()
    assert (
        stall.why == "Audit entries are not forwarded. The page Audit has the reason."
        and stall.since == AuditEvent.objects.get().at
    )
    page = log_in(django_user_model, "aud", every="auditor").get("/audit/").content.decode()
    assert "1 entry" in page and tcp.target in page and "Connection refused." in page
    assert tcp.target not in log_in(django_user_model, "una", shop="auditor").get("/audit/").content.decode()


@pytest.mark.parametrize(
    "target",
    [
        "siem:514",
        "udp://siem",
        "tcp://siem:0",
        "tcp://siem:70000",
        "https://siem/",
        "unix:log",
        "channel:",
        "tcp://a@b:1",
    ],
)
def test_what_is_no_receiver_is_refused_with_examples(target):
    with pytest.raises(
        desk_settings.BadSetting, match=r"AUDIT_FORWARD.*is not an address to forward to\. Examples: udp://"
    ):
        desk_settings.parse({"AUDIT_FORWARD": target})
    assert desk_settings.parse({"AUDIT_FORWARD": "tcp://[::1]:601"})["AUDIT_FORWARD"] == "tcp://[::1]:601"
