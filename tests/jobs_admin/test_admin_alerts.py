"""Rules, alerts, channels and deliveries in Django's admin: acts go through the services, and no secret is shown."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from jobs_admin import alerts
from jobs_admin.models import Alert, AuditEvent, Channel, Delivery, Notice, Role, Rule
from jobs_admin.models.access import ENGINE
from tests.kit.browsing import Browser

pytestmark = pytest.mark.django_db
SEALED = "sealed-zircon"


def staff(name: str, **roles: str) -> Browser:
    user = get_user_model().objects.create_user(name, is_staff=True)
    for source, role in roles.items():
        Role.objects.create(user=user, source="*" if source == "every" else source, role=role)
    client = Browser()
    client.force_login(user)
    return client


@pytest.fixture
def rule():
    return alerts.save_rule(ENGINE, {"name": "Webhooks die", "metric": "dead", "source": "shop", "threshold": 100})


@pytest.fixture
def delivery():
    channel = Channel.objects.create(
        name="ops", kind="webhook", url="https://zircon.example/x", secrets=[SEALED], disabled_at=timezone.now()
    )
    notice = Notice.objects.create(key="k-1", type="alert.firing", source="shop", body={"title": "told"})
    return Delivery.objects.create(notice=notice, channel=channel, state="parked", answer="zircon", error="zircon")


def act(client: Browser, model: str, name: str, pk: int):
    form = {"action": name, "_selected_action": str(pk)}
    return client.post(f"/admin/jobs_admin/{model}/", form, follow=True)


def test_a_rule_is_switched_off_by_the_same_service_and_its_alerts_are_closed(rule):
    now = timezone.now()
    row = Alert.objects.create(
        rule=rule, source="shop", subject="q", state="firing", severity="info", value=1, threshold=1, opened_at=now
    )
    assert b"1 disabled" in act(staff("otto", shop="operator"), "rule", "switch_off", rule.pk).content
    rule.refresh_from_db(), row.refresh_from_db()
    assert not rule.enabled and row.state == "resolved"
    assert AuditEvent.objects.filter(actor="otto", act="rule.change").exists()


def test_who_only_reads_switches_nothing(rule):
    act(staff("vera", shop="viewer"), "rule", "switch_off", rule.pk)
    rule.refresh_from_db()
    assert rule.enabled


def test_a_rule_of_another_source_and_one_that_was_deleted_are_not_listed(rule):
    assert b"Webhooks die" not in staff("eve", bank="admin").get("/admin/jobs_admin/rule/").content
    ann = staff("ann", every="admin")
    assert b"Webhooks die" in ann.get("/admin/jobs_admin/rule/").content
    alerts.delete_rule(ENGINE, rule.pk)
    assert not Rule.objects.get(pk=rule.pk).enabled
    assert b"Webhooks die" not in ann.get("/admin/jobs_admin/rule/").content


def test_a_channel_is_enabled_again_and_shows_no_secret(delivery):
    ann = staff("ann", every="admin")
    page = ann.get(f"/admin/jobs_admin/channel/{delivery.channel_id}/change/").content
    assert b"ops" in page and SEALED.encode() not in page
    act(ann, "channel", "enable", delivery.channel_id)
    assert Channel.objects.get().disabled_at is None


def test_channels_are_for_admins_of_every_source_and_so_is_what_came_back(delivery):
    ada = staff("ada", shop="admin")
    assert ada.get("/admin/jobs_admin/channel/").status_code == 403
    page = ada.get(f"/admin/jobs_admin/delivery/{delivery.pk}/change/").content
    assert b"k-1" in page and b"zircon" not in page
    admin_page = staff("ann", every="admin").get(f"/admin/jobs_admin/delivery/{delivery.pk}/change/").content
    assert b"zircon" in admin_page and SEALED.encode() not in admin_page


def test_a_delivery_is_sent_again_by_an_operator_of_its_source(delivery):
    Channel.objects.update(disabled_at=None)
    act(staff("eve", bank="operator"), "delivery", "send_again", delivery.pk)
    delivery.refresh_from_db()
    assert delivery.state == "parked"
    assert b"1 sent again" in act(staff("otto", shop="operator"), "delivery", "send_again", delivery.pk).content
    delivery.refresh_from_db()
    assert delivery.state == "waiting"
