"""Time limits of the acts of the played incident: as long as something of it moves."""

from __future__ import annotations

import threading
import time

import pytest

from demo import first_start, play, story
from demo.control import DemoUnreachable
from demo.control import broker as broker_at
from demo.incident import _MOST_PER_CHECK_S, _QUIET_S, Failed, Incident, begin
from demo.partner import Partner
from demo.shop import app
from demo.story import TENANT, Side, Ticket
from jobs_admin import policies
from tests.kit.failures import bury

pytestmark = pytest.mark.django_db


@pytest.fixture
def incident(store, engine):
    app.loader.import_default_modules()
    url = engine.url.removesuffix("0") + "1"
    partner = Partner().serve_in_thread()
    made = Incident(begin(Ticket("t", 1, "ann"), 0.0), broker_at(url), url, partner.url)
    made.partner = partner
    yield made
    made.close()
    partner.shutdown()
    partner.server_close()
    broker_at(url).flushdb()


def test_jobs_that_die_slowly_are_waited_for_and_jobs_of_which_nothing_is_heard_are_not(incident):
    now = 0.0
    for _ in range(9):  # a machine on which ten jobs take two minutes
        bury(10, tenant=TENANT)
        incident._play(now)
        now += 120.0
    assert (incident.story.dead, incident.story.act, incident.story.published) == (90, "outage", 300)
    quiet_samples = int(_QUIET_S / _MOST_PER_CHECK_S)
    for _ in range(quiet_samples - 1):
        incident._play(now)
        now += 60.0
    with pytest.raises(Failed, match="Only 90 of 300 jobs were dead, without progress for 90 s"):
        for _ in range(3):
            incident._play(now)
            now += 60.0


def test_the_player_held_up_for_long_takes_nothing_for_quiet(incident):
    for now in (0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0):  # the jobs are published by the third
        incident._play(now)
    assert 0 < incident._quiet_s <= 3 * _MOST_PER_CHECK_S


@pytest.mark.parametrize("decides", [{"max_attempts": 3}, {"breaker": {"dependency": "hooks"}}])
def test_an_enforced_policy_for_its_jobs_ends_it_at_once_with_its_name(incident, store, decides):
    match = {"source": "shop", "task": "shop.hooks.*"}
    policies.publish(first_start._PUBLISHER, "webhooks", {"match": match, "mode": "enforce", **decides})
    incident.step()
    assert incident.story.outcome == "failed" and incident.story.published == 0
    assert incident.story.why.startswith("The policy webhooks is enforced for shop.hooks.order_pickup")
    assert "Set it to observe" in incident.story.why


def test_a_release_counts_each_job_that_succeeded_and_no_death_before_it(incident):
    """A probe in the second in which the warehouse came back belongs to no measured second."""
    state, temper, now = incident.story, incident.partner.played, time.monotonic()
    bury(1, tenant=TENANT, task="shop.hooks.reserve_stock")
    state.act, state.outages["held"] = "held", Side(now - 30, 0, failed_again=1)
    temper.answer(now - 60)  # of another incident
    state.sides["held"] = Side(now, 0, temper.served, jobs=2)
    temper.change("warming", now)
    temper.answer(now)
    incident._play(0.0)
    assert (state.sides["held"].succeeded, state.outcome) == (1, "")
    temper.answer(now)
    incident._play(1.0)
    assert (state.sides["held"].succeeded, state.outcome) == (2, "played")


@pytest.mark.django_db(transaction=True)
def test_an_incident_that_meets_errors_for_long_ends_and_the_next_may_be_requested(store, engine, monkeypatch):
    """The incident's page said that it is being played for as long as the partner was away."""
    url = engine.url.removesuffix("0") + "1"
    broker = broker_at(url)
    broker.flushdb()
    story.alive(broker)
    story.request(broker, 1, "ann")
    monkeypatch.setattr(play, "GIVE_UP_AFTER_S", 1.0)
    with pytest.raises(DemoUnreachable):
        play._play(broker, story.read(broker), url, "http://127.0.0.1:1", threading.Event())
    seen = story.read(broker)
    assert not seen.is_playing and seen.story.is_over and seen.story.outcome == "failed"
    assert "DemoUnreachable" in seen.story.why
    broker.flushdb()
