"""Approval of a replay in Slack: requests over HTTP to a real server, signed as Slack signs; Slack itself is an endpoint."""

from __future__ import annotations

import http.client
import json
import random
import time
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth import get_user_model
from django.utils import timezone

from jobs_admin import config, notices, replays
from jobs_admin.core.refused import Refused
from jobs_admin.core.slack_signature import is_recent, is_signed, sign
from jobs_admin.models import AuditEvent, Channel, Delivery, Identity, Notice, Replay, Role, SlackLink
from jobs_admin.models.access import ENGINE, viewer_of
from jobs_admin.notices import delivering
from jobs_admin.rights import slack_links
from tests.kit.browsing import Browser
from tests.kit.endpoints import answering, opened
from tests.kit.endurance import times
from tests.kit.notices import deliver
from tests.kit.replays import buried
from tests.kit.sources import forget_configuration

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=True)]

SECRET, TEAM, MEMBER = "8f742231b10e8888abcd99fff85a5000", "T024BE7LD", "U2CERLKJA"
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


class Slack:
    """Slack as the desk meets it: an endpoint that gets messages and answers, and a sender of signed requests."""

    def __init__(self, endpoint, url: str) -> None:
        self.endpoint = endpoint
        self.server = urlsplit(url).netloc
        self.hook = f"http://127.0.0.1:{endpoint.port}/services/{TEAM}/B1/secret"
        self.response_url = f"http://127.0.0.1:{endpoint.port}/actions/{TEAM}/1/once"
        self.n = 0

    def request(self, body: bytes, *, method="POST", at=None, secret=SECRET, signature=None) -> tuple[int, str]:
        at = str(int(time.time()) if at is None else at)
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": sign(secret, at, body) if signature is None else signature,
        }
        return self.send(method, body, headers)

    def send(self, method: str, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self.server, timeout=60)
        try:
            path = "/slack/" if method == "POST" else f"/slack/?{body.decode('latin-1')[:200]}"
            connection.request(method, path, body if method == "POST" else None, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def press(self, value: str, action="approve", **changes) -> bytes:
        """The body of a press; each is unlike the others, as Slack's trigger ids make them."""
        self.n += 1
        payload = {
            "type": "block_actions", "team": {"id": TEAM}, "user": {"id": MEMBER, "team_id": TEAM, "name": "bob"},
            "trigger_id": f"{self.n}.1", "response_url": self.response_url,
            "actions": [{"action_id": action, "type": "button", "value": value}],
        } | changes  # fmt: skip
        return urlencode({"payload": json.dumps(payload)}).encode()

    def command(self, text: str, member=MEMBER, team=TEAM, name="bob") -> tuple[int, str]:
        self.n += 1
        fields = {"command": "/redrive", "text": text, "team_id": team, "user_id": member, "user_name": name}
        return self.request(urlencode(fields | {"trigger_id": self.n}).encode())

    def answers(self) -> list[dict]:
        deliver()
        return [json.loads(one.body) for one in self.endpoint.seen if one.path.startswith("/actions/")]


@pytest.fixture
def slack(store, shop, settings, live_server):
    more = {"PAYLOAD_KEYS": [Fernet.generate_key().decode()], "WEBHOOK_ALLOW": ["127.0.0.0/8"], "APPROVE_ABOVE": "2"}
    settings.REDRIVE = settings.REDRIVE | more
    forget_configuration(config)
    delivering._lanes.clear()
    with opened(answering(200, b"ok")) as (endpoint,):
        found = Slack(endpoint, live_server.url)
        document = {"name": "ops", "kind": "slack", "url": found.hook, "secret": SECRET}
        notices.save_channel(ENGINE, document | {"events": ["replay.awaiting_approval"]})
        yield found
    delivering._lanes.clear()
    forget_configuration(config)


def person(name: str, role: str = "operator", source: str = "shop"):
    user = User.objects.create_user(name, password="correct horse battery")
    Role.objects.create(user=user, source=source, role=role)
    return user


def link(user, member: str = MEMBER) -> None:
    code = slack_links.make_code(viewer_of(user), user)
    slack_links.take_code(TEAM, member, user.get_username(), code)
    slack_links.confirm(viewer_of(user), user, TEAM, member)


@pytest.fixture
def bob(slack):
    user = person("bob")
    link(user)
    return user


@pytest.fixture
def waiting(slack):
    """A replay of ann that waits, and the value of its buttons in Slack."""
    ann = viewer_of(person("ann", source="*"))
    replay = replays.launch(ann, selection=buried(3), pace={"rate": 10}, reason="the <!channel> partner\nis back")
    deliver()
    (message,) = [json.loads(one.body) for one in slack.endpoint.seen]
    replay.message = message
    (replay.buttons,) = [block["elements"] for block in message["blocks"] if block["type"] == "actions"]
    replay.value = replay.buttons[0]["value"]
    return replay


@contextmanager
def no_act(replay):
    """Nothing is approved, rejected or sent within."""
    acts = AuditEvent.objects.filter(allowed=True)
    before = acts.count(), replay.items.count()
    yield
    assert Replay.objects.get(pk=replay.pk).state == "awaiting_approval"
    assert (acts.count(), replay.items.count()) == before


def test_a_message_shows_what_would_be_replayed_and_a_press_approves_it_once(slack, bob, waiting):
    text = json.dumps(waiting.message, ensure_ascii=False)
    for shown in (f"Replay #{waiting.pk} awaits approval", "3 jobs: selected by hand", "emails (shop) 3", "10/s",
                  "Requested by ann: the &lt;!channel&gt; partner is back", "likely to fail again"):  # fmt: skip
        assert shown in text
    assert [one["text"]["text"] for one in waiting.buttons] == ["Approve", "Reject", "Open in Redrive"]
    assert waiting.buttons[2]["url"].endswith(f"/replays/{waiting.pk}/")
    body, at = slack.press(waiting.value), int(time.time())
    assert slack.request(body, at=at) == (200, "")
    replay = Replay.objects.get(pk=waiting.pk)
    assert (replay.state, replay.approver, replay.approved_by) == ("running", "bob", bob)
    approved = AuditEvent.objects.get(act="replay.approve")
    assert (approved.actor, approved.reason, approved.allowed) == ("bob", "Through Slack.", True)
    assert slack.request(body, at=at)[0] == 409
    (answer,) = slack.answers()
    assert answer["replace_original"] is True and f"#{replay.pk}: approved by bob through Slack" in answer["text"]
    assert slack.request(slack.press(waiting.value, "reject"))[0] == 200  # too late: it runs on
    assert Replay.objects.get(pk=waiting.pk).state == "running"
    late = slack.answers()[-1]
    assert late["response_type"] == "ephemeral" and "is running, so it cannot be cancelled" in late["text"]
    secrets = str(Delivery.objects.values()) + str(Notice.objects.values()) + str(AuditEvent.objects.values())
    assert SECRET not in secrets and "/once" not in secrets


def test_a_press_rejects_it(slack, bob, waiting):
    assert slack.request(slack.press(waiting.value, "reject"))[0] == 200
    assert Replay.objects.get(pk=waiting.pk).state == "cancelled"
    assert AuditEvent.objects.get(act="replay.cancel").reason == "Through Slack."
    assert "rejected by bob through Slack" in slack.answers()[0]["text"]


def test_the_rules_of_the_page_hold_in_slack(slack, waiting, settings, bob):
    def pressed(sentence: str, member: str = MEMBER, **changes) -> None:
        count = len(slack.answers())
        with no_act(waiting):
            body = slack.press(waiting.value, user={"id": member, "team_id": TEAM}, **changes)
            assert slack.request(body) == (200, "")
        answer = slack.answers()[count]
        assert answer["response_type"] == "ephemeral" and not answer["replace_original"], answer
        assert sentence in answer["text"] and f"/replays/{waiting.pk}/" in answer["text"], answer

    link(User.objects.get(username="ann"), "UANN")
    pressed("You started replay", "UANN")
    assert AuditEvent.objects.get(allowed=False, actor="ann").reason.startswith("Through Slack. You started")
    pressed("not linked to a Redrive account", "UNOBODY")
    Role.objects.update_or_create(user=bob, source="shop", defaults={"role": "viewer"})
    pressed("needs the role operator")
    Role.objects.filter(user=bob).delete()
    pressed("you cannot view it")
    Role.objects.create(user=bob, source="shop", role="operator")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    pressed("read-only")
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": False, "SECOND_FACTOR_FOR": ["operator"]}
    pressed("requires a second factor")
    settings.REDRIVE = settings.REDRIVE | {"SECOND_FACTOR_FOR": []}
    User.objects.filter(pk=bob.pk).update(is_active=False)
    pressed("not linked")
    User.objects.filter(pk=bob.pk).update(is_active=True)
    known = Identity.objects.create(user=bob, issuer="https://id.example", subject="1")
    User.objects.filter(pk=bob.pk).update(last_login=timezone.now() - 2 * timezone.timedelta(days=1))
    pressed("have not signed in to Redrive today")
    known.delete()
    replays.change_pace(viewer_of(User.objects.get(username="ann")), Replay.objects.get(), {"rate": 20})
    pressed("was changed after this message was sent")
    Replay.objects.update(pace=waiting.pace)
    assert slack.request(slack.press(waiting.value))[0] == 200
    assert Replay.objects.get(pk=waiting.pk).state == "running"  # each refusal had its own reason


KINDS = {
    "unsigned": lambda slack, body, draw: slack.request(body, signature=""),
    "wrong secret": lambda slack, body, draw: slack.request(body, secret=f"{draw.getrandbits(128):032x}"),
    "flipped bit": lambda slack, body, draw: slack.send("POST", *flipped(body, draw)),
    "stale": lambda slack, body, draw: slack.request(body, at=time.time() - draw.randint(302, 10**6)),
    "from the future": lambda slack, body, draw: slack.request(body, at=time.time() + draw.randint(330, 10**6)),
    "nonsense time": lambda slack, body, draw: slack.request(body, at=draw.choice(["", "now", "1e9", "-1", "٣", "9" * 40][:4])),
    "prefetch": lambda slack, body, draw: slack.request(body, method=draw.choice(["GET", "HEAD"])),
    "too large": lambda slack, body, draw: slack.request(body + b"&x=" + b"y" * 66_000),
    "other version": lambda slack, body, draw: slack.request(body, signature="v1=" + sign(SECRET, str(int(time.time())), body)[3:]),
}  # fmt: skip


def flipped(body: bytes, draw: random.Random) -> tuple[bytes, dict[str, str]]:
    at = str(int(time.time()))
    signature, changed = sign(SECRET, at, body), bytearray(body)
    changed[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
    return bytes(changed), {"X-Slack-Request-Timestamp": at, "X-Slack-Signature": signature}


def signed_presses(slack, value: str, draw: random.Random) -> dict[str, bytes]:
    """Presses that Slack signs, and that are not on a message of ours, or by no one it knows."""
    forged = draw.choice([value[:-1], f"1{value}", "", "1:1", "1:1:" + "a" * 43, value.replace(":", ";"), "x" * 5_000])
    elsewhere = draw.choice(
        ["https://hooks.slack.com.evil.example/a", "http://127.0.0.1:1/a", "file:///etc/passwd", ""]
    )
    nonsense = draw.choice([b"", b"payload=", b"payload={", b"payload=[]", b"payload=" + b"[" * 9_000, b"\xff", b"a=1"])
    return {
        "forged value": slack.press(forged),
        "other team": slack.press(value, team={"id": "TOTHER"}, user={"id": MEMBER, "team_id": "TOTHER"}),
        "guest of another team": slack.press(value, user={"id": MEMBER, "team_id": "TOTHER"}),
        "unlinked": slack.press(value, user={"id": f"U{draw.randrange(10**6)}", "team_id": TEAM}),
        "answer elsewhere": slack.press(value, response_url=elsewhere),
        "other type": slack.press(value, type=draw.choice(["view_submission", "message_action", 5, None])),
        "unknown button": slack.press(value, draw.choice(["approve ", "APPROVE", "", "delete"])),
        "two buttons": slack.press(value, actions=[{"action_id": "approve", "value": value}] * 2),
        "open": slack.press(value, "open"),
        "nonsense": nonsense,
    }


def test_of_drawn_calls_that_are_forged_replayed_or_prefetched_none_acts(slack, bob, waiting):
    """300 calls; 10,000 under --endurance."""
    draw = random.Random(24)
    replayed_body, at = slack.press(waiting.value, "open"), int(time.time())
    assert slack.request(replayed_body, at=at)[0] == 200
    seen: dict[str, set[int]] = {}
    with no_act(waiting):
        for _ in range(times(300, 10_000)):
            presses = signed_presses(slack, waiting.value, draw)
            kind = draw.choice([*KINDS, "replayed", *presses])
            action = draw.choice(["approve", "reject"])
            if kind == "replayed":
                if time.time() - at > 240:  # a new one to repeat, before the old is too old to be tried as such
                    replayed_body, at = slack.press(waiting.value, "open"), int(time.time())
                    slack.request(replayed_body, at=at)
                status, _ = slack.request(replayed_body, at=at)
            elif kind in presses:
                status, _ = slack.request(presses[kind])
            else:
                status, _ = KINDS[kind](slack, slack.press(waiting.value, action), draw)
            seen.setdefault(kind, set()).add(status)
    # "nonsense" that is equal within a second has one signature, so it is a repetition, too.
    acceptable = {"replayed": {409}, "prefetch": {405}, "too large": {413}, "unlinked": {200}, "open": {200}}
    acceptable |= {key: {400} for key in ("other type", "unknown button", "two buttons", "guest of another team")}
    acceptable["nonsense"] = {400, 403, 409}
    assert {kind: found - acceptable.get(kind, {403}) for kind, found in seen.items()} == {kind: set() for kind in seen}
    assert seen.keys() == {*KINDS, "replayed", *presses}
    assert slack.request(slack.press(waiting.value))[0] == 200  # the same press, signed and linked, acts
    assert Replay.objects.get(pk=waiting.pk).state == "running"


def test_a_link_needs_the_code_in_slack_and_the_confirmation_on_the_page(slack, waiting):
    bob = person("bob")
    page = Browser()
    page.force_login(bob)
    made = page.post("/account/slack/", {"step": "code"}).content.decode()
    code = made.split("/redrive ")[1].split("<")[0]
    assert "is not a code" in slack.command("hello")[1] and "wrong, used or expired" in slack.command("A" * 12)[1]
    assert slack.command(code, team="TOTHER")[0] == 403
    sentence = json.loads(slack.command(code.lower())[1])["text"]
    assert "replays as bob" in sentence
    assert "wrong, used or expired" in slack.command(code, "UEVE", name="eve")[1]  # once only
    with no_act(waiting):
        slack.request(slack.press(waiting.value))  # not confirmed
        assert page.post("/account/slack/", {"step": "confirm", "team": TEAM, "member": "UEVE"}).status_code == 302
        assert SlackLink.objects.get(user=bob).linked_at is None  # not the one who was shown
    shown = page.get("/account/").content.decode()
    assert MEMBER in shown and "Confirm bob" in shown
    page.post("/account/slack/", {"step": "confirm", "team": TEAM, "member": MEMBER})
    assert slack_links.find_user(TEAM, MEMBER) == bob
    assert AuditEvent.objects.get(act="slack.link").actor == "bob"
    eve = person("eve")
    with pytest.raises(Refused, match="already linked"):  # a Slack user is one person
        slack_links.take_code(TEAM, MEMBER, "bob", slack_links.make_code(viewer_of(eve), eve))
    bob.set_password("another horse battery")
    bob.save()
    assert slack_links.find_user(TEAM, MEMBER) is None
    page.force_login(bob)
    page.post("/account/slack/", {"step": "unlink"})
    assert not SlackLink.objects.filter(user=bob).exists() and AuditEvent.objects.filter(act="slack.unlink").exists()


def test_a_code_ends_after_ten_minutes_and_a_read_only_desk_links_no_one(slack, settings):
    bob = person("bob")
    code = slack_links.make_code(viewer_of(bob), bob)
    SlackLink.objects.update(expires_at=timezone.now())
    assert "expired" in slack.command(code)[1]
    code = slack_links.make_code(viewer_of(bob), bob)
    settings.REDRIVE = settings.REDRIVE | {"READ_ONLY": True}
    assert "read-only" in slack.command(code)[1] and not SlackLink.objects.get().team


def test_a_channel_without_secret_or_subscription_has_no_buttons_and_takes_no_press(slack, bob, waiting):
    channel = Channel.objects.get()
    for changes in ({"events": []}, {"secrets": channel.secrets[:1]}, {"disabled_at": timezone.now()}):
        Channel.objects.filter(pk=channel.pk).update(**changes)
        with no_act(waiting):
            assert slack.request(slack.press(waiting.value))[0] == 403
        channel.save()
    Channel.objects.update(secrets=channel.secrets[:1])
    replays.launch(viewer_of(User.objects.get(username="ann")), selection=buried(3), reason="again")
    deliver()
    message = json.loads(slack.endpoint.seen[-1].body)
    assert not [block for block in message["blocks"] if block["type"] == "actions"] and "|Open>" in str(message)


def test_an_answer_that_slack_no_longer_takes_disables_no_channel(slack, bob, waiting):
    slack.endpoint.behave = answering(404, b"expired_url")
    assert slack.request(slack.press(waiting.value))[0] == 200
    deliver()
    assert Delivery.objects.get(notice__type="slack.answer").state == "parked"
    assert (Channel.objects.get().disabled_at, Channel.objects.get().failures) == (None, 0)
    assert Replay.objects.get(pk=waiting.pk).state == "running"  # the page is the place of truth


@pytest.mark.parametrize(
    "document, field",
    [
        ({"secret": "short"}, "secret"),
        ({"secret": SECRET, "url": "https://hooks.slack.com/triggers/T1/2/3"}, "url"),
        ({"secret": SECRET, "url": "https://chat.example/hooks/1"}, "url"),
    ],
)
def test_a_secret_that_cannot_serve_is_refused(slack, document, field):
    given = {"name": "second", "kind": "slack", "url": slack.hook} | document
    with pytest.raises(Refused) as refused:
        notices.save_channel(ENGINE, given)
    assert refused.value.field == field
    with pytest.raises(Refused, match="incoming webhook"):  # nor does a new URL leave a secret without workspace
        notices.save_channel(ENGINE, {"url": "http://127.0.0.1:9/x"}, Channel.objects.get().pk)
    with pytest.raises(Refused):
        notices.end_rotation(ENGINE, Channel.objects.get().pk)
    assert Channel.objects.get().takes_approvals
