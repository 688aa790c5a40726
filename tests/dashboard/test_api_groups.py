"""Groups through the API: many at once, undone, muted until a count."""

from __future__ import annotations

import pytest

from jobs_admin.management.commands.token import create
from jobs_admin.models import Group
from tests.kit.failures import bury
from tests.kit.groups import group

pytestmark = pytest.mark.django_db


def some(n: int) -> list[str]:
    names = []
    for i in range(n):
        where = group(f"Error{i}")
        bury(group=where)
        names.append(where.fingerprint)
    return names


def states() -> list[str]:
    return list(Group.objects.order_by("pk").values_list("state", flat=True))


def test_groups_are_changed_at_once_and_undone(call_api):
    names = some(3)
    me = create("me", "operator", "*")
    done = call_api(
        "POST", "groups/bulk", {"groups": names[:2], "state": "resolved", "reason": "fixed"}, token=me
    ).json()
    assert sorted(done["changed"]) == sorted(names[:2]) and states() == ["resolved", "resolved", "new"]
    undone = call_api("POST", "groups/undo", {"receipt": done["receipt"]}, token=me).json()
    assert len(undone["undone"]) == 2 and states() == ["new"] * 3


def test_what_another_token_did_is_not_undone(call_api):
    me, other = create("me", "operator", "*"), create("other", "operator", "*")
    done = call_api("POST", "groups/bulk", {"groups": some(1), "state": "resolved"}, token=me).json()
    answer = call_api("POST", "groups/undo", {"receipt": done["receipt"]}, token=other)
    assert answer.status_code == 422 and states() == ["resolved"]


def test_a_mute_shows_how_many_more_end_it(call_api):
    (name,) = some(1)
    Group.objects.update(count=40)
    found = call_api("PATCH", f"groups/{name}", {"state": "muted", "muted_until_count": 10}).json()
    assert (found["state"], found["muted_until_count"], Group.objects.get().muted_until_count) == ("muted", 10, 50)


@pytest.mark.parametrize(
    "body", [{"groups": []}, {"groups": ["x"] * 1_001, "state": "resolved"}, {"state": "resolved"}]
)
def test_a_bulk_change_of_nothing_or_too_many_is_refused(call_api, body):
    assert call_api("POST", "groups/bulk", body).status_code == 422


def test_groups_are_listed_by_state_and_assignee(call_api, django_user_model):
    names = some(3)
    ann = django_user_model.objects.create_user("ann")
    Group.objects.filter(fingerprint=names[0]).update(state="muted", assignee=ann)
    Group.objects.filter(fingerprint=names[1]).update(state="regressed", regressed_after="replay:3")

    def list_fingerprints(path):
        return [row["fingerprint"] for row in call_api("GET", path).json()["items"]]

    assert list_fingerprints("groups?state=muted") == names[:1] == list_fingerprints("groups?assignee=ann")
    assert (
        set(list_fingerprints("groups?state=muted&state=new")) == {names[0], names[2]}
        and len(list_fingerprints("groups")) == 3
    )
    assert call_api("GET", f"groups/{names[1]}").json()["regressed_after"] == "replay:3"


@pytest.mark.parametrize(("path", "body"), [("bulk", {"state": "resolved"}), ("undo", {"receipt": "1-1"})])
def test_a_viewers_token_changes_no_groups(call_api, path, body):
    chosen = {"groups": some(1)} if path == "bulk" else {}
    assert call_api("POST", f"groups/{path}", body | chosen, role="viewer").status_code == 403
    assert "resolved" not in states()


def test_a_rule_is_seen_made_listed_and_taken_back(call_api):
    left, right = some(2)
    requested = {"kind": "merge", "groups": [left, right]}
    seen = call_api("POST", "groups/rules/preview", requested).json()
    assert [(row["fingerprint"], row["becomes"]) for row in seen["rows"]] == [(right, left)]
    made = call_api("POST", "groups/rules", requested | {"note": "one partner"})
    assert made.status_code == 201 and made.json()["others"] == [right]
    assert [row["note"] for row in call_api("GET", "groups/rules").json()["items"]] == ["one partner"]
    path = f"groups/rules/{made.json()['id']}/withdraw"
    assert call_api("POST", path, {}).json()["is_withdrawn"] is True
    assert call_api("POST", path, {}).status_code == 409


def test_a_rule_that_cannot_be_names_its_field(call_api):
    answer = call_api("POST", "groups/rules", {"kind": "ignore", "frame": "*"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "frame")
    assert call_api("POST", "groups/rules/7/withdraw", {}).status_code == 404


def test_groups_are_found_by_what_only_their_failures_have(call_api):
    left, right = group("Left"), group("Right")
    bury(group=left, tenant="acme"), bury(group=right, tenant="other")
    found = call_api("GET", "groups", q="tenant:acme").json()
    assert [row["fingerprint"] for row in found["items"]] == [left.fingerprint] and found["count"] == 1
    assert "at least one failure in any state that matches the whole search" in found["hints"][0]
    none = call_api("GET", "groups", q="tenant:nobody").json()
    assert (none["items"], none["count"], none["count_is_capped"]) == ([], 0, False)
