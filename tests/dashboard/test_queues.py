from __future__ import annotations

import html
import re
from datetime import timedelta

from django.utils import timezone

from jobs_admin.models import DepthSample, Source
from tests.kit.failures import bury
from tests.kit.pages import clock_of, count_of_link, text_of


def sample(queue: str = "webhooks", **changes) -> None:
    Source.objects.get_or_create(name="shop", defaults={"is_configured": True, "is_reachable": True})
    row = {"waiting": 1234, "active": 5, "delayed": 0, "workers": 14, "guarded_workers": 12, "durability": "early"}
    DepthSample.objects.create(source="shop", queue=queue, at=timezone.now(), **row | changes)


def test_a_queue_shows_what_waits_runs_and_is_dead(ann, watched):
    sample()
    bury(3)
    text = text_of(ann.get("/queues/"))
    assert re.search(r"webhooks 12 of 14 guarded: failures in the other 2 are not recorded 1,234 5 0 3 0 –", text)
    assert "12 of 14 early ack" in text


def test_where_all_workers_are_guarded_nothing_is_shown_of_others(ann, watched):
    sample(workers=12)
    assert "are not recorded" not in text_of(ann.get("/queues/"))


def test_the_fetch_window_of_redis_is_a_part_of_the_grade(ann, watched):
    sample(durability="late-window")
    page = ann.get("/queues/").content.decode()
    assert "late ack, fetch window" in page and "a worker killed in between loses the message" in page


def test_the_dead_of_a_queue_are_what_the_link_shows(ann, watched):
    bury(3, queue="a b")
    bury(1, queue="a b", state="retrying")
    page = ann.get("/queues/").content.decode()
    link, n = re.search(r'<a class="is-dead count-of-state" href="([^"]+)">(\d+)</a>', page).groups()
    assert int(n) == 3 == count_of_link(ann, html.unescape(link))


def test_what_is_not_known_is_a_dash_and_never_a_zero(ann, watched):
    sample(is_reachable=False, why="refused", waiting=None, active=None, delayed=None, workers=None)
    text = text_of(ann.get("/queues/"))
    assert re.search(r"no answer (now|\d+ \w+ ago) – – – 0", text)


def test_a_source_that_does_not_answer_shows_since_when_and_the_next_step(ann, watched):
    since = timezone.now() - timedelta(minutes=9)
    Source.objects.create(
        name="shop", is_configured=True, is_reachable=False, changed_at=since, why_unreachable="refused"
    )
    text = text_of(ann.get("/queues/"))
    assert (
        re.search(rf"This source does not answer\. Since {clock_of(since)} ?\. refused", text)
        and "its address is correct" in text
    )


def test_priorities_are_shown_in_order_where_there_are_several(ann, watched):
    sample(by_priority={"9": 1, "0": 20, "3": 3})
    assert "p0 critical 20 · p3 high 3 · p9 low 1" in text_of(ann.get("/queues/"))


def test_a_priority_that_is_no_number_is_behind_the_others(ann, watched):
    sample(by_priority={"²": 2, "10": 1, "9": 3})
    assert "p9 low 3 · p10 low 1 · p² 2" in text_of(ann.get("/queues/"))


def test_a_source_that_only_reports_shows_that_nothing_can_be_sent_to_it(ann, watched):
    Source.objects.create(name="shop", is_configured=False)
    assert "nothing can be sent to the source" in text_of(ann.get("/queues/"))


def test_without_a_source_the_page_shows_how_to_name_one(ann, watched):
    for page in ("/", "/queues/"):
        text = text_of(ann.get(page))
        assert "CELERY_BROKER_URL=redis://… REDRIVE_REDIS_URL=redis://… python3 manage.py up --no-demo" in text
        assert 'install(app, source="celery")' in text


def test_thousands_of_queues_come_page_by_page_the_worst_first(ann, watched):
    for n in range(130):
        bury(1, queue=f"q{n:03}")
    bury(2, queue="worst")
    first = ann.get("/queues/").content.decode()
    assert first.count("data-row=") == 100 and "131 queues" in first and first.index(">worst<") < first.index(">q000<")
    following = html.unescape(re.search(r'href="([^"]+)" rel="next"', first)[1])
    second = ann.get(following).content.decode()
    assert second.count("data-row=") == 31 and ">q129<" in second and 'rel="next"' not in second


def test_what_is_no_cursor_is_the_first_page(ann, watched):
    bury(1)
    assert "webhooks" in text_of(ann.get("/queues/", {"after": "x~~~"}))
