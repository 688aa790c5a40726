from __future__ import annotations

import pytest

from jobs_admin import config, replays
from jobs_admin.models import AuditEvent, Failure, FrozenBatch, Replay
from jobs_admin.models.access import ADMIN, OPERATOR, Viewer
from jobs_admin.rights import replay_sight
from tests.kit.people import ANN, BOB, EVE
from tests.kit.replays import AT_ONCE, refusal, sent_all

pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "2"}
    return replays.start(ANN, replays.draft(ANN, selection=bury(3), pace=AT_ONCE, reason="fixed"))


def test_a_large_one_waits_and_holds_nobodys_jobs(waiting, shop):
    assert waiting.state == "awaiting_approval" and "above 2" in waiting.approval_because
    assert waiting.items.count() == 0 and not replays.create_items()
    sent_all()
    assert not shop.queues["emails"]
    ids = list(Failure.objects.values_list("pk", flat=True))
    assert replays.start(BOB, replays.draft(BOB, selection=ids[:1])).total == 1


def test_another_operator_lets_exactly_the_frozen_scope_go(waiting, shop, bury):
    bury(2)
    went = replays.approve(BOB, waiting, "seen")
    assert (went.state, went.approver, went.total) == ("running", "bob", 3)
    sent_all()
    assert len(shop.queues["emails"]) == 3
    assert list(AuditEvent.objects.filter(act="replay.approve").values_list("actor", "reason", "source")) == [
        ("bob", "seen", "shop")
    ]
    assert refusal(replays.approve, BOB, waiting).code == "wrong_state"


def test_it_goes_at_the_pace_that_was_last_agreed_on(waiting):
    replays.change_pace(ANN, Replay.objects.get(), {"rate": 1})
    went = replays.approve(BOB, waiting)  # as it was read before
    assert (went.pace["rate"], went.rate) == (1, 1.0)


def test_who_drafted_or_started_it_cannot_approve_it(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "2"}
    carl = Viewer("carl", {"*": OPERATOR}, user_id=None)
    replay = replays.start(carl, replays.draft(ANN, selection=bury(3), reason="fixed"))
    for who in (ANN, carl):
        assert refusal(replays.approve, who, replay).code == "forbidden"
    assert replays.approve(BOB, replay).state == "running"


@pytest.fixture
def people(django_user_model):
    """ann and bob are logged in as operators, ada as an admin. ann has two tokens and bob has one; two more, and a terminal,
    identify no person."""
    made = {name: django_user_model.objects.create_user(name) for name in ("ann", "bob", "ada")}
    roles = {"ann": OPERATOR, "bob": OPERATOR, "ada": ADMIN}
    found = {name: Viewer(name, {"*": roles[name]}, user_id=user.pk) for name, user in made.items()}
    found |= {f"token {n}": Viewer(f"token {n}", {"*": OPERATOR}, token_id=n) for n in (1, 2)}
    for n, owner in enumerate(("ann", "ann", "bob"), start=3):
        name = f"token of {owner}" if n != 4 else "other token of ann"
        found[name] = Viewer(f"token {n}", {"*": OPERATOR}, token_id=n, owner_id=made[owner].pk)
    return found | {"terminal": Viewer("root (terminal)", {"*": ADMIN})}


@pytest.mark.parametrize(
    "starter, may, may_not",
    [
        ("ann", {"bob", "ada", "token of bob"}, {"ann", "token of ann", "token 1", "token 2", "terminal"}),
        ("token of ann", {"bob", "ada", "token of bob"}, {"ann", "token of ann", "other token of ann", "token 1"}),
        ("token 1", {"token 2", "ada", "terminal"}, {"token 1", "ann", "bob", "token of ann"}),
        ("terminal", {"token 1", "token 2", "ada"}, {"terminal", "ann", "bob", "token of bob"}),
    ],
)
def test_no_one_is_a_second_person_by_a_token_or_by_a_login_beside_one(
    people, shop, bury, settings, starter, may, may_not
):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "2"}
    who = people[starter]
    replay = replays.start(who, replays.draft(who, selection=bury(3), pace=AT_ONCE, reason="fixed"))
    for name in sorted(may_not):
        refused = refusal(replays.approve, people[name], replay)
        assert refused.code == "forbidden" and refused.message.endswith("Nothing was changed."), name
    assert may == {name for name, one in people.items() if not replays.approver_refusal(one, replay, ["shop"])}
    assert replays.needs_admin(replay) is not bool(may & {"ann", "bob"})
    assert replays.approve(people[sorted(may)[0]], replay).state == "running"


def test_a_draft_by_a_person_and_a_start_by_a_token_are_both_hands_in_it(people, shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "2"}
    draft = replays.draft(people["ann"], selection=bury(3), pace=AT_ONCE, reason="fixed")
    replay = replays.start(people["token 1"], draft)
    assert {name for name, one in people.items() if not replays.approver_refusal(one, replay, ["shop"])} == {"ada"}
    assert replays.needs_admin(replay)


def test_a_person_without_the_right_on_each_source_cannot(waiting):
    web_only = Viewer("wim", {"web": OPERATOR})
    assert refusal(replays.approve, web_only, waiting).code == "forbidden"
    assert refusal(replays.approve, EVE, waiting).code == "forbidden"
    assert waiting not in replay_sight.visible(web_only) and waiting in replay_sight.visible(BOB)


def test_withdrawing_it_leaves_nothing(waiting):
    gone = replays.cancel(ANN, waiting, "no")
    assert (gone.state, gone.planned, gone.cancelled) == ("cancelled", 0, 3) and not FrozenBatch.objects.exists()


def test_dangerous_tasks_are_named_by_globs(shop, bury, settings):
    settings.REDRIVE = settings.REDRIVE | {"DANGEROUS_TASKS": ["*.refund"]}
    mild = replays.start(ANN, replays.draft(ANN, selection=bury(1)))
    wild = replays.start(ANN, replays.draft(ANN, selection=bury(1, task="shop.refund")))
    assert (mild.state, wild.state) == ("running", "awaiting_approval")
    assert "shop.refund" in wild.approval_because


def test_a_size_that_is_no_number_stops_the_start_of_watch(settings):
    settings.REDRIVE = settings.REDRIVE | {"APPROVE_ABOVE": "many"}
    with pytest.raises(config.BadConfiguration, match="many"):
        config.approve_above()
