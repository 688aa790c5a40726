from __future__ import annotations

import re
from datetime import timedelta

from django.urls import reverse
from django.utils import timezone

from jobs_admin.failures import saved_views
from jobs_admin.models import Group
from jobs_admin.models.access import ADMIN, Role, Viewer
from tests.kit.failures import bury
from tests.kit.groups import group


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
    with django_assert_max_num_queries(8):
        assert len(offered(ann, "noise")) == 20
