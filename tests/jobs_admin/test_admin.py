from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from jobs_admin import config
from jobs_admin.admin.failures import query_of
from jobs_admin.core.query import format
from jobs_admin.models import ApiToken, AuditEvent, Failure, Group, Payload, Replay, Role

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("sources")]
NOW = datetime.now(UTC)
LIST = "/admin/jobs_admin/failure/"


def bury(n=1, **changes):
    values = {"source": "shop", "queue": "emails", "task": "t", "state": "dead", "kind": "exception"}
    values |= {
        "error_type": "KeyError",
        "message": "'foo'",
        "first_failed_at": NOW,
        "failed_at": NOW,
        "received_at": NOW,
    }
    start = Failure.objects.count()
    ids = [f"j{start + i}" for i in range(n)]
    made = Failure.objects.bulk_create(Failure(**(values | changes), first_job_id=i, job_id=i) for i in ids)
    body = config.payload_keys().encrypt(b"x")
    Payload.objects.bulk_create(Payload(failure=f, run=1, body=body, size=1, sha256="0") for f in made)
    return made


def row_ids(response):
    return [int(pk) for pk in re.findall(r'name="_selected_action" value="(\d+)"', response.content.decode())]


def act(client, name, *, ids=(), across=False, url=LIST, **more):
    data = {"action": name, "_selected_action": [str(pk) for pk in ids], "select_across": "1" if across else "0"}
    return client.post(url, data | ({"index": "0"} if not more else {}) | more)


def confirm(client, page, **more):
    """Send the form of the confirmation page, as a browser would."""
    fields = dict.fromkeys(re.findall(r'name="(query|snapshot|select_across|action)"', page.content.decode()))
    for name in fields:
        fields[name] = re.search(rf'name="{name}" value="([^"]*)"', page.content.decode())[1].replace("&quot;", '"')
    ids = row_ids(page)
    return client.post(
        LIST, fields | {"_selected_action": ids, "confirmed": "yes", "reason": "fixed", **more}, follow=True
    )


def test_the_list_searches_in_our_language_and_in_the_default_states(as_):
    (a,), (b,) = bury(), bury(queue="webhooks")
    bury(state="recovered")
    client = as_()
    assert row_ids(client.get(LIST)) == [b.pk, a.pk]
    assert row_ids(client.get(LIST, {"q": "queue:emails -error:TypeError"})) == [a.pk]
    assert row_ids(client.get(LIST, {"queue": "webhooks", "state": "dead"})) == [b.pk]
    assert len(row_ids(client.get(LIST, {"state": "recovered"}))) == 1


def test_filters_become_part_of_the_query(rf):
    request = rf.get("/", {"q": "boom", "queue": "a b", "state": "dead"})
    assert format(query_of(request)) == 'boom state:dead queue:"a b"'


def test_pages_cost_the_same_number_of_queries_and_read_no_arguments(as_, django_assert_max_num_queries):
    bury(120, args="x" * 1000)
    client = as_()
    client.get(LIST)
    with django_assert_max_num_queries(16):
        second = client.get(LIST, {"p": "2"})
    assert len(row_ids(second)) == 50 and max(row_ids(second)) < max(row_ids(client.get(LIST)))


def test_ticked_rows_lead_to_the_page_that_shows_what_a_replay_does(as_):
    ids = [f.pk for f in bury(3)]
    client = as_("operator")
    answer = act(client, "replay", ids=ids[:2])
    assert answer.url == f"/replays/new/?selection={ids[0]}%2C{ids[1]}"
    page = client.get(answer.url)
    assert "Replay 2 jobs" in page.content.decode() and not Replay.objects.exists()


def test_all_across_the_pages_is_the_search_and_not_a_list_of_ids(as_):
    bury(120), bury(7, queue="webhooks")
    client = as_("operator")
    answer = act(client, "replay", ids=[Failure.objects.first().pk], across=True, url=f"{LIST}?q=queue:emails")
    assert answer.url.startswith("/replays/new/?q=queue%3Aemails") and "selection" not in answer.url
    assert "Replay 120 jobs" in client.get(answer.url).content.decode()


def test_discarding_across_the_pages_takes_what_the_filter_shows(as_):
    bury(60), bury(3, queue="webhooks")
    client = as_("operator")
    page = act(client, "discard", ids=[Failure.objects.first().pk], across=True, url=f"{LIST}?queue=emails")
    assert "60 jobs" in page.content.decode()
    assert "60 failures discarded" in confirm(client, page).content.decode()
    assert Failure.objects.filter(state="discarded", queue="emails").count() == 60
    assert AuditEvent.objects.filter(act="failure.discard", reason="fixed").exists()


def test_what_is_in_quarantine_is_readmitted_after_a_question(as_):
    bury(2, state="quarantined"), bury(1)
    client = as_("operator")
    page = act(client, "readmit", ids=[f.pk for f in Failure.objects.all()])
    assert "2 failures readmitted" in confirm(client, page).content.decode()
    assert set(Failure.objects.values_list("state", flat=True)) == {"dead"}


def test_a_search_that_was_cut_is_no_scope(as_):
    bury(3)
    client = as_("operator")
    long = f"{LIST}?q={'queue:emails+' * 200}"
    page = act(client, "discard", ids=[1], across=True, url=long)
    confirm(client, page)
    assert b'value="start"' not in client.get(act(client, "replay", ids=[1], across=True, url=long).url).content
    assert not Failure.objects.filter(state="discarded").exists()


@pytest.mark.parametrize(
    "forged", [{"_selected_action": "x"}, {"_selected_action": "-1"}, {"_selected_action": "9" * 30}]
)
def test_a_selection_of_nothing_acts_on_nothing(as_, forged):
    bury(3)
    client = as_("operator")
    data = {"action": "discard", "select_across": "0", "confirmed": "yes", "reason": "r"} | forged
    client.post(LIST, data)
    assert Failure.objects.filter(state="dead").count() == 3


def test_what_a_job_reports_is_escaped_on_the_confirmation(as_):
    bury(queue="<script>alert(1)</script>")
    client = as_("operator")
    page = act(client, "discard", ids=[Failure.objects.get().pk])
    assert b"<script>alert" not in page.content
    page = client.get(act(client, "replay", ids=[Failure.objects.get().pk]).url)
    assert b"<script>alert" not in page.content and b"&lt;script&gt;" in page.content


def test_every_page_of_the_records_has_the_icon_of_the_desk(as_):
    client = as_()
    for url in ("/admin/", LIST, "/admin/auth/user/1/password/"):
        assert 'rel="icon" href="/static/redrive/icons/redrive' in client.get(url).text, url


def test_a_viewer_sees_only_the_own_source_and_has_no_actions(as_):
    (mine,), (other,) = bury(), bury(source="bank")
    client = as_("viewer")
    page = client.get(LIST)
    assert f"/failure/{mine.pk}/" in page.content.decode() and f"/failure/{other.pk}/" not in page.content.decode()
    assert b'value="replay"' not in page.content
    assert client.get(f"{LIST}{other.pk}/change/").status_code == 302
    act(client, "discard", ids=[mine.pk], confirmed="yes", reason="r")
    assert not Failure.objects.filter(state="discarded").exists()


def test_staff_without_a_role_sees_nothing(as_):
    bury()
    client = as_("none")
    for model in ("failure", "group", "auditevent", "apitoken", "role", "replay", "source"):
        assert client.get(f"/admin/jobs_admin/{model}/").status_code == 403


@pytest.mark.parametrize("model", ["failure", "replay", "source", "auditevent", "apitoken"])
def test_records_are_read_only(as_, model):
    bury()
    client = as_()
    assert client.get(f"/admin/jobs_admin/{model}/add/").status_code == 403
    assert client.get(f"/admin/jobs_admin/{model}/1/delete/").status_code in {302, 403}
    assert client.get(f"/admin/jobs_admin/{model}/").status_code == 200


def test_a_failures_record_shows_and_takes_no_change(as_):
    (one,) = bury(message="<b>boom</b>")
    page = as_().get(f"{LIST}{one.pk}/change/")
    assert b"&lt;b&gt;boom" in page.content and b'name="_save"' not in page.content


def test_a_group_takes_note_assignee_and_runbook_and_is_audited(as_, django_user_model):
    group = Group.objects.create(fingerprint="v1-a", error_type="E", message="", first_seen=NOW, last_seen=NOW)
    bury(group=group)
    client, ann = as_("operator"), django_user_model.objects.create_user("ann")
    url = f"/admin/jobs_admin/group/{group.pk}/change/"
    client.post(url, {"note": "n", "assignee": ann.pk, "runbook_url": "https://wiki.example.com/"})
    group.refresh_from_db()
    assert (group.note, group.assignee, group.state) == ("n", ann, "new")
    assert AuditEvent.objects.get(act="group.change").after["assignee"] == "ann"
    bury(group=group, source="bank")
    assert client.post(url, {"note": "no"}).status_code == 403


def test_roles_are_given_by_an_admin_of_every_source_and_audited(as_, django_user_model):
    ann = django_user_model.objects.create_user("ann")
    given = {"user": ann.pk, "source": "shop", "role": "operator"}
    assert as_("admin", "shop").post("/admin/jobs_admin/role/add/", given).status_code == 403
    as_().post("/admin/jobs_admin/role/add/", given)
    assert Role.objects.get(user=ann).role == "operator"
    assert AuditEvent.objects.get(act="role.grant").object == "user:ann"


def test_a_role_on_a_source_that_is_not_configured_is_stored_with_a_warning(as_, django_user_model):
    ann = django_user_model.objects.create_user("ann")
    given = {"user": ann.pk, "source": "shpo", "role": "operator"}
    page = as_().post("/admin/jobs_admin/role/add/", given, follow=True).content.decode()
    assert "is configured here; known:" in page and Role.objects.get(user=ann).source == "shpo"


def test_a_token_is_revoked_and_shows_only_its_hash(as_):
    token = ApiToken.objects.create(name="ci", sha256="abc", role="viewer")
    client = as_()
    client.post("/admin/jobs_admin/apitoken/", {"action": "revoke", "_selected_action": [token.pk], "index": "0"})
    token.refresh_from_db()
    assert token.revoked_at and AuditEvent.objects.filter(act="token.revoke").exists()


def test_no_page_of_the_admin_needs_inline_script_or_style(as_):
    (one,) = bury()
    client = as_()
    pages = [
        client.get("/admin/"),
        client.get(LIST),
        client.get(f"{LIST}{one.pk}/change/"),
        act(client, "discard", ids=[one.pk]),
    ]
    for page in pages:
        assert "unsafe" not in page.headers["Content-Security-Policy"]
        inline = re.findall(r"<script(?![^>]*src=)(?![^>]*application/json)[^>]*>", page.content.decode())
        assert not inline and b"<style" not in page.content
