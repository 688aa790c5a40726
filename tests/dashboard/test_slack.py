"""Approval of a replay in Slack: requests over HTTP to a real server, signed as Slack signs; Slack itself is an endpoint."""

from __future__ import annotations

import json
import random
import time
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import pyotp
import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.core import signing
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from dashboard.setup import checkup, environment
from jobs_admin import notices, replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.slack_signature import is_recent, is_signed, sign
from jobs_admin.models import (
    AuditEvent,
    Channel,
    Delivery,
    Failure,
    Notice,
    Replay,
    Role,
    SignIn,
    SlackLink,
    SlackRequest,
)
from jobs_admin.models.access import ENGINE, viewer_of
from jobs_admin.notices import formats, routing
from jobs_admin.replays import Options, spread
from jobs_admin.rights import second_factor, sign_ins, slack_links
from tests.kit.browsing import Browser
from tests.kit.endpoints import answering
from tests.kit.endurance import times
from tests.kit.notices import deliver
from tests.kit.people import PASSWORD
from tests.kit.replays import buried
from tests.kit.slack import HOOK, MEMBER, SECRET, TEAM, buttons_of, link, person, slack

__all__ = ["slack"]

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

User = get_user_model()

# The example of Slack's documentation, "Verifying requests from Slack".
EXAMPLE = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


def test_the_example_of_slacks_documentation_is_signed_and_nothing_near_it():
    of_example = "8f742231b10e8888abcd99yyyzzz85a5", "1531420618", EXAMPLE
    signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    assert is_signed(*of_example, signature)
    assert not is_signed(*of_example, signature.upper()) and not is_signed(*of_example, "")
    assert not is_signed("8f742231b10e8888abcd99yyyzzz85a6", *of_example[1:], signature)
    assert not is_signed(of_example[0], "1531420619", EXAMPLE, signature)
    assert is_recent("1531420618", 1531420918.0) and not is_recent("1531420618", 1531420918.5)
    assert not is_recent("1531420618", 1531420317.5) and not is_recent("", 0) and not is_recent("-1", 0)
    for text in ("²", "٣", "1_0", " 1", "1 ", "+1", "1.0", "1e1", "1\n"):
        assert not is_recent(text, 1.0), text


@pytest.fixture
def bob(slack):
    user = person("bob")
    link(user)
    return user


@pytest.fixture
def ann(slack):
    return person("ann", source="*")


@dataclass
class Waiting:
    pk: int
    message: dict  # in Slack
    value: str  # of its button Review


def launch(slack, ann, jobs: int = 3, **more) -> Waiting:
    """A replay of ann that waits, with its message in Slack."""
    count = len(slack.messages())
    given = {"selection": buried(jobs), "pace": {"rate": 10}, "reason": "the <!channel> partner\nis back"} | more
    replay = replays.launch(viewer_of(ann), **given)
    (message,) = slack.messages()[count:]
    return Waiting(replay.pk, message, buttons_of(message)["review"]["value"])


@pytest.fixture
def waiting(slack, ann):
    return launch(slack, ann)


def state_of(waiting: Waiting) -> str:
    return Replay.objects.get(pk=waiting.pk).state


def act_value(answer: dict, action: str = "approve") -> str:
    return buttons_of(answer)[action]["value"]


@contextmanager
def no_act(waiting: Waiting):
    """Nothing is approved, rejected or sent within."""
    acts = AuditEvent.objects.filter(allowed=True)
    before = acts.count()
    yield
    replay = Replay.objects.get(pk=waiting.pk)
    assert (replay.state, replay.items.count(), acts.count()) == ("awaiting_approval", 0, before)


def lines_of(answer: dict) -> list[str]:
    sections = [block["text"] for block in answer["blocks"] if block["type"] == "section"]
    assert all(one["type"] == "plain_text" and one["emoji"] is False for one in sections)
    assert all(block["expand"] is True for block in answer["blocks"] if block["type"] == "section")
    return [one["text"] for one in sections]


def test_a_message_leads_to_a_review_of_the_replay_and_the_review_approves_it_once(slack, bob, waiting):
    assert set(buttons_of(waiting.message)) == {"review", "open"}
    text = json.dumps(waiting.message, ensure_ascii=False)
    assert f"Replay #{waiting.pk} awaits approval" in text and "ann: the &lt;!channel&gt; partner is back" in text
    with no_act(waiting):
        answer = slack.review(waiting.value)
    assert answer["response_type"] == "ephemeral" and set(buttons_of(answer)) == {"approve", "reject", "open"}
    lines = lines_of(answer)
    for line in (
        f"Replay #{waiting.pk}: 3 jobs",
        "Approval: 3 jobs: above 2, another operator must approve the replay (REDRIVE_APPROVE_ABOVE).",
        "Requested by: ann",
        "Reason: the <!channel> partner is back",
        "Scope: selected by hand",
        'Queues: "emails" × 3',
        'Tasks: "shop.send" × 3',
        "Pace: 10/s",
    ):
        assert line in lines, lines
    body, at = slack.press(act_value(answer), "approve"), int(time.time())
    assert slack.request(body, at=at) == (200, "")
    replay = Replay.objects.get(pk=waiting.pk)
    assert (replay.state, replay.approver, replay.approved_by) == ("running", "bob", bob)
    approved = AuditEvent.objects.get(act="replay.approve")
    assert (approved.actor, approved.reason, approved.allowed) == ("bob", "Through Slack.", True)
    assert approved.after["through"] == "Slack"
    assert slack.request(body, at=at)[0] == 409
    done = slack.answers()[-1]
    assert done["response_type"] == "in_channel" and f"#{replay.pk} is approved by bob through Slack" in done["text"]
    assert slack.request(slack.press(act_value(answer, "reject"), "reject"))[0] == 200  # too late: it runs on
    assert state_of(waiting) == "running"
    late = slack.answers()[-1]
    assert late["response_type"] == "ephemeral" and "is running, so it cannot be approved" in late["text"]
    stored = str(Delivery.objects.values()) + str(AuditEvent.objects.values())
    assert SECRET not in stored and "/once" not in stored and act_value(answer) not in stored


def test_a_press_rejects_it(slack, bob, waiting):
    answer = slack.review(waiting.value)
    assert slack.request(slack.press(act_value(answer, "reject"), "reject"))[0] == 200
    assert state_of(waiting) == "cancelled"
    assert AuditEvent.objects.get(act="replay.cancel").reason == "Through Slack."
    assert "is rejected by bob through Slack" in slack.answers()[-1]["text"]


def test_the_review_shows_every_option_of_the_replay(slack, ann, bob, settings):
    settings.REDRIVE = settings.REDRIVE | {"DANGEROUS_TASKS": ["shop.*"]}
    unseen = "\u00ad\u061c\u034f\u180e\u202e\u3164\u2800\ufe0f\U000e0041"
    patch = {"kwargs": {"to": f"mallory{unseen}\nApproval: none needed", "amount": 10**6}}
    pace = {"style": "steady", "rate": 7, "in_flight": 5, "queue_cap": 9, "shuffle": True}
    ids = buried(3) + buried(2, task='x", "shop.z', queue="web\nhooks")
    options = Options.parse({"attempts": 3, "to_queue": "emails", "same_job_id": True, "patch": patch})
    given = {"selection": ids, "reason": "r" * 500, "pace": pace}
    try:
        shown = launch(slack, ann, **given, options=options)
    except Refused as refused:  # of an option that this source does not support
        raise AssertionError(refused.message) from refused
    lines = lines_of(slack.review(shown.value))
    text = "\n".join(lines)
    replay = Replay.objects.get(pk=shown.pk)
    for part in ("Target queue: emails", "Attempts of each job: 3", "Original job id: true", '"amount": 1000000',
                 f"Reason: {'r' * 500}", '"in_flight": 5', '"queue_cap": 9', '"shuffle": true', 'Tasks that need approval: "shop.send"',
                 '"x\\", \\"shop.z" × 2', '"web\\nhooks" × 2'):  # fmt: skip
        assert part in text, lines
    assert f"Approval: {replay.approval_because}" in lines
    for character in unseen:  # seen as a number
        assert character not in text and f"⟨U+{ord(character):04X}⟩" in text
    assert [line for line in lines if "\n" in line] == [] and "Approval: none needed" not in lines


@pytest.mark.parametrize("changes", [{"options": Options(patch={"kwargs": {"to": "x" * 901}})}, {"queues": 20}])
def test_a_replay_with_more_to_show_than_a_message_holds_is_approved_on_its_page_alone(slack, ann, bob, changes):
    queues = changes.pop("queues", 1)
    ids = [pk for n in range(queues) for pk in buried(3 if queues == 1 else 1, queue=f"q{n}")]
    shown = launch(slack, ann, selection=ids, **changes)
    answer = slack.review(shown.value)
    assert "cannot show this replay completely" in answer["text"] and f"/replays/{shown.pk}/" in answer["text"]
    assert "blocks" not in answer
    with no_act(shown):  # nor with a button that it never got
        assert slack.request(slack.press(sign_act(MEMBER), "approve"))[0] == 200
    assert "cannot show this replay completely" in slack.answers()[-1]["text"]


@pytest.mark.parametrize("lack", ["sampled", "missing", "tenants"])
def test_a_replay_whose_jobs_are_not_all_counted_is_approved_on_its_page_alone(slack, ann, bob, lack, monkeypatch):
    ids = buried(spread.LISTED)
    shown = launch(slack, ann, selection=ids)
    assert "blocks" in slack.review(shown.value)
    if lack == "sampled":
        monkeypatch.setattr(spread, "SAMPLED", 5)
    elif lack == "missing":
        Failure.objects.filter(pk=ids[0]).delete()
    else:
        for pk in ids:
            Failure.objects.filter(pk=pk).update(tenant=f"t{pk}")
    assert "cannot show this replay completely" in slack.review(shown.value)["text"]


def test_presses_beyond_the_bound_of_a_minute_act_without_an_answer(slack, bob, waiting, monkeypatch):
    monkeypatch.setattr(routing, "MOST_A_MINUTE", 2)
    answer = slack.review(waiting.value)
    for action in ("review", "review", "approve"):
        value = waiting.value if action == "review" else act_value(answer)
        assert slack.request(slack.press(value, action)) == (200, "")
    assert len(slack.answers()) == 2 and state_of(waiting) == "running"


def test_a_replay_that_vanished_is_refused(slack, bob, waiting):
    replay = Replay.objects.get()
    Replay.objects.filter(pk=replay.pk).delete()
    with pytest.raises(Refused, match="discarded"):
        replays.approve(viewer_of(bob), replay)


def sign_act(member: str) -> str:
    """The value of a button that acts, of a replay as no one was shown it."""
    message = Delivery.objects.filter(notice__type="replay.awaiting_approval").latest("pk")
    value = f"{message.notice_id}:{message.channel_id}:{TEAM}:{member}:{'a' * 64}"
    return signing.TimestampSigner(salt="redrive.slack.act").sign(value)


def test_the_rules_of_the_page_hold_in_slack(slack, ann, waiting, settings, bob):
    def refused(sentence: str, member: str = MEMBER) -> None:
        with no_act(waiting):
            act = given_value if member == MEMBER else sign_act(member)
            for value, action in ((waiting.value, "review"), (act, "approve"), (act, "reject")):
                count = len(slack.answers())
                if action != "review" and member != MEMBER:
                    assert slack.request(slack.press(given_value, action, member))[0] == 403  # a button of bob's
                assert slack.request(slack.press(value, action, member))[0] == 200
                answer = slack.answers()[count]
                assert answer["response_type"] == "ephemeral" and not answer["replace_original"], answer
                assert sentence in answer["text"] and f"/replays/{waiting.pk}/" in answer["text"], answer

    def why_refused(actor: str) -> list[str]:
        entries = AuditEvent.objects.filter(allowed=False, actor=actor, object=f"replay:{waiting.pk}")
        return sorted(set(entries.values_list("reason", flat=True)))

    given_value = act_value(slack.review(waiting.value))
    link(ann, "UANN")
    assert "You started replay" in slack.review(waiting.value, "UANN")["text"]
    assert why_refused("ann") == [], "a review attempts nothing"
    refused("You started replay", "UANN")
    assert why_refused("ann")[0].startswith("Through Slack. You started")
    for _ in range(3):
        refused("not linked to a Redrive account", "UNOBODY")
    unlinked = AuditEvent.objects.filter(actor=f"Slack user UNOBODY of {TEAM}", allowed=False)
    assert [one.source for one in unlinked] == ["shop"], "once, however often they press"
    Role.objects.filter(user=bob).update(role="viewer")
    refused("needs the role operator")
    Role.objects.filter(user=bob).delete()
    refused("you cannot view it")
    Role.objects.create(user=bob, source="shop", role="operator")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    refused("read-only")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": False, "SECOND_FACTOR_FOR": ["operator"]}
    refused("needs more than a password")
    settings.REDRIVE = settings.REDRIVE | {"SECOND_FACTOR_FOR": []}
    second_factor.SecondFactor.objects.create(user=bob, sealed=second_factor.make_key(), last_step=0)
    refused("needs more than a password")  # which bob set up freely
    assert (
        "Through Slack. Your account needs more than a password to log in, which Slack cannot ask for."
        in why_refused("bob")
    )
    second_factor.SecondFactor.objects.all().delete()
    slack_links.unlink(viewer_of(bob), bob)
    refused("not linked")
    link(bob)
    bob.set_password("another horse battery")
    bob.save()
    refused("not linked")
    link(bob)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    refused("not linked")
    User.objects.filter(pk=bob.pk).update(is_active=True)
    replays.change_pace(viewer_of(ann), Replay.objects.get(), {"rate": 20})
    with no_act(waiting):
        slack.request(slack.press(given_value, "approve"))
        assert "was changed after you reviewed it" in slack.answers()[-1]["text"]
    assert "Pace: 20/s" in lines_of(answer := slack.review(waiting.value))
    assert slack.request(slack.press(act_value(answer), "approve"))[0] == 200
    assert state_of(waiting) == "running"  # each refusal had its own reason


def test_an_account_of_a_provider_acts_on_the_page(slack, ann, waiting, bob):
    bob.set_unusable_password()
    bob.save()
    SlackLink.objects.update(session_hash=bob.get_session_auth_hash())
    with no_act(waiting):
        assert "needs more than a password" in slack.review(waiting.value)["text"]


def test_a_review_older_than_five_minutes_acts_on_nothing(slack, bob, waiting, monkeypatch):
    with monkeypatch.context() as clock:
        clock.setattr(signing.time, "time", lambda now=time.time: now() - 301)
        value = f"{Notice.objects.get(type='replay.awaiting_approval').pk}:{Channel.objects.get().pk}:{TEAM}:{MEMBER}:x"
        old = signing.TimestampSigner(salt="redrive.slack.act").sign(value)
    for action in ("approve", "reject"):
        with no_act(waiting):
            assert slack.request(slack.press(old, action))[0] == 200
        assert "reviewed this replay more than five minutes ago" in slack.answers()[-1]["text"]


# -- links --------------------------------------------------------------------------------------------------------


def test_a_link_needs_the_code_in_slack_and_the_password_on_the_page(slack, waiting):
    bob, eve = person("bob"), person("eve")
    page = Browser()
    page.force_login(bob)
    made = page.post("/account/slack/", {"step": "code"}).content.decode()
    code = made.split("/redrive ")[1].split("<")[0]
    assert "is not a code" in slack.command("hello")[1] and "wrong, used or expired" in slack.command("A" * 12)[1]
    assert slack.command(code, team="TOTHER")[0] == 403
    assert "is not a code" in slack.command(code, "U²")[1]
    assert "replays as bob" in json.loads(slack.command(code.lower())[1])["text"]
    assert "wrong, used or expired" in slack.command(code, "UEVE", name="eve")[1]  # once only
    with no_act(waiting):
        slack.request(slack.press(waiting.value, "review"))  # not confirmed
        assert "not linked" in slack.answers()[-1]["text"]
        right = {"step": "confirm", "team": TEAM, "member": MEMBER}
        for wrong in (
            {"member": "UEVE", "password": PASSWORD},
            {"member": "U\x00", "password": PASSWORD},
            {"password": "wrong"},
            {"password": ""},
            {},
        ):
            page.post("/account/slack/", right | wrong)
            assert SlackLink.objects.get(user=bob).linked_at is None, wrong
    shown = page.get("/account/").content.decode()
    assert MEMBER in shown and "Confirm bob" in shown
    page.post("/account/slack/", right | {"password": PASSWORD})
    assert slack_links.find_user(TEAM, MEMBER) == bob
    assert AuditEvent.objects.get(act="slack.link").actor == "bob"
    with pytest.raises(Refused, match="already linked"):  # a Slack user is one person
        slack_links.redeem_code(TEAM, MEMBER, "bob", slack_links.make_code(viewer_of(eve), eve))
    bob.set_password("another horse battery")
    bob.save()
    assert slack_links.find_user(TEAM, MEMBER) is None
    page.force_login(bob)
    page.post("/account/slack/", {"step": "unlink"})
    assert not SlackLink.objects.filter(user=bob).exists() and AuditEvent.objects.filter(act="slack.unlink").exists()


def test_an_ended_link_leaves_its_slack_user_free_and_two_accounts_cannot_share_one(slack, bob):
    eve, dan = person("eve"), person("dan")
    bob.set_password("another horse battery")
    bob.save()
    for user in (eve, dan):
        slack_links.redeem_code(TEAM, MEMBER, "x", slack_links.make_code(viewer_of(user), user))
    slack_links.confirm(viewer_of(eve), eve, TEAM, MEMBER)
    assert slack_links.find_user(TEAM, MEMBER) == eve
    assert AuditEvent.objects.get(act="slack.unlink").object == "user:bob"
    with pytest.raises(Refused, match="already linked to another account"):
        slack_links.confirm(viewer_of(dan), dan, TEAM, MEMBER)


def test_a_link_outlasts_the_upgrade_of_the_hash_by_its_own_confirmation(slack, settings):
    bob, page = person("bob"), Browser()
    page.force_login(bob)
    slack_links.redeem_code(TEAM, MEMBER, "bob", slack_links.make_code(viewer_of(bob), bob))
    better = "django.contrib.auth.hashers.ScryptPasswordHasher"
    settings.PASSWORD_HASHERS = [better, *settings.PASSWORD_HASHERS]
    page.post("/account/slack/", {"step": "confirm", "team": TEAM, "member": MEMBER, "password": PASSWORD})
    assert User.objects.get(pk=bob.pk).password.startswith("scrypt") and slack_links.find_user(TEAM, MEMBER) == bob


def test_the_page_links_no_one_while_approval_in_slack_is_off_or_a_password_is_not_enough(slack, settings):
    bob, page = person("bob"), Browser()
    page.force_login(bob)
    slack_links.redeem_code(TEAM, MEMBER, "bob", slack_links.make_code(viewer_of(bob), bob))
    right = {"step": "confirm", "team": TEAM, "member": MEMBER, "password": PASSWORD}
    for changes in ({"SLACK_SIGNING_SECRET": ""}, {"SECOND_FACTOR_FOR": ["operator"]}):
        before = settings.REDRIVE
        settings.REDRIVE = before | changes
        for form in (right, {"step": "code"}):
            page.post("/account/slack/", form)
            assert SlackLink.objects.get().linked_at is None and SlackLink.objects.get().team == TEAM, changes
        settings.REDRIVE = before
    SlackLink.objects.update(expires_at=timezone.now())
    page.post("/account/slack/", right)
    assert SlackLink.objects.get().linked_at is None


def as_root():
    root = Browser()
    root.force_login(User.objects.create_superuser("root", password=PASSWORD))
    return root


def run_action(root: Browser, action: str, user) -> None:
    assert root.post("/admin/auth/user/", {"action": action, "_selected_action": [user.pk]}).status_code == 302


@pytest.mark.parametrize(
    "end", ["sessions", "other sessions", "password", "second factor", "reset", "unlink", "deactivate"]
)
def test_a_link_ends_with_the_sessions_or_the_account_and_by_an_admin(slack, bob, end):
    page = Browser()
    page.force_login(bob)
    if end == "sessions":
        run_action(as_root(), "end_sessions", bob)
    elif end == "other sessions":
        page.post("/account/sessions/end/", {"session": "others"})
    elif end == "password":
        sign_ins.change_password(viewer_of(bob), bob, "another horse battery")
    elif end == "second factor":
        sealed = second_factor.make_key()
        assert second_factor.enrol(bob, sealed, pyotp.TOTP(second_factor.open_key(sealed)).now())
    elif end == "reset":
        run_action(as_root(), "reset_second_factor", bob)
    elif end == "unlink":
        run_action(as_root(), "unlink_slack", bob)
    else:
        root = as_root()
        fields = {"username": "bob", "date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
        fields |= {"redrive_roles-TOTAL_FORMS": "0", "redrive_roles-INITIAL_FORMS": "0"}
        bob.groups.add(Group.objects.create(name="night shift"))
        with CaptureQueriesContext(connection) as found:
            assert root.post(f"/admin/auth/user/{bob.pk}/change/", fields).status_code == 302
        tables = [q["sql"].split('"')[1] for q in found if q["sql"].startswith(("INSERT", "UPDATE", "DELETE"))]
        lock = tables.index(AuditEvent._meta.db_table)  # of the chain, and taken after all rows
        assert "auth_user_groups" in tables[:lock] and "auth_user_groups" not in tables[lock:], tables
        assert not User.objects.get(pk=bob.pk).is_active
        User.objects.filter(pk=bob.pk).update(is_active=True)
    assert not SlackLink.objects.exists() and slack_links.find_user(TEAM, MEMBER) is None
    actor = "bob" if end in ("other sessions", "password", "second factor") else "root"
    assert AuditEvent.objects.get(act="slack.unlink").actor == actor


def test_the_end_of_one_session_leaves_the_link(slack, bob):
    page = Browser()
    page.force_login(bob)
    sign_ins.record(bob, page.session.session_key, "192.0.2.1", "Firefox")
    assert sign_ins.end(viewer_of(bob), bob, SignIn.objects.get(user=bob).pk) == 1
    assert slack_links.find_user(TEAM, MEMBER) == bob


def test_a_code_ends_after_ten_minutes_and_a_read_only_desk_links_no_one(slack, settings):
    bob = person("bob")
    code = slack_links.make_code(viewer_of(bob), bob)
    SlackLink.objects.update(expires_at=timezone.now())
    assert "expired" in slack.command(code)[1]
    code = slack_links.make_code(viewer_of(bob), bob)
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert "read-only" in slack.command(code)[1] and not SlackLink.objects.get().team


# -- channels and settings ----------------------------------------------------------------------------------------


def test_whoever_changes_channels_signs_no_press(slack, bob, waiting):
    """The secret is the deployment's: no field of a channel replaces it, and a channel elsewhere has no buttons."""
    for document in ({"secret": "0" * 32}, {"secret": SECRET, "url": HOOK}):
        with pytest.raises(Refused, match="Slack has no secret"):
            notices.save_channel(ENGINE, document, Channel.objects.get().pk)
    for url in ("http://127.0.0.1:9/services/T024BE7LD/B1/x", "https://hooks.slack.com:444/services/T024BE7LD/B1/x",
                "https://hooks.slack.com/triggers/T024BE7LD/2/3", "https://hooks.slack.com/services/TOTHER/B1/x"):  # fmt: skip
        notices.save_channel(ENGINE, {"url": url}, Channel.objects.get().pk)
        with no_act(waiting):
            assert slack.request(slack.press(waiting.value, "review"))[0] == 403, url
        if "TOTHER" not in url:
            notice = Notice.objects.get(type="replay.awaiting_approval")
            request = formats.request(notice, Channel.objects.get(), timezone.now())
            assert not buttons_of(json.loads(request.body)), url
        if "TOTHER" not in url:
            assert slack.command("A" * 12)[0] == 403, url


def test_a_channel_that_is_disabled_or_not_subscribed_takes_no_press(slack, bob, waiting):
    channel = Channel.objects.get()
    for changes in ({"events": []}, {"disabled_at": timezone.now()}, {"kind": "webhook"}):
        Channel.objects.filter(pk=channel.pk).update(**changes)
        with no_act(waiting):
            assert slack.request(slack.press(waiting.value, "review"))[0] == 403
        channel.save()


def test_pagerduty_gets_no_replay_that_awaits_approval(slack, waiting):
    Channel.objects.update(kind="pagerduty")
    notice = Notice.objects.get(type="replay.awaiting_approval")
    Delivery.objects.all().delete()
    for kind in ("pagerduty", "slack"):
        Channel.objects.update(kind=kind)
        Notice.objects.filter(pk=notice.pk).update(routed_at=None)
        routing.route(timezone.now())
        assert Delivery.objects.filter(notice=notice).exists() == (kind == "slack")


def test_without_the_setting_messages_have_links_and_no_press_counts(slack, ann, bob, waiting, settings):
    settings.REDRIVE = settings.REDRIVE | {"SLACK_SIGNING_SECRET": ""}
    with no_act(waiting):
        for secret in (SECRET, ""):
            assert slack.request(slack.press(waiting.value, "review"), secret=secret)[0] == 403
    replays.launch(viewer_of(ann), selection=buried(3), reason="again")
    message = slack.messages()[-1]
    assert not buttons_of(message) and "|Open>" in str(message)
    page = Browser()
    page.force_login(person("eve"))
    assert 'id="slack"' not in page.get("/account/").content.decode()


@pytest.mark.parametrize("secret", ["short", "0" * 31 + "²", "0" * 32 + " x"])
def test_a_secret_that_cannot_be_one_prevents_the_start(secret, monkeypatch):
    monkeypatch.setenv("REDRIVE_SLACK_SIGNING_SECRET", secret)
    with pytest.raises(environment.Misconfigured, match="REDRIVE_SLACK_SIGNING_SECRET must be the Signing Secret"):
        environment.redrive()


def test_doctor_names_what_approval_in_slack_lacks(slack, settings):
    def find_rules() -> set[str]:
        return {one.id for one in checkup.check_channels().findings} & {"slack-channel", "slack-address"}

    assert find_rules() == {"slack-address"}  # http://
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://desk.example"}
    assert find_rules() == set()
    Channel.objects.update(events=[])
    assert find_rules() == {"slack-channel"}
    settings.REDRIVE = settings.REDRIVE | {"SLACK_SIGNING_SECRET": ""}
    assert find_rules() == set()


def test_an_answer_that_slack_no_longer_takes_disables_no_channel(slack, bob, waiting):
    value = act_value(slack.review(waiting.value))
    slack.endpoint.behave = answering(404, b"expired_url")
    assert slack.request(slack.press(value, "approve"))[0] == 200
    deliver()
    assert Delivery.objects.filter(notice__type="slack.answer").latest("pk").state == "parked"
    assert (Channel.objects.get().disabled_at, Channel.objects.get().failures) == (None, 0)
    assert state_of(waiting) == "running"  # the page is the place of truth


# -- forged, altered, replayed, prefetched ------------------------------------------------------------------------


def flipped(body: bytes, draw: random.Random) -> tuple[bytes, dict[str, str]]:
    at = str(int(time.time()))
    signature, changed = sign(SECRET, at, body), bytearray(body)
    changed[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return bytes(changed), {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": signature}


# Calls that Slack did not make. Each gets the body of a press that would act.
FORGED = {
    "unsigned": lambda slack, body, draw: slack.request(body, signature=""),
    "wrong secret": lambda slack, body, draw: slack.request(body, secret=f"{draw.getrandbits(128):032x}"),
    "altered": lambda slack, body, draw: slack.send("POST", *flipped(body, draw)),
    "stale": lambda slack, body, draw: slack.request(body, at=int(time.time()) - draw.randint(302, 10**6)),
    "from the future": lambda slack, body, draw: slack.request(body, at=int(time.time()) + draw.randint(330, 10**6)),
    "nonsense time": lambda slack, body, draw: slack.request(body, at=draw.choice(["", "now", "1e9", "-1", f"{int(time.time())}.0", "9" * 40])),
    "prefetch": lambda slack, body, draw: slack.request(body, method=draw.choice(["GET", "HEAD"])),
    "too large": lambda slack, body, draw: slack.request(body + b"&x=" + b"y" * 66_000),
    "other version": lambda slack, body, draw: slack.request(body, signature="v1=" + sign(SECRET, str(int(time.time())), body)[3:]),
}  # fmt: skip
STATUSES = {"prefetch": 405, "too large": 413}
PEOPLE = {"UBOB": "bob", "UVERA": "vera", "UTESS": "tess", "UANN": "ann", "UNOBODY": ""}


@dataclass
class Offer:
    """Buttons that Redrive gave to a member in a review."""

    replay: int
    member: str
    value: str
    pace: int  # rate when it was reviewed
    reject: str


@dataclass
class Model:
    """Expected state and pace of each replay after each call."""

    states: dict[int, str]
    rates: dict[int, int]
    seen: set[tuple[bytes, int]]

    def press(self, offer: Offer, action: str, member: str) -> None:
        """Only bob acts: vera views, tess has a second factor, ann started the replays, the other is not linked."""
        if member != offer.member or member != "UBOB" or self.states[offer.replay] != "awaiting_approval":
            return
        if action == "reject":
            self.states[offer.replay] = "cancelled"
        elif self.rates[offer.replay] == offer.pace:
            self.states[offer.replay] = "running"


def test_in_a_random_history_only_right_presses_act(slack, ann, monkeypatch):
    """300 calls; 10,000 under --endurance, with more replays a minute than a channel gets. The desk is as the model."""
    monkeypatch.setattr(routing, "MOST_A_MINUTE", 10_000)
    draw = random.Random(24)
    people = {
        name: person(name, role) for name, role in (("bob", "operator"), ("vera", "viewer"), ("tess", "operator"))
    }
    for member, name in PEOPLE.items():
        if name:
            link(people.get(name, ann), member)
    second_factor.SecondFactor.objects.create(user=people["tess"], sealed=second_factor.make_key(), last_step=0)
    model, waiting, offers = Model({}, {}, set()), {}, []
    sent: list[tuple[bytes, int]] = []
    kinds: dict[str, set[int]] = {}
    acted = {"running": 0, "cancelled": 0}

    def new_replay() -> None:
        made = launch(slack, ann)
        waiting[made.pk] = made
        model.states[made.pk], model.rates[made.pk] = "awaiting_approval", 10

    def signed(kind: str, body: bytes) -> int:
        at = int(time.time())
        sent.append((body, at))
        return slack.request(body, at=at)[0]

    for _ in range(times(300, 10_000)):
        open_replays = [pk for pk, state in model.states.items() if state == "awaiting_approval"]
        if len(open_replays) < 2:
            new_replay()
            continue
        pk, member, action = draw.choice(open_replays), draw.choice([*PEOPLE]), draw.choice(["approve", "reject"])
        usable = [one for one in offers[-20:] if model.states[one.replay] == "awaiting_approval"]
        offer = draw.choice(usable) if usable else None
        kind = draw.choice(
            [
                "review",
                "review",
                "press",
                "press",
                "press",
                "repeated",
                "pace",
                "value",
                "elsewhere",
                "nonsense",
                *FORGED,
            ]
        )
        expected = 200
        if kind == "review":
            member = draw.choice(["UBOB", member])
            before = Notice.objects.filter(type="slack.answer").count()
            status = signed(kind, slack.press(waiting[pk].value, "review", member))
            answer = Notice.objects.filter(type="slack.answer").latest("pk")
            assert Notice.objects.filter(type="slack.answer").count() == before + 1
            assert ("blocks" in answer.body) == (member == "UBOB"), (member, answer.body)
            if "blocks" in answer.body:
                buttons = buttons_of(answer.body)
                value, reject = buttons["approve"]["value"], buttons["reject"]["value"]
                offers.append(Offer(pk, member, value, model.rates[pk], reject))
        elif kind == "pace":
            model.rates[pk] = draw.randint(1, 50)
            replays.change_pace(viewer_of(ann), Replay.objects.get(pk=pk), {"rate": model.rates[pk]})
            continue
        elif offer is None:
            continue
        elif kind == "press":
            member = draw.choice([offer.member, offer.member, member])
            expected = 200 if member == offer.member else 403
            status = signed(kind, slack.press(offer.value if action == "approve" else offer.reject, action, member))
            model.press(offer, action, member)
            acted[model.states[offer.replay]] = acted.get(model.states[offer.replay], 0) + 1
        elif kind == "repeated":
            recent = [one for one in sent if time.time() - one[1] < 240]
            body, at = draw.choice(recent)
            status, expected = slack.request(body, at=at)[0], 409
        elif kind == "value":
            bad = draw.choice([offer.value[:-1], f"1{offer.value}", "", "1:1", offer.value.replace(":", ";"), "x" * 5_000,
                               waiting[pk].value])  # fmt: skip
            status, expected = signed(kind, slack.press(bad, action)), 403
        elif kind == "elsewhere":
            changes = draw.choice(
                [
                    {"response_url": draw.choice(["https://hooks.slack.com.evil.example/a", "file:///etc/passwd", "", "http://hooks.slack.com/a"])},
                    {"team": {"id": "TOTHER"}, "user": {"id": "UBOB", "team_id": "TOTHER"}},
                ]
            )  # fmt: skip
            status, expected = signed(kind, slack.press(offer.value, action, "UBOB", **changes)), 403
        elif kind == "nonsense":
            two = [{"action_id": action, "value": offer.value}] * 2
            bodies = [
                slack.press(offer.value, draw.choice(["approve ", "APPROVE", "", "delete"]), "UBOB"),
                slack.press(
                    offer.value, action, "UBOB", type=draw.choice(["view_submission", "message_action", 5, None])
                ),
                slack.press(offer.value, action, "UBOB", actions=two),
                slack.press(offer.value, action, user={"id": "UBOB", "team_id": "TOTHER"}),
                slack.press(waiting[pk].value, "review", draw.choice(["U\x00", "U\ud800", "", "U" * 21])),
                b"payload={&n=%d" % len(sent),
                b"payload=" + b"[" * 9_000 + b"&n=%d" % len(sent),
                b"\xff%d" % len(sent),
            ]
            status, expected = signed(kind, draw.choice(bodies)), 400
        else:
            body = slack.press(offer.value if action == "approve" else offer.reject, action, offer.member)
            status, expected = FORGED[kind](slack, body, draw)[0], STATUSES.get(kind, 403)
        kinds.setdefault(kind, set()).add(status - expected)
        assert dict(Replay.objects.values_list("pk", "state")) == model.states, (kind, member, action)
    assert {kind: found for kind, found in kinds.items() if found != {0}} == {}
    assert kinds.keys() >= {*FORGED, "review", "press", "repeated", "value", "elsewhere", "nonsense"}
    assert acted["running"] > 3 and acted["cancelled"] > 3, "right presses act"
    names = AuditEvent.objects.filter(act__in=("replay.approve", "replay.cancel"), allowed=True)
    assert set(names.values_list("actor", flat=True)) == {"bob"}
    ended = sum(state != "awaiting_approval" for state in model.states.values())
    assert names.count() == ended, "each once"


def test_calls_that_slack_did_not_make_write_nothing(slack, bob, waiting, caplog):
    draw = random.Random(5)
    caplog.set_level("WARNING")
    tables = (AuditEvent, Notice, Delivery, SlackRequest)
    before = [table.objects.count() for table in tables]
    for kind in FORGED:
        FORGED[kind](slack, slack.press(waiting.value, "review"), draw)
    assert [table.objects.count() for table in tables] == before
    assert {getattr(one, "status_code", 0) for one in caplog.records} & {403, 413} == set(), "a line each"


def test_signatures_are_stored_as_long_as_they_could_be_repeated(slack, bob, waiting):
    SlackRequest.objects.create(signature="v0=old", received_at=timezone.now() - timedelta(seconds=1_201))
    SlackRequest.objects.create(signature="v0=recent", received_at=timezone.now() - timedelta(seconds=600))
    slack.request(slack.press(waiting.value, "review"))
    stored = set(SlackRequest.objects.values_list("signature", flat=True))
    assert len(stored) == 2 and "v0=recent" in stored and "v0=old" not in stored
