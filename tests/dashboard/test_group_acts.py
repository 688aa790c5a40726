"""Resolving, muting and assigning groups on the pages, with the way back."""

from __future__ import annotations

import html
import io
import re
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs_admin.models import AuditEvent, Group
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.pages import text_of


def some(n: int = 1, **changes) -> list[str]:
    names = []
    for i in range(n):
        where = group(f"Error{i}x", **changes)
        bury(group=where)
        names.append(where.fingerprint)
    return names


def bulk(client, names, act: str, **more):
    return client.post("/groups/bulk/", {"groups": names, "act": act, **more}, follow=True)


def undo_of(answer) -> dict[str, str]:
    form = re.search(r'<form action="/groups/bulk/" method="post">(.*?)</form>', answer.content.decode(), re.S)[1]
    return {n: html.unescape(v) for n, v in re.findall(r'name="(\w+)" value="([^"]*)"', form) if "csrf" not in n}


def states() -> list[str]:
    return list(Group.objects.order_by("pk").values_list("state", flat=True))


@pytest.mark.parametrize(
    ("act", "state"),
    [("resolve", "resolved"), ("mute_hour", "muted"), ("mute_day", "muted"), ("mute", "muted"), ("reopen", "ongoing")],
)
def test_selected_groups_are_changed_and_undone(otto, watched, act, state):
    names = some(3)
    answer = bulk(otto, names[:2], act)
    assert states() == [state, state, "new"] and "2 groups" in text_of(answer)
    again = otto.post("/groups/bulk/", undo_of(answer), follow=True)
    assert states() == ["new"] * 3 and "Undone: 2 groups restored" in text_of(again)


def test_what_changed_since_is_left_and_the_page_shows_it(otto, watched):
    names = some(2)
    answer = bulk(otto, names, "resolve")
    bulk(otto, names[:1], "mute")
    again = otto.post("/groups/bulk/", undo_of(answer), follow=True)
    assert states() == ["muted", "new"] and "1 group changed afterwards and not restored" in text_of(again)


def test_a_selection_may_come_between_commas(otto, watched):
    bulk(otto, ",".join(some(3)), "resolve")
    assert states() == ["resolved"] * 3


def test_groups_are_muted_until_a_time_in_utc(otto, watched):
    bulk(otto, some(), "mute_until", muted_until="2999-12-01T08:30")
    assert Group.objects.get().muted_until.isoformat() == "2999-12-01T08:30:00+00:00"


def test_groups_are_muted_until_so_many_more_fail(otto, watched):
    answer = bulk(otto, some(count=5), "mute_count", muted_until_count="1,000")
    assert Group.objects.get().muted_until_count == 1_005 and "until 1,000 more failed attempts" in text_of(answer)
    assert "until 1,000 more fail" in text_of(otto.get("/groups/?state=muted"))


@pytest.mark.parametrize(
    ("act", "more"),
    [
        ("mute_until", {}), ("mute_until", {"muted_until": "soon"}), ("mute_until", {"muted_until": "2020-01-01T00:00"}),
        ("mute_count", {"muted_until_count": "0"}), ("mute_count", {"muted_until_count": "many"}),
        ("assign", {"assignee": "nobody-here"}), ("unknown", {}), ("undo", {"receipt": "1-2"}),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_shown_and_changes_nothing(otto, watched, act, more):
    answer = bulk(otto, some(), act, **more)
    assert states() == ["new"] and re.search("Nothing was changed|Nothing to change", text_of(answer))


def test_groups_are_assigned_to_me_and_to_another(otto, vera, watched):
    names = some(2)
    bulk(otto, names, "assign_me")
    bulk(otto, names[:1], "assign", assignee="vera")
    assert [g.assignee.username for g in Group.objects.order_by("pk")] == ["vera", "otto"]
    bulk(otto, names, "assign", assignee="")
    assert not Group.objects.filter(assignee__isnull=False).exists()


def test_a_viewer_sees_no_boxes_and_no_acts_and_is_refused(vera, watched):
    names = some()
    page = vera.get("/groups/").content
    assert b"data-select" not in page and b'name="act"' not in page
    assert bulk(vera, names, "resolve").status_code == 403
    assert vera.post(f"/groups/{names[0]}/change/", {"act": "resolve"}).status_code == 403
    assert states() == ["new"] and AuditEvent.objects.filter(allowed=False).count() == 2


def test_an_operator_of_one_source_changes_no_group_of_another(otto, watched):
    where = group("Shared")
    bury(group=where), bury(group=where, source="bank")
    answer = otto.post(f"/groups/{where.fingerprint}/change/", {"act": "resolve"}, follow=True)
    assert states() == ["new"] and "where you need the role operator" in text_of(answer)


def test_one_group_is_changed_from_its_page_and_undone(otto, watched):
    (name,) = some()
    answer = otto.post(f"/groups/{name}/change/", {"act": "resolve"}, follow=True)
    assert answer.redirect_chain == [(f"/groups/{name}/", 302)] and states() == ["resolved"]
    otto.post("/groups/bulk/", undo_of(answer))
    assert states() == ["new"]


def test_the_fields_of_the_api_change_a_group_too(otto, watched):
    (name,) = some()
    fields = {
        "state": "muted",
        "muted_until_count": "7",
        "note": "known\r\nissue",
        "runbook_url": "https://wiki.example/x",
    }
    otto.post(f"/groups/{name}/change/", fields)
    row = Group.objects.get()
    assert (row.state, row.muted_until_count, row.note, row.runbook_url) == (
        "muted",
        7,
        "known\nissue",
        "https://wiki.example/x",
    )


@pytest.mark.parametrize("address", ["javascript:alert(1)", "data:text/html,x", "//evil.example", "ftp://x.example/"])
@pytest.mark.parametrize("field", ["runbook_url", "issue_url"])
def test_a_runbook_and_an_issue_are_http_addresses(otto, watched, field, address):
    (name,) = some()
    answer = otto.post(f"/groups/{name}/change/", {"act": field, field: address}, follow=True)
    assert getattr(Group.objects.get(), field) == "" and "http or https" in text_of(answer)


@pytest.mark.parametrize("field", ["runbook_url", "issue_url"])
def test_an_address_that_the_tables_do_not_hold_is_refused(otto, watched, field):
    (name,) = some()
    answer = otto.post(f"/groups/{name}/change/", {"act": field, field: "https://x.example/" + "a" * 500}, follow=True)
    assert getattr(Group.objects.get(), field) == "" and "at most 500 characters" in text_of(answer)


def test_an_issue_is_linked_from_page_and_list_and_undone(otto, watched):
    (name,) = some()
    url = "https://github.com/acme/shop/issues/17?a=1&b=<2>"
    answer = otto.post(f"/groups/{name}/change/", {"act": "issue_url", "issue_url": url}, follow=True)
    assert "Issue saved." in text_of(answer) and Group.objects.get().issue_url == url
    shown = (
        'href="https://github.com/acme/shop/issues/17?a=1&amp;b=&lt;2&gt;" target="_blank" rel="noopener noreferrer"'
    )
    for page in (f"/groups/{name}/", "/groups/"):
        assert shown in re.sub(r"\s+", " ", otto.get(page).content.decode())
    assert "Issue changed by" in otto.get(f"/groups/{name}/story/").content.decode()
    event = AuditEvent.objects.get(act="group.change")
    assert (event.before["issue_url"], event.after["issue_url"]) == ("", url)
    otto.post("/groups/bulk/", undo_of(answer))
    assert Group.objects.get().issue_url == ""
    otto.post(f"/groups/{name}/change/", {"act": "issue_url", "issue_url": url})
    answer = otto.post(f"/groups/{name}/change/", {"act": "issue_url", "issue_url": ""}, follow=True)
    assert "Issue removed." in text_of(answer) and Group.objects.get().issue_url == ""


@pytest.mark.parametrize("scheme", ["Https", "HTTP"])
def test_an_issue_is_linked_however_its_scheme_is_written(otto, watched, scheme):
    (name,) = some()
    otto.post(f"/groups/{name}/change/", {"act": "issue_url", "issue_url": f"{scheme}://github.com/acme/issues/17"})
    for page in (f"/groups/{name}/", "/groups/"):
        assert f'href="{scheme}://github.com/acme/issues/17"' in otto.get(page).content.decode()


def test_the_form_of_a_new_issue_is_in_api_and_terminal_and_short_enough(otto, watched, call_api, settings):
    (name,) = some()
    template = "https://github.com/acme/shop/issues/new?title={title}&body={body}"
    settings.REDRIVE = settings.REDRIVE | {"ISSUE_URL": template}
    Group.objects.update(error_type="🔥" * 200, message="🔥" * 500, culprit="🔥" * 200)
    url = call_api("GET", f"groups/{name}").json()["create_issue_url"]
    assert html.escape(url) in otto.get(f"/groups/{name}/").content.decode() and 4_000 < len(url) < 8_000
    given = parse_qs(urlsplit(url).query)
    assert given["title"][0] == "🔥" * 125 and given["body"][0].endswith(f"/groups/{name}/")
    out = io.StringIO()
    call_command("groups", "show", name, stdout=out)
    assert url in out.getvalue()
    Group.objects.update(issue_url="https://github.com/acme/shop/issues/17")
    assert call_api("GET", f"groups/{name}").json()["create_issue_url"] == ""


def test_create_issue_opens_the_trackers_form_with_the_error(otto, watched, settings):
    (name,) = some()
    template = "https://github.com/acme/shop/issues/new?title={title}&body={body}"
    settings.REDRIVE = settings.REDRIVE | {"ISSUE_URL": template, "URL": "https://desk.example"}
    Group.objects.update(error_type='Bad</a>&body=x"\r\n{body}', message="ü" * 500)
    page = otto.get(f"/groups/{name}/").content.decode()
    url = html.unescape(re.search(r'href="([^"]+)"[^>]*>Create issue<', page)[1])
    parts = urlsplit(url)
    given = parse_qs(parts.query)
    assert (parts.netloc, parts.path, sorted(given)) == ("github.com", "/acme/shop/issues/new", ["body", "title"])
    assert (
        given["title"][0].startswith('Bad</a>&body=x"')
        and "{body}" in given["title"][0]
        and len(given["title"][0]) == 200
    )
    assert given["body"][0].endswith(f"https://desk.example/groups/{name}/") and len(url) < 8_000
    Group.objects.update(issue_url="https://github.com/acme/shop/issues/17")
    assert "Create issue" not in otto.get(f"/groups/{name}/").content.decode()


def test_an_issue_that_is_no_web_address_is_shown_as_text(otto, watched):
    (name,) = some()
    Group.objects.update(issue_url="javascript:alert(1)")
    for page in (f"/groups/{name}/", "/groups/"):
        assert 'href="javascript:' not in otto.get(page).content.decode()


def test_an_act_leads_back_to_the_list_and_never_to_another_site(otto, watched):
    names = some()
    assert bulk(otto, names, "resolve", back="/groups/?state=new").redirect_chain[0][0] == "/groups/?state=new"
    assert bulk(otto, names, "reopen", back="https://evil.example/").redirect_chain[0][0] == "/groups/"


def test_a_get_changes_nothing(otto, watched):
    (name,) = some()
    assert otto.get("/groups/bulk/?act=resolve&groups=" + name).status_code == 405
    assert otto.get(f"/groups/{name}/change/?act=resolve").status_code == 405


# -- what the list shows ----------------------------------------------------------------------------------------


def chips(answer) -> dict[str, str]:
    found = re.findall(r'<a class="chip"[^>]*>([^<]+) <span class="number">([\d,]+)</span>', answer.content.decode())
    return dict(found)


def one_of_each():
    for state in ("new", "ongoing", "regressed", "muted", "resolved"):
        bury(group=group(f"{state.title()}Error", state=state))


def test_the_list_shows_what_waits_and_its_chips_count_the_rest(ann, watched):
    one_of_each()
    answer = ann.get("/groups/")
    text = text_of(answer)
    assert all(f"{name}Error" in text for name in ("New", "Ongoing", "Regressed"))
    assert "MutedError" not in text and "ResolvedError" not in text
    assert chips(answer) == {
        "Open": "3", "New": "1", "Regressed": "1", "Known": "1", "Muted": "1", "Resolved": "1", "All": "5",
        "Mine": "0", "Unassigned": "3",
    }  # fmt: skip


@pytest.mark.parametrize("state", ["new", "ongoing", "regressed", "muted", "resolved"])
def test_a_chip_shows_one_state(ann, watched, state):
    one_of_each()
    answer = ann.get(f"/groups/?state={state}")
    assert set(re.findall(r"<strong>(\w+Error)</strong>", answer.content.decode())) == {f"{state.title()}Error"}


def test_every_group_is_shown_on_request_for_all(ann, watched):
    one_of_each()
    assert len(re.findall(r"<strong>(\w+Error)</strong>", ann.get("/groups/?state=all").content.decode())) == 5


def test_a_state_in_the_search_goes_before_the_chips(ann, watched):
    one_of_each()
    found = re.findall(r"<strong>(\w+Error)</strong>", ann.get("/groups/?q=state:resolved").content.decode())
    assert found == ["ResolvedError"]


def test_mine_and_those_of_no_one(ann, otto, watched, django_user_model):
    one_of_each()
    Group.objects.filter(state="new").update(assignee=django_user_model.objects.get(username="ann"))
    Group.objects.filter(state="ongoing").update(assignee=django_user_model.objects.get(username="otto"))

    def names(q):
        return set(re.findall(r"<strong>(\w+)Error</strong>", ann.get(f"/groups/?{q}").content.decode()))

    assert names("assigned=me") == {"New"} and names("assigned=") == {"Regressed"}
    assert names("assigned=otto") == {"Ongoing"} and chips(ann.get("/groups/"))["Mine"] == "1"


def test_a_group_that_came_back_shows_after_what(ann, watched):
    bury(group=group("A", state="regressed", regressed_after="replay:12"))
    bury(group=group("B", state="regressed", regressed_after="release:2026.11.2"))
    page = ann.get("/groups/").content.decode()
    assert 'after <a href="/replays/12/">replay #12</a>' in page and "after release 2026.11.2" in page


def test_a_group_whose_mute_ended_shows_it(ann, watched):
    bury(group=group("A", state="ongoing", mute_ended="count"))
    assert "mute limit reached" in text_of(ann.get("/groups/"))


def test_a_desk_where_everything_is_resolved_shows_it_and_shows_the_way(ann, watched):
    bury(group=group(state="resolved"))
    text = text_of(ann.get("/groups/"))
    assert "No open groups: all are resolved or muted." in text and "View all groups" in text


def test_a_search_that_only_resolved_groups_match_shows_the_way(ann, watched):
    bury(group=group("Zebra", state="resolved"))
    assert "Matching groups are in another state" in text_of(ann.get("/groups/?q=zebra"))


def test_a_group_shows_its_share_of_all_dead(ann, watched):
    bury(3, group=group("A"))
    bury(1, group=group("B"))
    assert "75 %" in text_of(ann.get("/groups/")) and "25 %" in text_of(ann.get("/groups/"))


def test_a_read_only_desk_offers_no_acts(otto, watched, settings):
    some()
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert b"data-select " not in otto.get("/groups/").content


@pytest.mark.parametrize(
    "query", ["state=nonsense", "assigned=%00", "assigned=%F0%9F%92%A9", "order=x", "state=all&after=~", "by=x"]
)
def test_no_address_breaks_the_list(ann, watched, query):
    some()
    assert ann.get(f"/groups/?{query}").status_code == 200


def test_the_list_queries_the_database_as_often_for_fifty_groups_as_for_one(
    otto, watched, django_assert_max_num_queries
):
    some(1)
    otto.get("/groups/")
    with django_assert_max_num_queries(12):
        otto.get("/groups/")
    for n in range(55):
        bury(group=group(f"Other{n}", last_seen=timezone.now()))
    with django_assert_max_num_queries(12):
        otto.get("/groups/")
