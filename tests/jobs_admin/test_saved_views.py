from __future__ import annotations

import pytest

from jobs_admin.core.refused import Refused
from jobs_admin.failures import saved_views
from jobs_admin.models import ApiToken, AuditEvent, Role, SavedView
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from tests.kit.failures import bury

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


@pytest.fixture
def people(django_user_model):
    """Ann operates every source, Vera looks at the shop, Ada is admin."""
    roles = {"ann": {"*": OPERATOR}, "vera": {"shop": VIEWER}, "ada": {"*": ADMIN}}
    found = {n: Viewer(n, r, user_id=django_user_model.objects.create_user(n).pk) for n, r in roles.items()}
    for viewer in found.values():
        for source, role in viewer.roles.items():
            Role.objects.create(user_id=viewer.user_id, source=source, role=role)
    return found


TOKEN = Viewer("token ci", {"*": OPERATOR}, token_id=1)


def refusal(act, *args, **more):
    with pytest.raises(Refused) as refused:
        act(*args, **more)
    return refused.value


def test_a_view_is_its_query_as_it_was_written(people):
    view = saved_views.save(people["ann"], name="Tonight", query="queue:webhooks  age:<2h")
    assert SavedView.objects.get().query == view.query == "queue:webhooks  age:<2h"


def test_a_view_counts_what_matches_now_for_its_viewer(people):
    bury(3)
    bury(2, source="bank")
    view = saved_views.save(people["ann"], name="Dead", query="state:dead", is_shared=True)
    assert saved_views.count(people["ann"], view).number == 5
    assert saved_views.count(people["vera"], view).number == 3


def test_others_see_a_view_once_it_is_shared(people):
    view = saved_views.save(people["ann"], name="Mine", query="x")
    assert saved_views.listing(people["vera"]) == []
    with pytest.raises(SavedView.DoesNotExist):
        saved_views.get(people["vera"], view.pk)
    saved_views.change(people["ann"], view, {"is_shared": True})
    assert [v.name for v in saved_views.listing(people["vera"])] == ["Mine"]


def test_only_its_owner_and_an_admin_change_or_delete_a_view(people):
    view = saved_views.save(people["ann"], name="Mine", query="x", is_shared=True)
    assert refusal(saved_views.change, people["vera"], view, {"name": "Hers"}).code == "forbidden"
    assert refusal(saved_views.delete, people["vera"], view).code == "forbidden"
    assert saved_views.change(people["ada"], view, {"name": "Ours"}).name == "Ours"
    saved_views.delete(people["ada"], view)
    assert not SavedView.objects.exists()


def test_a_viewer_keeps_views_and_does_not_share_them(people):
    saved_views.save(people["vera"], name="Mine", query="x")
    refused = refusal(saved_views.save, people["vera"], name="Ours", query="x", is_shared=True)
    assert (refused.code, refused.field) == ("forbidden", "is_shared")


def test_a_name_is_taken_once_by_each_owner(people):
    for viewer in (people["ann"], people["vera"], TOKEN):
        saved_views.save(viewer, name="Tonight", query="x")
        assert refusal(saved_views.save, viewer, name=" Tonight ", query="y").code == "taken"
    other = saved_views.save(people["ann"], name="Later", query="z")
    assert refusal(saved_views.change, people["ann"], other, {"name": "Tonight"}).code == "taken"


@pytest.mark.parametrize("name", ["", "  ", "x" * 101])
def test_a_view_needs_a_name_that_can_be_shown(people, name):
    assert refusal(saved_views.save, people["ann"], name=name, query="x").field == "name"


def test_a_search_that_would_be_cut_is_not_stored(people):
    assert refusal(saved_views.save, people["ann"], name="Long", query="x" * 5000).field == "query"


def test_every_act_on_a_view_is_written_down_and_every_refusal(people):
    view = saved_views.save(people["ann"], name="A", query="x", is_shared=True)
    saved_views.change(people["ann"], view, {"query": "y"})
    refusal(saved_views.delete, people["vera"], view)
    saved_views.delete(people["ann"], view)
    rows = AuditEvent.objects.order_by("pk").values_list("act", "actor", "allowed")
    assert list(rows) == [
        ("view.save", "ann", True),
        ("view.change", "ann", True),
        ("view.delete", "vera", False),
        ("view.delete", "ann", True),
    ]


def test_a_read_only_desk_keeps_its_views_as_they_are(people, settings):
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert refusal(saved_views.save, people["ann"], name="A", query="x").code == "read_only"


def test_a_token_owns_only_the_views_that_it_saved(people):
    view = saved_views.save(TOKEN, name="mine", query="timeout")
    other = Viewer("token other", {"*": OPERATOR}, token_id=2)
    assert saved_views.may_change(TOKEN, view) and not saved_views.may_change(other, view)
    assert refusal(saved_views.delete, other, view).code == "forbidden"


def test_a_view_of_an_owner_without_a_role_is_read_by_viewers_of_every_source_alone(people):
    view = saved_views.save(people["ann"], name="Mine", query="x", is_shared=True)
    Role.objects.filter(user_id=people["ann"].user_id).update(source="bank")
    assert saved_views.listing(people["vera"]) == []
    Role.objects.filter(user_id=people["ann"].user_id).delete()
    assert saved_views.listing(people["vera"]) == []
    assert saved_views.listing(people["ada"]) == [view]


def test_a_view_of_a_token_that_is_not_known_is_read_by_viewers_of_every_source_alone(people):
    unknown = saved_views.save(TOKEN, name="CI", query="x")
    other = ApiToken.objects.create(pk=7, name="bank", sha256="b", role=OPERATOR, source="bank")
    saved_views.save(Viewer("token bank", {"bank": OPERATOR}, token_id=other.pk), name="Bank", query="x")
    assert saved_views.listing(people["vera"]) == []
    assert unknown in saved_views.listing(people["ada"])


def test_a_tokens_view_is_everyones_and_stays_so(people):
    ApiToken.objects.create(pk=TOKEN.token_id, name="ci", sha256="a", role=OPERATOR, source="*")
    view = saved_views.save(TOKEN, name="CI", query="x", is_shared=False)
    assert view.is_shared and view in saved_views.listing(people["vera"])
    assert refusal(saved_views.change, TOKEN, view, {"is_shared": False}).field == "is_shared"
