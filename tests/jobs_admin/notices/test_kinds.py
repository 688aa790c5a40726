"""The same facts for a program, a chat, a pager and a mailbox; and what a name in them can not do there."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from email.policy import default

import pytest
from django.test import override_settings
from django.urls import resolve

from jobs_admin import config, notices
from jobs_admin.models import Alert, Channel, Delivery, Rule
from jobs_admin.notices import sealing
from tests.kit.endpoints import answering
from tests.kit.notices import ANN, deliver, due_now, notice

pytestmark = pytest.mark.django_db

KEY = "0123456789abcdef0123456789ABCDEF"
ALERT = {
    "alert_id": "7", "dedup_key": "redrive-alert-7", "value": 1243, "threshold": 100, "since": "2026-11-22T03:00:00+00:00",
    "top_groups": [{"title": "SMTPServerDisconnected: <!channel>", "count": 1100, "url": "https://desk.example/groups/v1-a/"}],
    "url": "https://desk.example/alerts/7/", "failures_url": "https://desk.example/failures/?q=a|b>c",
    "replay_url": "https://desk.example/replays/new/?q=a", "runbook": "https://wiki.example/emails",
    "audit_head": "1204:9f86d081884c7d65",
}  # fmt: skip


def channel(kind: str, there, **more) -> Channel:
    saved = notices.save_channel(ANN, {"name": kind, "kind": kind, "url": there.url} | more)
    return Channel.objects.get(pk=saved.channel.pk)


def read_body(there, n=-1):
    return json.loads(there.seen[n].body)


# -- webhook ------------------------------------------------------------------------------------------------------


def test_a_webhook_has_the_documented_fields_and_stays_under_20_kb(endpoint):
    there = endpoint(answering(204))
    target = channel("webhook", there)
    notice(target, body=ALERT)
    notice(
        target, key="alert-1-2", body=ALERT | {"top_groups": [{"title": "x" * 5_000, "count": n} for n in range(500)]}
    )
    notice(target, key="alert-1-3", body=ALERT | {f"k{n}": "é" * 900 for n in range(40)})
    deliver()
    first, second, third = (read_body(there, n) for n in range(3))
    assert (
        first["type"] == "alert.firing"
        and first["data"].items() >= (ALERT | {"severity": "warning", "source": "shop"}).items()
    )
    assert all(len(seen.body) <= 20_000 for seen in there.seen)
    assert second["data"]["message"] == third["data"]["message"] == "emails has 1,243 dead jobs"


def test_an_address_is_complete_or_left_out(endpoint):
    there = endpoint(answering(200, b"ok"))
    one, two = channel("webhook", there), channel("slack", there)
    fitting, beyond = "https://desk.example/?q=" + "a%20" * 400, "https://desk.example/?q=" + "a" * 3_000
    body = ALERT | {
        "failures_url": fitting,
        "replay_url": fitting,
        "runbook": beyond,
        "top_groups": [{"title": "x", "url": beyond}],
    }
    notice(one, body=body)
    notice(two, key="alert-1-2", body=body)
    deliver()
    bodies = [json.loads(seen.body) for seen in there.seen]
    (data,) = [one["data"] for one in bodies if "data" in one]
    (slack,) = [one for one in bodies if "blocks" in one]
    texts = [block["text"] for block in slack["blocks"] if "text" in block]
    assert all(text["verbatim"] for text in texts if text["type"] == "mrkdwn")
    assert data["failures_url"] == data["replay_url"] == fitting and data["top_groups"] == [{"title": "x"}]
    assert "runbook" not in data
    links = texts[-1]["text"]
    assert links == f"<https://desk.example/alerts/7/|Open> · <{fitting}|Open failures>"


def test_a_notice_of_a_job_or_of_a_replay_links_to_its_page(endpoint, settings):
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://desk.example"}
    there = endpoint(answering(204))
    target = channel("webhook", there, events=["job.escalated", "replay.held"])
    notice(key="escalated:5:1", type="job.escalated", body={"failure": 5, "queue": "emails"})
    notice(key="replay:9:held:1", type="replay.held", source="*", body={"replay": 9})
    deliver()
    assert [read_body(there, n)["data"]["url"] for n in (0, 1)] == [
        "https://desk.example/failures/5/",
        "https://desk.example/replays/9/",
    ]
    assert (
        "source" not in read_body(there)["data"]
        and Delivery.objects.filter(channel=target, state="delivered").count() == 2
    )


@pytest.mark.parametrize(
    "path, view", [("failures/5/", "redrive:failure-detail"), ("replays/9/", "redrive:replay-detail")]
)
def test_the_pages_that_are_linked_to_are_there(path, view, settings):
    settings.REDRIVE = settings.REDRIVE | {"URL": "https://desk.example"}
    assert config.page_at(path) == f"https://desk.example/{path}" and resolve(f"/{path}").view_name == view


def test_a_channel_whose_secret_no_key_opens_reports_it_and_nothing_leaves(endpoint, settings):
    there = endpoint(answering(204))
    target = channel("webhook", there)
    Channel.objects.update(secrets=["gAAAAA-of-another-key"])
    notice(target)
    deliver()
    assert "REDRIVE_PAYLOAD_KEYS" in Delivery.objects.get().error and not there.seen


# -- Slack --------------------------------------------------------------------------------------------------------


def test_slack_gets_blocks_in_which_a_name_mentions_no_one(endpoint):
    there = endpoint(answering(200, b"ok"))
    target = channel("slack", there)
    assert target.url == "" and there.url not in str(target.secrets) and sealing.unseal(target.secrets) == [there.url]
    notice(
        target, body=ALERT | {"title": "<!here> *bold*\nsecond line", "message": "<@U1> & <https://evil.example|click>"}
    )
    deliver()
    body = read_body(there)
    header, facts, links, head = body["blocks"]
    assert head["elements"] == [{"type": "plain_text", "text": "Audit head: 1204:9f86d081884c7d65"}]
    assert header["text"] == {"type": "plain_text", "text": "🟠 <!here> *bold* second line"}
    assert "&lt;@U1&gt; &amp; &lt;https://evil.example|click&gt;" in facts["text"]["text"]
    assert "1,100 × SMTPServerDisconnected: &lt;!channel&gt;" in facts["text"]["text"]
    assert "<https://desk.example/failures/?q=a%7Cb&gt;c|Open failures>" in links["text"]["text"]
    assert "<!" not in body["text"]
    assert there.url not in Delivery.objects.get().request


@pytest.mark.parametrize(
    "status, body", [(403, b"action_prohibited"), (404, b"no_service"), (410, b"channel_is_archived")]
)
def test_slacks_refusal_for_good_disables_the_channel(endpoint, status, body):
    there = endpoint(answering(status, body))
    target = channel("slack", there)
    notice(target)
    deliver()
    target.refresh_from_db()
    row = Delivery.objects.get()
    assert (
        target.disabled_at
        and f"({status})" in target.why_disabled
        and (row.state, row.answer) == ("parked", body.decode())
    )


def test_what_slack_cannot_read_is_parked_and_the_channel_stays(endpoint):
    there = endpoint(answering(400, b"invalid_payload"))
    target = channel("slack", there)
    notice(target)
    deliver()
    target.refresh_from_db()
    assert target.disabled_at is None and Delivery.objects.get().state == "parked"


# -- PagerDuty ----------------------------------------------------------------------------------------------------


def test_pagerduty_triggers_and_resolves_one_incident_by_its_key(endpoint):
    there = endpoint(answering(202, b'{"status":"success"}'))
    target = channel("pagerduty", there, secret=KEY)
    notice(target, body=ALERT, severity="critical")
    notice(target, key="alert-1-2", body=ALERT)
    notice(target, key="alert-1-3", type="alert.resolved", body=ALERT)
    deliver()
    first, again, end = (read_body(there, n) for n in range(3))
    assert [one["event_action"] for one in (first, again, end)] == ["trigger", "trigger", "resolve"]
    assert {one["dedup_key"] for one in (first, again, end)} == {"redrive-alert-7"}
    assert {one["routing_key"] for one in (first, again, end)} == {KEY}
    assert first["payload"]["severity"] == "critical" and first["payload"]["source"] == "shop"
    assert first["payload"]["summary"] == "Dead Letter Queue Growing: emails has 1,243 dead jobs"
    assert first["payload"]["custom_details"]["Value"] == "1,243" and first["client_url"] == ALERT["url"]
    assert {"href": ALERT["replay_url"], "text": "Review and replay"} in first["links"]
    assert KEY not in "".join(Delivery.objects.values_list("request", flat=True))


def test_what_pagerduty_refuses_is_parked_and_the_channel_stays(endpoint):
    there = endpoint(answering(400, b'{"status":"invalid event"}'))
    target = channel("pagerduty", there, secret=KEY)
    notice(target, body=ALERT)
    deliver()
    target.refresh_from_db()
    assert (Delivery.objects.get().state, target.disabled_at) == ("parked", None)
    assert Delivery.objects.get().error == "The endpoint answered 400. No further tries."


def test_a_late_retry_does_not_open_again_what_is_resolved(endpoint):
    there = endpoint(answering(500))
    target = channel("pagerduty", there, secret=KEY)
    rule = Rule.objects.create(name="Deep", metric="dead", threshold=5)
    alert = Alert.objects.create(
        rule=rule,
        source="shop",
        subject="emails",
        severity="warning",
        value=6,
        threshold=5,
        opened_at="2026-11-22T00:00Z",
    )
    notice(target, body=ALERT, alert=alert)
    deliver()
    there.behave = answering(202)
    notice(target, key="alert-1-2", type="alert.resolved", body=ALERT, alert=alert)
    deliver()
    due_now()
    deliver()
    assert [read_body(there, n)["event_action"] for n in range(len(there.seen))] == ["trigger", "resolve"]
    first = Delivery.objects.get(notice__key="alert-1-1")
    assert (first.state, first.error) == ("parked", "A later notice of the same alert was already delivered.")


def test_pagerduty_is_queried_where_it_is_unless_another_region_is_named(settings):
    settings.REDRIVE = settings.REDRIVE | {"WEBHOOK_ALLOW": ["events.pagerduty.com"]}
    saved = notices.save_channel(ANN, {"name": "duty", "kind": "pagerduty", "secret": KEY})
    assert saved.channel.url == "https://events.pagerduty.com/v2/enqueue" and saved.secret is None


# -- e-mail -------------------------------------------------------------------------------------------------------


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much SMTP as a mail needs."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.mails: list[tuple[list[str], bytes]] = []
        self.refuses = b""
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Conversation(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        to = []
        self._reply(b"220 here")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"RCPT" and self.server.refuses:
                self._reply(self.server.refuses)
            elif word == b"RCPT":
                to.append(line.split(b"<")[1].split(b">")[0].decode())
                self._reply(b"250 ok")
            elif word == b"DATA":
                self._reply(b"354 go on")
                body = b""
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    body += line
                self.server.mails.append((to, body))
                self._reply(b"250 taken")
            elif word == b"QUIT":
                self._reply(b"221 bye")
                return
            else:
                self._reply(b"250 ok")

    def _reply(self, line: bytes) -> None:
        self.wfile.write(line + b"\r\n")


@pytest.fixture
def mail_server(settings):
    server = MailServer()
    settings.REDRIVE = settings.REDRIVE | {"SENDS_MAIL": True}
    with override_settings(
        EMAIL_BACKEND="django.core.mail.backends.smtp.EmailBackend",
        EMAIL_HOST="127.0.0.1",
        EMAIL_PORT=server.server_address[1],
    ):
        yield server
    server.shutdown()
    server.server_close()


def mailbox(*to: str) -> Channel:
    saved = notices.save_channel(ANN, {"name": "mail", "kind": "email", "to": list(to)})
    return Channel.objects.get(pk=saved.channel.pk)


def test_a_mail_has_the_facts_and_the_links_and_no_header_that_a_name_wrote(mail_server):
    target = mailbox("ops@example.com", "lead@example.com")
    hostile = {"title": "Dead\r\nBcc: evil@example.com\r\n\r\n<script>", "message": "a\r\nSubject: b\u202e"}
    notice(target, body=ALERT | hostile)
    notice(target, key="alert-1-2", type="alert.resolved", body=ALERT)
    deliver()
    (to, raw), (_, second) = mail_server.mails
    first, done = (email.message_from_bytes(one, policy=default) for one in (raw, second))
    assert to == ["ops@example.com", "lead@example.com"]
    assert first["Subject"] == "[warning] Dead Bcc: evil@example.com <script>" and first["Bcc"] is None
    assert done["Subject"] == "[warning] Resolved: Dead Letter Queue Growing"
    assert first["Message-ID"].startswith("<alert-1-1@") and first["References"] == done["References"]
    body = first.get_content()
    assert first.get_content_type() == "text/plain" and "\u202e" not in body
    for part in (
        "Queue: emails",
        "Value: 1,243",
        "1,100 × SMTPServerDisconnected",
        f"Review and replay: {ALERT['replay_url']}",
        "Audit head: 1204:9f86d081884c7d65",
    ):
        assert part in body
    assert set(Delivery.objects.values_list("state", flat=True)) == {"delivered"}


@pytest.mark.parametrize("code", [550, 551, 553, 554])
def test_where_every_address_is_refused_for_good_the_channel_is_disabled(mail_server, code):
    target = mailbox("ops@example.com", "lead@example.com")
    mail_server.refuses = b"%d no such user" % code
    sent_notice = notice(target)
    deliver()
    row, why = Delivery.objects.get(notice=sent_notice), f"The mail server permanently refused all addresses ({code})."
    assert (row.state, row.status, row.error) == ("parked", code, why) and "lead@example.com" in row.answer
    target.refresh_from_db()
    assert target.disabled_at is not None and target.why_disabled == why


def test_a_mail_that_is_refused_for_good_is_parked_and_one_that_is_not_is_tried_again(mail_server):
    target = mailbox("ops@example.com")
    for answer, state in ((b"552 too large", "parked"), (b"451 later", "waiting")):
        mail_server.refuses = answer
        sent_notice = notice(target, key=f"k{state}")
        deliver()
        row = Delivery.objects.get(notice=sent_notice)
        assert (row.state, row.status) == (state, int(answer[:3])) and "ops@example.com" in row.answer
    assert Channel.objects.get(pk=target.pk).disabled_at is None


def test_a_mail_server_that_is_away_is_reported(mail_server, settings):
    target = mailbox("ops@example.com")
    with override_settings(EMAIL_PORT=1):
        notice(target)
        deliver()
    row = Delivery.objects.get()
    assert row.state == "waiting" and row.error.startswith("The mail server is unreachable: ")
