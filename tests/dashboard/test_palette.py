from __future__ import annotations

import html
import re
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

from django.urls import reverse
from django.utils import timezone

from jobs_admin.failures import saved_views
from jobs_admin.models import Group
from jobs_admin.models.access import ADMIN, Role, Viewer
from tests.kit.alerts import episode
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.replays import running


def test_the_palette_offers_views_and_groups_that_may_be_seen(vera, django_user_model):
    owner = django_user_model.objects.create_user("olga")
    Role.objects.create(user=owner, source="*", role=ADMIN)
    olga = Viewer("olga", {"*": ADMIN}, user_id=owner.pk)
    saved_views.save(olga, name="Shared one", query="queue:webhooks", is_shared=True)
    saved_views.save(olga, name="Her own", query="queue:webhooks")
    bury(group=group("ours.SeenError"))
    bury(source="bank", group=group("theirs.UnseenError"))
    text = vera.get(reverse("redrive:palette")).content.decode()
    assert "Shared one" in text and "Her own" not in text
    assert "SeenError" in text and "UnseenError" not in text


def test_what_a_view_or_a_group_is_called_is_not_obeyed(ann):
    evil = "<img src=x onerror=alert(1)>\u202e"
    saved_views.save(Viewer("ann", {"*": ADMIN}), name=evil, query=evil, is_shared=True)
    bury(group=group(evil, evil))
    text = ann.get(reverse("redrive:palette")).content.decode()
    assert "<img src=x" not in text and "\u202e" not in text


def test_a_queue_without_a_name_has_a_page_and_no_replay_which_no_search_could_name(ann, store):
    bury(2, queue=""), bury(1)
    text = ann.get(reverse("redrive:palette")).content.decode()
    assert "(no queue)" in text and 'data-url="/queues/shop/~/"' in text
    assert "Replay 1 dead job of webhooks" in text and "Replay 2 dead jobs" not in text


def offered(client, text: str) -> list[str]:
    page = client.get(reverse("redrive:palette"), {"q": text}).content.decode()
    return re.findall(r'id="palette-group-\d+".*?<span class="clip">(.*?)</span>', page)


def test_any_group_is_found_by_its_words_the_most_dead_first(ann):
    old = timezone.now() - timedelta(days=20)
    for error, message, dead, seen in (
        ("stripe.CardDeclined", "no funds", 1, timezone.now()),
        ("shop.CardDeclined", "old one", 3, old),
        ("shop.Other", "carddeclined in words", 2, old),
    ):
        bury(dead, group=group(error, message, last_seen=seen))
    for n in range(30):
        bury(group=group(f"noise.N{n}"))
    assert [name.split()[0] for name in offered(ann, "cARDdecl")] == ["CardDeclined", "Other", "CardDeclined"]
    assert offered(ann, "shop.CardDeclined: old") == ["CardDeclined old one"]
    assert len(offered(ann, "")) == 20 and offered(ann, "carddeclined nowhere") == []


def test_groups_of_one_title_are_distinguished_by_place_and_task(vera):
    bury(group=group("E", culprit="shop/a.py in send"), task="shop.deliver")
    bury(group=group("E", fingerprint="v1-other", culprit="shop/b.py in post"), task="shop.stock")
    bury(source="bank", group=Group.objects.get(fingerprint="v1-other"), task="bank.secret")
    text = vera.get(reverse("redrive:palette")).content.decode()
    assert "task shop.deliver · shop/a.py in send" in text and "task shop.stock · shop/b.py in post" in text
    assert "bank.secret" not in text


def test_words_find_no_group_out_of_sight_and_no_wildcard(vera):
    bury(group=group("ours.SeenError"))
    bury(source="bank", group=group("theirs.UnseenError"))
    assert offered(vera, "seenerror") == ["SeenError no answer"] and offered(vera, "S%r") == [] == offered(vera, "S_en")


def test_the_palette_costs_the_same_however_many_groups(ann, django_assert_max_num_queries):
    for n in range(40):
        bury(group=group(f"noise.N{n}"))
    ann.get(reverse("redrive:palette"))
    with django_assert_max_num_queries(15):
        assert len(offered(ann, "noise")) == 20


def titles(client, text: str, kind: str) -> list[str]:
    page = client.get(reverse("redrive:palette"), {"q": text}).content.decode()
    return re.findall(rf'id="palette-{kind}-[^"]*".*?<span\s+class="clip">(.*?)</span>', page)


def test_the_replay_of_a_queue_is_found_by_what_a_person_types(otto, vera):
    bury(3, queue="webhooks")
    bury(1, queue="emails")
    bury(5, queue="webhooks", state="recovered")
    bury(2, queue="webhooks", source="bank")
    assert titles(otto, "replay web", "replay-of") == ["Replay 3 dead jobs of webhooks"]
    assert titles(otto, "", "replay-of") == ["Replay 3 dead jobs of webhooks", "Replay 1 dead job of emails"]
    assert titles(vera, "", "replay-of") == []
    page = otto.get(reverse("redrive:palette"), {"q": "replay web"}).content.decode()
    url = html.unescape(re.search(r'id="palette-replay-of-0".*?data-url="([^"]+)"', page, re.S)[1])
    assert parse_qs(urlsplit(url).query) == {"q": ["source:shop queue:webhooks state:dead"]}
    assert urlsplit(url).path == reverse("redrive:replay-new")


def test_queues_alerts_replays_and_settings_are_found_where_they_may_be_seen(ann, vera, shop):
    bury(3, queue="webhooks")
    bury(2, queue="vault", source="bank")
    episode("webhooks", value=300)
    running(2, queue="emails")
    assert titles(ann, "vault", "queue") == ["vault"] and titles(vera, "vault", "queue") == []
    assert titles(vera, "webhooks", "alert") == ["webhooks has 300 dead jobs (threshold: 100)"]
    assert [title.partition(" of ")[2] for title in titles(vera, "replay partner", "replay")] == ["2 jobs"]
    assert titles(vera, "silen", "setting") == ["Silences"]
    assert "New channel" in titles(ann, "", "setting") and "New channel" not in titles(vera, "", "setting")
    assert titles(vera, "nothing at all", "setting") == []
