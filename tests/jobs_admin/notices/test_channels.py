"""Channels as people make and change them: by admins of every source, with every secret shown once and kept sealed."""

from __future__ import annotations

import pytest
from django.db.models.signals import post_delete

from jobs_admin import notices
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.models import Alert, AuditEvent, Channel, Delivery, Rule
from jobs_admin.models.access import Viewer
from jobs_admin.notices import changing, sealing
from tests.kit.notices import ANN, OTTO, VERA, notice, webhook

pytestmark = pytest.mark.django_db

URL = "https://127.0.0.1:9/hook?token=very-secret"
KEY = "0123456789abcdef0123456789ABCDEF"
EVERY_OPERATOR = Viewer(name="eva", roles={"*": "operator"})
SHOP_ADMIN = Viewer(name="sam", roles={"shop": "admin"})
WITHOUT_ROLES = Viewer(name="nobody")


def refused(code, field=None, **document):
    with pytest.raises(Refused) as found:
        notices.save_channel(ANN, {"name": "x", "kind": "webhook", "url": URL} | document)
    assert (found.value.code, found.value.field) == (code, field), found.value.message
    assert found.value.message.endswith("Nothing was changed.")
    return found.value.message


def test_a_secret_is_made_shown_once_and_stored_sealed():
    saved = notices.save_channel(ANN, {"name": "pager", "kind": "webhook", "url": URL})
    assert sealing.is_signing_secret(saved.secret) and saved.secret not in repr(saved)
    (sealed,) = Channel.objects.get().secrets
    assert saved.secret not in sealed and sealing.unseal([sealed]) == [saved.secret]
    assert notices.save_channel(ANN, {"events": ["replay.held"]}, saved.channel.pk).secret is None
    assert sealing.unseal(Channel.objects.get().secrets) == [saved.secret]


def test_the_audit_and_whoever_reads_see_no_secret_and_no_path():
    saved = notices.save_channel(ANN, {"name": "pager", "kind": "webhook", "url": URL})
    notices.save_channel(ANN, {"name": "chat", "kind": "slack", "url": "https://127.0.0.1/services/T0/B0/xyz"})
    notices.save_channel(ANN, {"name": "duty", "kind": "pagerduty", "url": "https://127.0.0.1/v2", "secret": KEY})
    notices.rotate(ANN, saved.channel.pk)
    written = str(list(AuditEvent.objects.values()))
    for secret in ("very-secret", "xyz", KEY, "whsec_", saved.secret):
        assert secret not in written
    assert "https://127.0.0.1:9/…" in written
    seen = str(notices.channels(ANN))
    assert "xyz" not in seen and KEY not in seen and "whsec_" not in seen and URL in seen
    for viewer in (VERA, OTTO, SHOP_ADMIN, EVERY_OPERATOR):
        rows = notices.channels(viewer)
        assert [row.name for row in rows] == ["chat", "duty", "pager"]
        assert "127.0.0.1" not in str(rows) and all(row.is_masked and not row.may_change for row in rows)
    assert notices.channels(WITHOUT_ROLES) == []
    with pytest.raises(NotFound):
        notices.channel(WITHOUT_ROLES, saved.channel.pk)


@pytest.mark.parametrize("viewer", [VERA, OTTO, SHOP_ADMIN, EVERY_OPERATOR], ids=lambda one: one.name)
def test_only_an_admin_of_every_source_changes_them_and_every_refusal_is_written_down(viewer):
    channel, _ = webhook("pager", URL)
    AuditEvent.objects.all().delete()
    acts = [
        lambda: notices.save_channel(viewer, {"name": "x", "kind": "webhook", "url": URL}),
        lambda: notices.save_channel(viewer, {"name": "y"}, channel.pk),
        lambda: notices.delete_channel(viewer, channel.pk),
        lambda: notices.rotate(viewer, channel.pk),
        lambda: notices.end_rotation(viewer, channel.pk),
        lambda: notices.enable(viewer, channel.pk),
        lambda: notices.test(viewer, channel.pk),
    ]
    for act in acts:
        with pytest.raises(Refused, match="admin on every source") as found:
            act()
        assert found.value.code == "forbidden"
    assert list(AuditEvent.objects.values_list("allowed", flat=True)) == [False] * len(acts)
    assert Channel.objects.get().name == "pager" and not Delivery.objects.exists()


def test_a_desk_that_is_read_only_changes_none(settings):
    channel, _ = webhook("pager", URL)
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    for act in (notices.rotate, notices.test, notices.delete_channel, notices.enable):
        with pytest.raises(Refused, match="read-only"):
            act(ANN, channel.pk)


def test_what_is_wrong_with_a_channel_is_reported_of_its_field():
    refused("invalid", "name", name="")
    refused("invalid", "name", name="x" * 101)
    refused("invalid", "kind", kind="pigeon")
    refused("invalid", "kind", colour="red")
    refused("invalid", "url", url="")
    refused("invalid", "url", url=7)
    refused("invalid", "url", url="http://user:pw@127.0.0.1/")
    refused("invalid", "url", url="https://no-such-name.invalid/")
    refused("invalid", "to", to=["a@b.example"])
    refused("invalid", "events", events=["alert.firing"])
    refused("invalid", "events", events="replay.held")
    refused("invalid", "secret", secret="whsec_c2hvcnQ=")
    refused("invalid", "secret", secret="hello")
    refused("invalid", "secret", kind="slack", secret="x")
    refused("invalid", "secret", kind="pagerduty")
    refused("invalid", "secret", kind="pagerduty", secret="short")
    assert "EMAIL_URL" in refused("invalid", "kind", kind="email", url="", to=["a@b.example"])
    with pytest.raises(Refused):
        notices.save_channel(ANN, "a text")


def test_a_check_reports_every_invalid_field_at_once():
    document = {"name": "x" * 101, "kind": "webhook", "url": "no url", "secret": "short", "events": ["none"]}
    assert {one.field for one in notices.check_channel(ANN, document)} == {"name", "url", "secret", "events"}
    mail = {"name": "mail", "kind": "email", "to": ["no address"]}
    assert [one.field for one in notices.check_channel(ANN, mail)] == ["to", "kind"]
    assert notices.check_channel(ANN, {"name": "chat", "kind": "slack", "url": "https://example.com/"}) == []
    wrong = {"name": "chat", "kind": "slack", "url": "", "secret": "x", "to": ["a@b.example"]}
    assert {one.field for one in notices.check_channel(ANN, wrong)} == {"to", "secret", "url"}


@pytest.mark.parametrize(
    "to",
    [
        [],
        "",
        ["no address"],
        ["a@b.example\nBcc: c@d.example"],
        ["a b@c.example"],
        [f"{n}@b.example" for n in range(21)],
    ],
)
def test_only_addresses_are_taken_for_e_mail(settings, to):
    settings.REDRIVE = settings.REDRIVE | {"SENDS_MAIL": True}
    refused("invalid", "to", kind="email", url="", to=to)


def test_what_reading_answers_of_a_slack_channel_can_be_sent_back():
    made = notices.save_channel(ANN, {"name": "chat", "kind": "slack", "url": "https://127.0.0.1/services/T0/B0/xyz"})
    assert made.channel.url == "https://127.0.0.1/…" and made.secret is None
    notices.save_channel(ANN, {"name": "chat", "kind": "slack", "url": made.channel.url}, made.channel.pk)
    assert sealing.unseal(Channel.objects.get().secrets) == ["https://127.0.0.1/services/T0/B0/xyz"]


def test_a_name_is_given_once_and_a_kind_stays():
    channel, _ = webhook("pager", URL)
    refused("taken", "name", name="pager")
    with pytest.raises(Refused, match="is of kind webhook"):
        notices.save_channel(ANN, {"kind": "slack", "url": URL}, channel.pk)


def test_there_are_so_many_channels_at_most(monkeypatch):
    monkeypatch.setattr(changing, "MOST_CHANNELS", 2)
    webhook("a", URL), webhook("b", URL)
    refused("too_many", name="c")
    assert notices.save_channel(ANN, {"name": "B"}, Channel.objects.get(name="b").pk).channel.name == "B"


def test_a_second_rotation_waits_for_the_end_of_the_first_and_a_new_secret_ends_it():
    channel, _ = webhook("pager", URL)
    notices.rotate(ANN, channel.pk)
    with pytest.raises(Refused, match="rotation is already in progress"):
        notices.rotate(ANN, channel.pk)
    assert notices.channel(ANN, channel.pk).is_rotating and not notices.end_rotation(ANN, channel.pk).is_rotating
    with pytest.raises(Refused, match="No rotation is in progress"):
        notices.end_rotation(ANN, channel.pk)


def test_a_channel_that_rules_notify_is_not_deleted_and_one_that_none_notifies_goes_with_its_deliveries():
    channel, _ = webhook("pager", URL)
    rule = Rule.objects.create(name="Deep", metric="dead", threshold=5)
    rule.channels.add(channel)
    with pytest.raises(Refused, match="Rules use this channel: Deep"):
        notices.delete_channel(ANN, channel.pk)
    assert Channel.objects.get().disabled_at is None
    rule.channels.clear()
    notice(channel)
    notices.test(ANN, channel.pk)
    notices.delete_channel(ANN, channel.pk)
    assert not Channel.objects.exists() and not Delivery.objects.exists()
    assert AuditEvent.objects.get(act="channel.delete").before["name"] == "pager"
    begun = AuditEvent.objects.get(act="channel.disable")
    assert begun.reason.startswith("Channel and deliveries are being deleted") and (
        begun.before["disabled"],
        begun.after["disabled"],
    ) == (
        False,
        True,
    )


def test_a_channel_that_stays_in_the_end_has_its_record_of_what_went():
    """Whoever saves a rule meanwhile names it."""
    channel, _ = webhook("pager", URL)
    rule = Rule.objects.create(name="Deep", metric="dead", threshold=5)
    notices.test(ANN, channel.pk)

    def name_it(**_) -> None:
        rule.channels.add(channel)

    post_delete.connect(name_it, sender=Delivery)
    try:
        with pytest.raises(Refused, match="was not deleted"):
            notices.delete_channel(ANN, channel.pk)
    finally:
        post_delete.disconnect(name_it, sender=Delivery)
    assert Channel.objects.get().disabled_at is not None and not Delivery.objects.exists()
    begun, ended = AuditEvent.objects.filter(act__in=["channel.disable", "channel.delete"]).order_by("pk")
    assert (begun.act, begun.allowed, begun.after["disabled"]) == ("channel.disable", True, True)
    assert (ended.act, ended.allowed, ended.after) == ("channel.delete", False, {"rules": ["Deep"]})


def test_of_two_edits_at_once_of_different_fields_none_is_lost():
    channel, _ = webhook("pager", URL)

    class MeanwhileChanged(dict):
        """Another edit ends after this one was begun, and before it is stored."""

        def get(self, name, otherwise=None):
            if not Channel.objects.filter(name="pager", events=["replay.done"]).exists():
                notices.save_channel(ANN, {"events": ["replay.done"]}, channel.pk)
            return super().get(name, otherwise)

    notices.save_channel(ANN, MeanwhileChanged(name="pager 2"), channel.pk)
    channel.refresh_from_db()
    assert (channel.name, channel.events) == ("pager 2", ["replay.done"])


def test_a_second_test_waits_for_the_first():
    channel, _ = webhook("pager", URL)
    notices.test(ANN, channel.pk)
    with pytest.raises(Refused, match="already in progress"):
        notices.test(ANN, channel.pk)


# -- deliveries ---------------------------------------------------------------------------------------------------


@pytest.fixture
def two():
    """A delivery of the shop's, and one of the bank's."""
    channel, _ = webhook("pager", URL)
    made = []
    for source in ("shop", "bank"):
        sent_notice = notice(channel, key=f"k-{source}", source=source)
        made.append(
            Delivery.objects.create(
                notice=sent_notice, channel=channel, state="parked", error="127.0.0.1 refused", answer="inner host 127.0.0.1",
                log=[{"at": "2026-11-22T00:00:00+00:00", "status": None, "error": "127.0.0.1", "took_ms": 3}],
            )
        )  # fmt: skip
    return made


def test_deliveries_are_seen_by_those_who_see_their_source(two):
    shop, bank = two
    page = notices.deliveries(VERA)
    assert [row.key for row in page.rows] == ["k-shop"] and page.count == 1
    assert notices.deliveries(ANN, channel=shop.channel_id).count == 2
    assert notices.deliveries(ANN, state="waiting").rows == [] and notices.deliveries(ANN, state="x").count == 0
    with pytest.raises(NotFound):
        notices.delivery(VERA, bank.pk)
    assert notices.deliveries(WITHOUT_ROLES).count == 0
    Delivery.objects.filter(pk=shop.pk).update(created_at="2026-01-01T00:00Z")
    shop.notice.source = "*"
    shop.notice.save()
    assert notices.deliveries(VERA).count == 0


def test_the_deliveries_of_an_alert_are_those_of_all_reported_with_it(two):
    rule = Rule.objects.create(name="Deep", metric="dead", threshold=5)
    fields = {
        "rule": rule,
        "source": "shop",
        "severity": "warning",
        "value": 6,
        "threshold": 5,
        "opened_at": "2026-11-22T00:00Z",
    }
    leader = Alert.objects.create(**fields, subject="emails")
    other = Alert.objects.create(**fields, subject="webhooks", told_with=leader)
    two[0].notice.alert = leader
    two[0].notice.save()
    for alert in (leader, other):
        assert [row.key for row in notices.deliveries(VERA, alert=alert.pk).rows] == ["k-shop"]
    assert notices.deliveries(VERA, alert=other.pk + 1).count == 0


def test_where_a_channel_leads_is_not_reported_by_what_came_back(two):
    assert "127.0.0.1" not in str(notices.delivery(VERA, two[0].pk))
    assert "inner host" in str(notices.delivery(ANN, two[0].pk))


def test_deliveries_are_paged_by_their_number(two):
    first = notices.deliveries(ANN, limit=1)
    second = notices.deliveries(ANN, limit=1, after=first.next)
    assert [row.key for row in (*first.rows, *second.rows)] == ["k-bank", "k-shop"] and second.next is None


def test_an_operator_of_the_source_sends_again_and_others_do_not(two):
    shop, bank = two
    assert notices.resend(OTTO, shop.pk).state == "waiting"
    for viewer, delivery, error in ((VERA, shop, Refused), (OTTO, bank, NotFound)):
        with pytest.raises(error):
            notices.resend(viewer, delivery.pk)
    event = AuditEvent.objects.get(act="delivery.resend", allowed=True)
    assert (event.actor, event.source, event.after["key"]) == ("otto", "shop", "k-shop")
    assert AuditEvent.objects.get(act="delivery.resend", allowed=False).actor == "vera"


def test_what_is_being_sent_is_not_sent_again_by_hand(two):
    Delivery.objects.filter(pk=two[0].pk).update(state="sending")
    with pytest.raises(Refused, match="The delivery is being sent"):
        notices.resend(ANN, two[0].pk)
    Channel.objects.update(disabled_at="2026-01-01T00:00Z")
    with pytest.raises(Refused, match="Enable it first"):
        notices.resend(ANN, two[1].pk)


def test_a_page_of_deliveries_makes_two_queries(two, django_assert_num_queries):
    with django_assert_num_queries(2):
        notices.deliveries(ANN)
