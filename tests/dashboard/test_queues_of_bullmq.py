"""Dead letters of a real BullMQ in metrics, API and alerts: the desk's count, and the system's count beside it."""

from __future__ import annotations

import pytest
import redis
from django.utils import timezone

from jobs_admin import alerts, config
from jobs_admin.management.commands.token import create
from jobs_admin.models import Alert, Failure, Rule
from jobs_admin.models.access import OPERATOR, Viewer
from jobs_admin.queues import sampling
from jobs_admin.retries import pulling
from tests.kit import node
from tests.kit.metrics import samples
from tests.kit.sources import forget_configuration
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.server, pytest.mark.django_db]
ANN = Viewer("ann", {"*": OPERATOR})


@pytest.fixture
def hooks(watched, engine, settings, tmp_path):
    """A source whose jobs die of a partner; of the dead BullMQ keeps two."""
    try:
        node.packages()
    except node.OutOfReach as error:
        pytest.skip(str(error))
    url = engine.url.removesuffix("/0") + "/7"
    (tmp_path / "sources.toml").write_text(f'[sources.hooks]\nbackend = "bullmq"\nurl = "{url}"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(tmp_path / "sources.toml")}
    forget_configuration(config)
    with node.Bullmq(6, url, work=["hooks"], broken=["partner"]) as bull:
        yield bull
    redis.Redis.from_url(url).flushdb()


def until(reached):
    wait_until(reached, meanwhile=lambda: pulling.pull("hooks", "test"))


def test_what_died_counts_here_although_the_system_has_dropped_some(hooks, call_api, client):
    for n in range(3):
        job = hooks.add("hooks", "order.paid", {"needs": "partner"}, removeOnFail=2)
        hooks.wait_for_event("failed", id=job)
        until(lambda n=n: Failure.objects.filter(state="dead").count() == n + 1)
    hooks.add("hooks", "order.paid", {})
    hooks.wait_for_event("completed")
    now = timezone.now()
    sampling.sample(now)
    (queue,) = call_api("GET", "queues").json()["items"]
    assert (queue["source"], queue["queue"], queue["dead"], queue["source_dead"]) == ("hooks", "hooks", 3, 2)
    token = create("scraper", "viewer", "*")
    reported = samples(client.get("/metrics", headers={"Authorization": f"Bearer {token}"}))
    assert list(reported["job_queue_dlq_depth"].values()) == [3]
    assert sum(reported["job_queue_dlq_jobs_total"].values()) == 3
    Rule.objects.all().delete()
    alerts.save_rule(ANN, {"name": "dead hooks", "metric": "dead", "source": "hooks", "threshold": 2, "for_s": 0})
    alerts.judge(now)
    assert [(one.subject, one.state, one.value) for one in Alert.objects.all()] == [("hooks", "firing", 3)]
