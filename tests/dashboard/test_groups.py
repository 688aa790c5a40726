from __future__ import annotations

import html
import re

from tests.dashboard.conftest import HTMX, bury, group

TRACE = """Traceback (most recent call last):
  File "/app/.venv/lib/python3.11/site-packages/celery/app/trace.py", line 479, in trace_task
    R = retval = fun(*args, **kwargs)
  File "/app/shop/tasks.py", line 44, in deliver
    raise TimeoutError("no answer")
TimeoutError: no answer
"""


def text_of(answer) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.content.decode())))


def count_of_link(client, url: str) -> int:
    """How many failures the link leads to, as its page says."""
    from urllib.parse import parse_qs, urlsplit

    from jobs_admin import failures
    from jobs_admin.models.access import ENGINE

    return failures.search(ENGINE, parse_qs(urlsplit(url).query)["q"][0]).count


def test_a_group_says_how_many_are_dead_and_its_link_shows_as_many(ann, watched):
    where = group()
    bury(7, group=where)
    bury(2, group=where, state="recovered")
    page = ann.get("/groups/").content.decode()
    link, count = re.search(r'<a class="is-dead count-of-state" href="([^"]+)">([\d,]+)</a>', page).groups()
    assert int(count) == 7 == count_of_link(ann, html.unescape(link))


def test_groups_are_sorted_by_what_is_dead_when_asked(ann, watched):
    few, many = group("Few"), group("Many")
    bury(1, group=few)
    bury(5, group=many)
    text = text_of(ann.get("/groups/?order=dead"))
    assert text.index("Many") < text.index("Few")


def test_the_filter_is_the_search_language(ann, watched):
    bury(group=group("Loud"), queue="webhooks")
    bury(group=group("Quiet"), queue="emails")
    text = text_of(ann.get("/groups/?q=queue:emails"))
    assert "Quiet" in text and "Loud" not in text


def test_a_filter_that_finds_nothing_says_so_and_leads_back(ann, watched):
    bury(group=group())
    answer = ann.get("/groups/?q=zebra")
    assert "No group matches" in text_of(answer) and b'href="/groups/">see every group' in answer.content


def test_a_page_of_groups_leads_to_the_next_without_repeating(ann, watched):
    for n in range(60):
        bury(group=group(f"Error{n}x"))
    first = ann.get("/groups/").content.decode()
    following = html.unescape(re.search(r'href="([^"]+)" rel="next"', first)[1])
    second = ann.get(following).content.decode()
    named = [set(re.findall(r"Error\d+x", page)) for page in (first, second)]
    assert len(named[0]) == 50 and len(named[1]) == 10 and not named[0] & named[1]


def test_htmx_gets_the_part_and_the_back_button_the_page(ann, watched):
    bury(group=group())
    part = ann.get("/groups/", headers=HTMX).content.decode()
    page = ann.get("/groups/", headers=HTMX | {"HX-History-Restore-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<section id="groups"') and page.startswith("<!doctype html>")


def test_a_part_that_did_not_change_is_not_sent_again(ann, watched):
    bury(group=group(last_seen="2026-01-01T00:00Z", first_seen="2026-01-01T00:00Z"))
    first = ann.get("/groups/", headers=HTMX)
    assert ann.get("/groups/", headers=HTMX | {"If-None-Match": first["ETag"]}).status_code == 304
    bury(group=group("Another"))
    assert ann.get("/groups/", headers=HTMX | {"If-None-Match": first["ETag"]}).status_code == 200


def test_a_group_page_names_whom_it_hits_top_five_and_others(ann, watched):
    where = group()
    for n in range(7):
        bury(n + 1, group=where, tenant=f"tenant-{n}")
    text = text_of(ann.get(f"/groups/{where.fingerprint}/"))
    assert "tenant-6 7" in text and "tenant-2 3" in text and "tenant-1" not in text and "2 others 3" in text


def test_a_group_page_folds_library_frames_and_opens_the_applications(ann, watched):
    where = group()
    bury(group=where, trace=TRACE)
    page = ann.get(f"/groups/{where.fingerprint}/").content.decode()
    folded = re.search(r'<details class="library">.*?</details>', page, re.S)[0]
    assert "trace_task" in folded and "deliver" not in folded
    assert 'class="frames is-application"' in page and '<span class="k">raise</span>' in page


def test_replay_these_is_offered_to_operators_only(otto, vera, watched):
    where = group()
    bury(3, group=where)
    address = f"/groups/{where.fingerprint}/"
    assert "Replay these 3" in text_of(otto.get(address)) and "Replay these" not in text_of(vera.get(address))


def test_replay_these_leads_to_the_draft_of_this_group(otto, watched):
    where = group()
    bury(3, group=where)
    page = otto.get(f"/groups/{where.fingerprint}/").content.decode()
    assert f'href="/replays/new/?q=group%3A{where.fingerprint}"' in page


def test_a_group_of_another_source_is_not_there(vera, watched):
    where = group()
    bury(group=where, source="bank")
    assert vera.get(f"/groups/{where.fingerprint}/").status_code == 404
    assert where.error_type not in text_of(vera.get("/groups/"))


def test_an_unknown_group_is_a_page_with_a_next_step(ann, watched):
    answer = ann.get("/groups/v1-nobody/")
    assert answer.status_code == 404 and "No group has this fingerprint" in text_of(answer)


def test_the_list_asks_the_database_as_often_for_fifty_groups_as_for_one(ann, watched, django_assert_max_num_queries):
    bury(group=group("First"))
    ann.get("/groups/")
    with django_assert_max_num_queries(12):
        ann.get("/groups/")
    for n in range(50):
        bury(group=group(f"Error{n}x"))
    with django_assert_max_num_queries(12):
        ann.get("/groups/")
