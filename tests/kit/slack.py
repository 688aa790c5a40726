"""Slack as a desk meets it: an endpoint that gets messages and answers, and a sender of signed requests."""

from __future__ import annotations

import http.client
import json
import socket
import time
from urllib.parse import urlencode, urlsplit

import httpcore
import pytest
from cryptography.fernet import Fernet
from django.contrib.auth import get_user_model

from jobs_admin import config, notices
from jobs_admin.core.slack_signature import sign
from jobs_admin.models import Role
from jobs_admin.models.access import ENGINE, viewer_of
from jobs_admin.notices import delivering, posting
from jobs_admin.rights import slack_links
from tests.kit.endpoints import answering, certified, opened
from tests.kit.notices import deliver
from tests.kit.people import PASSWORD
from tests.kit.sources import forget_configuration

SECRET, TEAM, MEMBER = "8f742231b10e8888abcd99fff85a5000", "T024BE7LD", "U2CERLKJA"
HOOK = f"https://hooks.slack.com/services/{TEAM}/B1/secret"


class Slack:
    def __init__(self, endpoint, url: str) -> None:
        self.endpoint = endpoint
        self.server = urlsplit(url).netloc
        self.n = 0
        self.received: list[tuple[str, dict]] = []  # path and body

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

    def press(self, value: str, action: str, member: str = MEMBER, **changes) -> bytes:
        """The body of a press; each is unlike the others, as Slack's trigger ids make them."""
        self.n += 1
        payload = {
            "type": "block_actions", "team": {"id": TEAM}, "user": {"id": member, "team_id": TEAM, "name": "bob"},
            "trigger_id": f"{self.n}.1", "response_url": f"https://hooks.slack.com/actions/{TEAM}/{self.n}/once",
            "actions": [{"action_id": action, "type": "button", "value": value}],
        } | changes  # fmt: skip
        return urlencode({"payload": json.dumps(payload)}).encode()

    def command(self, text: str, member=MEMBER, team=TEAM, name="bob") -> tuple[int, str]:
        self.n += 1
        fields = {"command": "/redrive", "text": text, "team_id": team, "user_id": member, "user_name": name}
        return self.request(urlencode(fields | {"trigger_id": self.n}).encode())

    def messages(self) -> list[dict]:
        return self._received("/services/")

    def answers(self) -> list[dict]:
        return self._received("/actions/")

    def _received(self, path: str) -> list[dict]:
        deliver()
        self.received += [(one.path, json.loads(one.body)) for one in self.endpoint.seen[len(self.received) :]]
        return [body for at, body in self.received if at.startswith(path)]

    def review(self, value: str, member: str = MEMBER) -> dict:
        """Press *Review*, and return the answer as Slack gets it."""
        count = len(self.answers())
        assert self.request(self.press(value, "review", member)) == (200, "")
        (answer,) = self.answers()[count:]
        return answer


def buttons_of(message: dict) -> dict[str, dict]:
    """The buttons of a message by their action."""
    rows = [block["elements"] for block in message.get("blocks", ()) if block["type"] == "actions"]
    return {one["action_id"]: one for row in rows for one in row}


@pytest.fixture
def slack(store, shop, settings, live_server, tmp_path, monkeypatch):
    """A desk with a channel in Slack. Of the network, the name hooks.slack.com and its port lead to the endpoint."""
    tls, trusted = certified(tmp_path, "hooks.slack.com")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    posting._trust.cache_clear()
    resolve, connect = socket.getaddrinfo, httpcore.SyncBackend.connect_tcp
    here = {"hooks.slack.com": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: resolve(here.get(host, host), *rest, **more))
    more = {"PAYLOAD_KEYS": [Fernet.generate_key().decode()], "WEBHOOK_ALLOW": ["127.0.0.0/8"], "APPROVE_ABOVE": "2"}
    settings.REDRIVE = settings.REDRIVE | more | {"SLACK_SIGNING_SECRET": SECRET}
    forget_configuration(config)
    delivering._lanes.clear()
    with opened(answering(200, b"ok"), tls=tls) as (endpoint,):
        monkeypatch.setattr(
            httpcore.SyncBackend,
            "connect_tcp",
            lambda self, host, port, **rest: connect(self, host, endpoint.port if port == 443 else port, **rest),
        )
        document = {"name": "ops", "kind": "slack", "url": HOOK, "events": ["replay.awaiting_approval"]}
        notices.save_channel(ENGINE, document)
        yield Slack(endpoint, live_server.url)
    posting._trust.cache_clear()
    delivering._lanes.clear()
    forget_configuration(config)


def person(name: str, role: str = "operator", source: str = "shop"):
    user = get_user_model().objects.create_user(name, password=PASSWORD)
    Role.objects.create(user=user, source=source, role=role)
    return user


def link(user, member: str = MEMBER) -> None:
    code = slack_links.make_code(viewer_of(user), user)
    slack_links.redeem_code(TEAM, member, user.get_username(), code)
    slack_links.confirm(viewer_of(user), user, TEAM, member)
