"""Silences of one source cost and block no one else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs_admin import alerts
from jobs_admin.alerts import silencing
from jobs_admin.core.refused import Refused
from jobs_admin.models import Alert
from tests.kit.alerts import NOW, create_alert
from tests.kit.people import ANN, BEA, SAM

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("desk")]


def silence(viewer, now=NOW, **matchers):
    return alerts.silence(viewer, matchers, ends_at=now + timedelta(hours=1), comment="known", now=now)


def refusal(act, *args, **more):
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    assert refused.value.code == "too_many"
    return refused.value.message


def test_each_source_has_its_own_bound_and_what_is_of_several_another(monkeypatch):
    monkeypatch.setattr(silencing, "MOST", 3)
    for n in range(3):
        silence(SAM, source="shop", queue=f"q{n}")
    assert refusal(silence, SAM, source="shop", queue="more") == (
        "The limit of 3 silences of shop is reached. End one first. Nothing was changed."
    )
    assert silence(BEA, source="bank") and silence(ANN, source="*")
    silence(ANN, source="sh*"), silence(ANN, rule="x")
    assert "3 silences of several sources" in refusal(silence, ANN, queue="q")
    alerts.end_silence(SAM, alerts.silences(SAM, NOW)[0].pk, now=NOW)
    assert silence(SAM, source="shop", queue="more", now=NOW + timedelta(seconds=1))


def test_the_desk_has_a_bound_of_all(monkeypatch):
    monkeypatch.setattr(silencing, "MOST_OF_DESK", 2)
    silence(SAM, source="shop"), silence(BEA, source="bank")
    assert "The limit of 2 silences is reached." in refusal(silence, BEA, source="bank", queue="x")


def test_an_alert_is_matched_with_those_only_that_fit_its_source_rule_and_severity():
    rule = alerts.save_rule(ANN, {"name": "many dead", "metric": "dead", "source": "*", "threshold": 1})
    for n in range(20):
        silence(SAM, source="shop", queue=f"*a*b*{n}")
    silence(ANN, rule="other"), silence(ANN, severity="critical", source="bank")
    mine = [silence(ANN, rule="many*", queue="z"), silence(BEA, source="bank"), silence(ANN, source="ba*")]
    found = silencing.in_force(NOW)
    assert len(found) == 25
    assert found.matching("bank", "many dead", "warning") == mine
    alert = create_alert(rule, source="bank")
    assert (
        silencing.silenced_by(found, alert, rule.name)
        == mine[1]
        == silencing.silenced_by(list(found), alert, rule.name)
    )
    assert silencing.silenced_by(found, create_alert(rule, subject="b"), rule.name) is None
    critical = Alert(rule=rule, source="bank", subject="z", severity="critical")
    assert len(found.matching("bank", "many dead", "critical")) == 4
    assert silencing.silenced_by(found, critical, rule.name) == silencing.silenced_by(list(found), critical, rule.name)
