"""A notice says what its alert says: who may not see the alert reads it nowhere."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model

from jobs_admin import alerts, notices
from jobs_admin.core.refused import NotFound
from jobs_admin.failures import saved_views
from jobs_admin.incidents.moments import _alerts, _find_alerts
from jobs_admin.incidents.spans import Span
from jobs_admin.models import Alert, Channel, Delivery, Notice, Role
from jobs_admin.models.access import Viewer, viewer_of
from jobs_admin.notices.routing import route
from jobs_admin.queues import depths
from jobs_admin.queues.depths.marking import desk_marks
from tests.kit.alerts import NOW, create_alert
from tests.kit.counts import bury
from tests.kit.people import ANN, BEA, LOU, ROOT, SAM

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("desk")]


@pytest.fixture
def boss() -> Viewer:
    owner = get_user_model().objects.create(username="boss")
    Role.objects.create(user=owner, source="*", role="admin")
    return viewer_of(owner)


@pytest.fixture
def delivery(boss) -> Delivery:
    """The delivery of an alert on a private view over all sources."""
    bury(5)
    Channel.objects.create(name="ops", kind="webhook", url="https://ops.example/hook", secrets=[])
    view = saved_views.save(boss, name="Layoffs", query="state:dead")
    rule = {"name": "secret rule", "metric": "view", "view": view.pk, "threshold": 1, "for_s": 0, "channels": ["ops"]}
    alerts.save_rule(boss, rule)
    alerts.judge(NOW)
    route(NOW)
    delivery = Delivery.objects.get()
    Delivery.objects.update(request=json.dumps(delivery.notice.body))
    return delivery


def pks(viewer):
    return [row.pk for row in notices.deliveries(viewer).rows]


def test_who_may_not_see_the_alert_sees_no_delivery_of_it(delivery, boss):
    assert pks(boss) == pks(ROOT) == [delivery.pk]
    for viewer in (LOU, SAM, BEA):
        assert pks(viewer) == []
        with pytest.raises(NotFound):
            notices.delivery(viewer, delivery.pk)
        with pytest.raises(NotFound):
            notices.resend(viewer, delivery.pk)


def test_the_pages_hide_it_too(delivery, client):
    eve = get_user_model().objects.create(username="eve", is_staff=True)
    Role.objects.create(user=eve, source="bank", role="viewer")
    client.force_login(eve)
    for path in (
        "/alerts/deliveries/",
        f"/alerts/channels/{delivery.channel_id}/",
        f"/alerts/deliveries/{delivery.pk}/",
    ):
        page = client.get(path).content.decode()
        assert "secret rule" not in page and "Layoffs" not in page, path
    assert client.get(f"/alerts/deliveries/{delivery.pk}/").status_code == 404


def test_a_notice_of_no_alert_is_everybodys_where_it_is_the_desks_own():
    channel = Channel.objects.create(name="ops", kind="webhook", url="https://ops.example/hook", secrets=[])
    ping = Notice.objects.create(key="ping-1", type="ping", is_routed_by_event=False, body={})
    made = Delivery.objects.create(notice=ping, channel=channel, next_try_at=NOW)
    assert pks(LOU) == pks(BEA) == [made.pk]


def test_a_notice_of_an_alert_of_ones_source_is_seen():
    channel = Channel.objects.create(name="ops", kind="webhook", url="https://ops.example/hook", secrets=[])
    alert = create_alert(alerts.save_rule(ANN, {"name": "n", "metric": "dead", "source": "shop", "threshold": 1}))
    notice = Notice.objects.create(key="alert-1-1", type="alert.firing", source="shop", alert=alert, body={})
    made = Delivery.objects.create(notice=notice, channel=channel, next_try_at=NOW)
    assert Alert.objects.count() == 1
    assert (pks(LOU), pks(BEA)) == ([made.pk], [])


def test_marks_and_moments_of_a_private_view_are_for_its_owner(boss):
    bury(5)
    view = saved_views.save(boss, name="Layoffs", query="state:dead", is_shared=False)
    secret = {"name": "secret rule", "metric": "view", "view": view.pk, "source": "shop", "threshold": 1, "for_s": 0}
    alerts.save_rule(boss, secret)
    alerts.judge(NOW)
    alert = Alert.objects.get()
    since, until = NOW - timedelta(hours=1), NOW + timedelta(hours=1)

    def marked(viewer):
        return [
            m.words
            for m in desk_marks(viewer, since, until) + depths.marks(viewer, "shop", alert.subject, since, until)
        ]

    assert any("secret rule" in words for words in marked(boss))
    assert not any("secret rule" in words for words in marked(LOU))
    where = Span("shop", "", since, until, False, "asked")
    assert any("secret rule" in one.words for one in _alerts(where, _find_alerts(boss, where)))
    assert not list(_alerts(where, _find_alerts(LOU, where)))
    assert [alerts.listing(one).count for one in (boss, LOU)] == [1, 0]
    saved_views.change(boss, view, {"is_shared": True})
    assert any("secret rule" in words for words in marked(LOU))
