"""Hostile text in every stored field, shown on every page, part and export, in a real browser.

Nothing of it runs, nothing is fetched from elsewhere, nothing becomes markup, and the browser has no offence against the
content security policy to report.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import Client
from django.utils import timezone

from dashboard.failures import bulk_views as failure_bulk
from dashboard.web.middleware.entrance import WAYS_IN
from dashboard.web.rights import addresses
from jobs_admin import config
from jobs_admin.core import keys
from jobs_admin.db import audit
from jobs_admin.failures import triage
from jobs_admin.models import (
    Alert,
    AlertEvent,
    ApiToken,
    Attempt,
    Automation,
    AutomationDecision,
    BreakerEvent,
    Channel,
    Delivery,
    DepthSample,
    Failure,
    Group,
    GroupCounter,
    GroupRule,
    GroupSource,
    Notice,
    Payload,
    QueueCounter,
    Release,
    Replay,
    ReplayItem,
    Reschedule,
    Role,
    Rule,
    Runbook,
    SavedView,
    Silence,
    Source,
    Traceback,
    Unfiled,
    Worker,
)  # fmt: skip
from jobs_admin.models.access import ADMIN, Viewer
from tests.kit.browser import is_complaint, is_mistake
from tests.kit.endurance import times
from tests.kit.matrix import Rows, create_policy, path_of, token
from tests.kit.payloads import PAYLOADS

pytestmark = [pytest.mark.server, pytest.mark.browser]

ROWS = len(PAYLOADS)  # a failure for each payload; each field begins at another one
EVERYTHING = "\n".join(PAYLOADS)
SHOWN = times(8, 24)  # failures whose own pages are opened, beside the one that has all payloads in each field


def payload(n: int, field: int) -> str:
    """Return the payload of a field in row `n`: over all rows each field has each payload."""
    return PAYLOADS[(n + field * 13) % len(PAYLOADS)]


def stack(text: str) -> str:
    return f'Traceback (most recent call last):\n  File "{text}", line 3, in {text}\n    {text}\n{text}: {text}\n'


@pytest.fixture
def hostile(store, settings, tmp_path, transactional_db):
    """Rows of every kind, with a payload in every field that a worker or a person fills."""
    file = tmp_path / "sources.toml"
    file.write_text('[sources.shop]\nbackend = "memory"\nurl = "memory:"\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    settings.REDRIVE = settings.REDRIVE | {
        "DEMO_BROKER_URL": settings.REDRIVE["REDIS_URL"],
        "DEMO_PARTNER_URL": "http://127.0.0.1:9",
    }
    for answer in (config.sources, config.adapter):
        answer.cache_clear()
    now = timezone.now()
    source = Source.objects.create(
        name="shop", is_configured=True, is_reachable=False, why_unreachable=EVERYTHING, sampled_at=now, changed_at=now,
        findings=[{"id": payload(n, 0), "severity": "high", "text": payload(n, 1), "fix": payload(n, 2)} for n in range(ROWS)],
    )  # fmt: skip
    evil = get_user_model().objects.create_user(username=f'{payload(0, 3)}"><img src=x onerror=pwned(1000) data-pwn=1>')
    groups = [create_group(n, *(payload(n, field) for field in range(6)), evil) for n in range(ROWS)]
    groups.append(create_group(ROWS, *[EVERYTHING] * 6, evil))
    stacks = Traceback.objects.bulk_create(
        Traceback(
            sha256=hashlib.sha256(str(n).encode()).hexdigest(), text=stack(payload(n, 9) if n < ROWS else EVERYTHING)
        )
        for n in range(ROWS + 1)
    )
    failures = Failure.objects.bulk_create(build_failure(n, groups[n], stacks[n]) for n in range(ROWS + 1))
    for n in range(ROWS + 1):
        Group.objects.filter(pk=groups[n].pk).update(representative=failures[n])
    Attempt.objects.bulk_create(
        build_attempt(n, f, groups[n], stacks[n], k) for n, f in enumerate(failures) for k in (1, 2)
    )
    Payload.objects.bulk_create(build_message(failure) for failure in failures)
    replays = [create_replay(n, failures, groups) for n in range(3)]
    for n in range(ROWS):
        QueueCounter.objects.create(
            source="shop", queue=payload(n, 0), step=900, at=now - timedelta(minutes=5), failed=5
        )
        if n % 5 == 0:
            DepthSample.objects.create(
                source="shop", queue=payload(n, 0), at=now, waiting=n, by_priority={payload(n, 1): 1}
            )
            Release.objects.create(source="shop", version=payload(n, 4), at=now)
            GroupCounter.objects.create(
                group=groups[n], step=3600, at=now.replace(minute=0, second=0, microsecond=0), failed=n
            )
            Worker.objects.create(
                source="shop", name=payload(n, 5), boot="1", seen_at=now, host=payload(n, 6), release=payload(n, 7)
            )
            SavedView.objects.create(name=payload(n, 8), query=payload(n, 9), owner=evil, is_shared=True)
            ApiToken.objects.create(name=payload(n, 10), sha256=str(n), role="viewer", source="shop")
            Unfiled.objects.create(entry_id=payload(n, 11), received_at=now, why=payload(n, 12), body=b"x", size=1)
            GroupRule.objects.create(kind="ignore", frame=payload(n, 0), note=payload(n, 1), author=payload(n, 2), group=groups[n], others=[payload(n, 3)], by=payload(n, 4))  # fmt: skip
            with transaction.atomic():
                viewer = Viewer(payload(n, 2), {"*": ADMIN})
                about = {payload(n, 3): payload(n, 4), "deep": [{payload(n, 5): payload(n, 6)}]}
                audit.record(
                    viewer, payload(n, 7), payload(n, 8), source="shop", reason=payload(n, 9), before=about, after=about
                )
    Role.objects.create(user=evil, source="shop", role="viewer")
    more = {
        "failure": failures[-1], "group": groups[-1], "replay": replays[0], "source": source,
        "savedview": SavedView.objects.first(), "grouprule": GroupRule.objects.first(), "apitoken": ApiToken.objects.first(),
        "policyversion": [create_policy("shop", payload(n, 13)[:200], f"hostile-{n}") for n in range(0, ROWS, 10)][-1],
    }  # fmt: skip
    more["reschedule"] = Reschedule.objects.create(
        source="shop", state="stopped", query=EVERYTHING, scope_max_id=1, below=0, change={"curve": {"backoff": {"kind": payload(0, 1)}}},
        actor=payload(1, 2)[:150], reason=EVERYTHING[:500], why=EVERYTHING[:500], created_at=now, ended_at=now, matched=2, changed=1, left=1,
    )  # fmt: skip
    more |= create_breaker_and_automation(more["policyversion"].name, groups, now)
    more |= create_alerts(evil) | {
        "a_queue": payload(0, 0)
    }  # names of queues are no longer than a segment of an address
    # The account that looks has a name of that kind too.
    root = get_user_model().objects.create_superuser(f"{payload(1, 0)}{payload(40, 0)}", password="x")
    client = Client()
    client.force_login(root)
    found = Rows(
        failures[-1], failures[0], failures[0], groups[-1], replays[0], replays[1], replays[0].items.first(), more
    )
    return found, failures, groups, client.cookies["sessionid"].value, token("root")


def create_breaker_and_automation(name: str, groups: list[Group], now: datetime) -> dict[str, Any]:
    """Dependencies of all groups; a breaker in the store, with its history; an automation, with its diary."""
    for n, group in enumerate(groups):
        GroupSource.objects.create(
            group=group, source="shop", error_type=payload(n, 0), message=payload(n, 1), first_seen=now, last_seen=now,
            dependency=payload(n, 0)[:200], dependency_reason=payload(n, 1)[:200], dependency_by=payload(n, 2)[:150],
        )  # fmt: skip
    evidence = {"failures": 9, "attempts": 9, "kinds": {payload(0, 0): 9}, "first_error": EVERYTHING}
    forced = {"as": "open", "until": None, "by": EVERYTHING, "reason": EVERYTHING, "at": 1}
    document = {"state": "open", "held": 3, "tenants": [payload(n, 1) for n in range(20)], "evidence": evidence}
    config.store().hset(keys.breakers("shop"), name, "1 " + json.dumps({**document, "forced": forced}))
    event = BreakerEvent.objects.create(
        source="shop", name=name, at=now, from_state="closed", to_state="open", why=EVERYTHING[:200], on_hold=3
    )
    automation = Automation.objects.create(
        name="hostile", source="shop", query=EVERYTHING[:1000], min_jobs=1, quiet_s=60, cooldown_s=60, cap_per_hour=1,
        act="assign", parameters={"assignee": payload(0, 5)}, note=EVERYTHING[:1000], mode="live", owner_name=payload(0, 6)[:150],
        created_at=now, changed_at=now, why_not=EVERYTHING[:500], tripped_at=now, why_tripped=EVERYTHING[:500],
    )  # fmt: skip
    decision = AutomationDecision.objects.create(
        automation=automation, n=1, at=now, version=1, state="done", jobs=1, text=EVERYTHING[:500]
    )
    return {
        "dependency": payload(0, 0), "breakerevent": event, "automation": automation, "automationdecision": decision
    }  # fmt: skip


def create_alerts(user) -> dict:
    """Create alerts on queues of such names, in one notification, with all related rows; the last has everything."""
    now, leader = timezone.now(), None
    for n in range(0, ROWS, 4):
        text = [payload(n, field) for field in range(16)] if n + 4 < ROWS else [EVERYTHING] * 16
        rule = Rule.objects.create(
            name=text[0][:100], metric="dead", source="*", queue=text[1][:200], threshold=100, runbook_url=text[2][:500],
            severity=("info", "warning", "critical")[n % 3], changed_by=text[3][:150],
        )  # fmt: skip
        state = ("firing", "acknowledged", "silenced", "resolved")[n // 4 % 4]
        began = now - timedelta(minutes=n + 1)
        alert = Alert.objects.create(
            rule=rule, source="shop", subject=text[0][:255], told_with=leader, state=state, severity=rule.severity,
            value=n + 101, peak=n + 101, threshold=100, opened_at=began, fired_at=began, acknowledged_at=now,
            acknowledged_by=text[3][:150], held_because=text[4][:300], transitions=2, resolved_at=now if state == "resolved" else None,
        )  # fmt: skip
        leader = leader or alert
        channel = Channel.objects.create(
            name=text[5][:100], kind=("webhook", "slack", "pagerduty", "email")[n // 4 % 4], url=text[6][:1000],
            to=text[7], events=[text[8]], why_disabled=text[9][:300], disabled_at=now, changed_by=text[10][:150],
        )  # fmt: skip
        rule.channels.add(channel)
        body = {"title": text[11], "message": text[12], "queue": text[0], "runbook": text[2], "url": text[13]}
        notice = Notice.objects.create(key=f"{n}-{text[14]}"[:120], type="alert.firing", severity=rule.severity, source="shop", alert=leader, body=body, routed_at=now)  # fmt: skip
        delivery = Delivery.objects.create(
            notice=notice, channel=channel, state=("parked", "waiting", "delivered")[n % 3], tries=2, status=503,
            request=text[15], answer=text[1], error=text[2][:300], next_try_at=now + timedelta(hours=1),
            log=[{"at": now.isoformat(), "status": 503, "error": text[3], "took_ms": 5}],
        )  # fmt: skip
        for step, to in enumerate(("firing", state), 1):
            AlertEvent.objects.create(
                alert=alert, n=step, at=began, to=to, value=n, reason=text[4 + step][:500], actor=text[6 + step][:150],
                notice=notice if step == 1 else None,
            )  # fmt: skip
        hours = {"starts_at": now, "ends_at": now + timedelta(hours=1 if n % 8 else 0)}
        matchers = {"source": "shop", "queue": text[1][:200], "rule": text[2][:200]}
        silence = Silence.objects.create(
            matchers=matchers, author=text[3][:150], comment=text[4][:500], ended_by=text[5][:150], **hours
        )
        runbook = Runbook.objects.create(task=f"{n}{text[6]}"[:255], url=text[7][:500], changed_by=text[8][:150])
    return {"alert": leader, "silence": silence, "rule": rule, "channel": channel, "delivery": delivery, "runbook": runbook, "notice": notice}  # fmt: skip


def create_group(
    n: int, error_type: str, message: str, culprit: str, note: str, runbook: str, after: str, user
) -> Group:
    now = timezone.now()
    return Group.objects.create(
        fingerprint=f"v1-{hashlib.sha256(str(n).encode()).hexdigest()[:24]}", error_type=error_type, message=message,
        culprit=culprit, note=note, runbook_url=runbook, issue_url=runbook, regressed_after=after, state="regressed", count=n + 1,
        assignee=user, first_seen=now, last_seen=now,
    )  # fmt: skip


def build_failure(n: int, group: Group, trace: Traceback) -> Failure:
    now = timezone.now()
    text = [payload(n, field) if n < ROWS else EVERYTHING for field in range(20)]
    args = [text[10], {text[11]: [text[12], {text[13]: None}]}]
    return Failure(
        source="shop", queue=text[0], task=text[1], state="dead" if n % 9 else "retrying", group=group, error_type=text[2],
        message=text[3], traceback=trace, kind="exception", reason=text[4], worker=text[5], host=text[6], release=text[7],
        tenant=text[8], labels=text[9], args=json.dumps(args) if n % 3 or n == ROWS else text[14],
        kwargs=json.dumps({text[15]: text[16]}) if n % 3 or n == ROWS else text[17], headers=json.dumps({text[18]: text[19]}),
        first_job_id=f"{text[1]}{n}", job_id=f"{text[2]}{n}", first_failed_at=now, failed_at=now, received_at=now,
    )  # fmt: skip


def build_message(failure: Failure) -> Payload:
    """The message behind its display copy, where that is JSON."""
    complete = failure.args.startswith("[") and failure.kwargs.startswith("{")
    raw = (
        f'{{"args": {failure.args}, "kwargs": {failure.kwargs}}}'.encode()
        if complete
        else b'{"args": [], "kwargs": {}}'
    )
    return Payload(failure=failure, run=1, body=config.payload_keys().encrypt(raw), size=len(raw), sha256="0")


def build_attempt(n: int, failure: Failure, group: Group, trace: Traceback, attempt: int) -> Attempt:
    now = timezone.now()
    text = [payload(n + attempt, field) if n < ROWS else EVERYTHING for field in range(8)]
    return Attempt(
        failure=failure, run=1, attempt=attempt, kind="exception", job_id=text[0], group=group, traceback=trace,
        error_type=text[1], message=text[2], reason=text[3], ended_at=now, received_at=now, worker=text[4], host=text[5],
        release=text[6], policy=text[7],
    )  # fmt: skip


def create_replay(n: int, failures: list[Failure], groups: list[Group]) -> Replay:
    now = timezone.now()
    text = [EVERYTHING if n == 0 else payload(n, field) for field in range(5)]
    members = failures[n * 60 : n * 60 + 60]
    state = ("running", "paused", "done")[n]
    replay = Replay.objects.create(
        state=state, query=text[0], reason=text[1], actor=text[2], held_because=text[3], scope_max_id=members[-1].pk,
        total=60, uncertain=30, failed_again=30, blocked=[{"reason": text[4], "count": 3}], started_at=now, rate=5,
        pace={"style": "steady", "rate": 5},
    )  # fmt: skip
    ReplayItem.objects.bulk_create(
        ReplayItem(
            replay=replay, n=k + 1, failure=failure, run=2, state="uncertain" if k % 2 and n < 2 else "failed_again",
            job_id=payload(k, 0), outcome=payload(k, 1), failed_group=groups[k], sent_at=now, settled_at=now,
        )
        for k, failure in enumerate(members)
    )  # fmt: skip
    return replay


# --- the browser -------------------------------------------------------------------------------------------------

_LISTEN = """
addEventListener("securitypolicyviolation", e => violated(`${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
"""
# What no template of ours writes: marked elements, handlers, addresses that run, attributes that htmx obeys.
_FIND_TROUBLE = """() => {
  const found = [];
  for (const element of document.querySelectorAll("*")) {
    if (element.hasAttribute("data-pwn")) found.push("markup: " + element.outerHTML.slice(0, 150));
    for (const {name, value} of element.attributes) {
      if (/^on/i.test(name)) found.push("handler: " + element.outerHTML.slice(0, 150));
      if (/^(data-)?hx-/.test(name) && /pwned\\(|evil\\.example\\/\\d/.test(value) && !/^[/?]/.test(value))
        found.push("htmx: " + element.outerHTML.slice(0, 150));
      if (/^(href|src|action|formaction|data|xlink:href|poster|srcset|background)$/.test(name)) {
        const address = value.replace(/[\\0-\\x20]/g, "").toLowerCase();
        if (/^(javascript|vbscript|data|blob|feed|view-source):/.test(address) && !address.startsWith("data:image/"))
          found.push("address: " + element.outerHTML.slice(0, 150));
        if (/^(https?:)?[\\/\\\\]{2}/.test(address) && name !== "href") found.push("elsewhere: " + element.outerHTML.slice(0, 150));
      }
    }
  }
  return found.slice(0, 5);
}"""
# Everything opened, hovered, focused and left again: what waits for a person gets one. The events of focus are sent, and the focus
# itself stays: to move it takes the browser as long as all the rest.
_TOUCH = """() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const element of [...document.querySelectorAll("body *")].slice(0, 4000)) {
    for (const name of ["mouseover", "mouseenter", "pointerover", "pointerenter", "animationstart", "transitionend", "toggle"])
      element.dispatchEvent(new Event(name, {bubbles: name.endsWith("over")}));
    if (element.tabIndex >= 0)
      for (const name of ["focus", "focusin", "blur", "focusout"])
        element.dispatchEvent(new FocusEvent(name, {bubbles: name.length > 5}));
  }
}"""

# A form of ours, with other fields.
_SEND = """([path, pairs]) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "post", action: path, enctype: "multipart/form-data"});
  const token = document.querySelector("[name=csrfmiddlewaretoken]").value;
  for (const [name, value] of [["csrfmiddlewaretoken", token], ...pairs]) {
    const field = document.createElement("textarea");
    Object.assign(field, {name, value});
    form.append(field);
  }
  document.body.append(form);
  HTMLFormElement.prototype.submit.call(form);
}"""


class InspectedPage:
    """A page of the browser, and everything that went wrong on it."""

    def __init__(self, browser, url: str, session: str) -> None:
        self.url, self.found, self.at = url, [], ""
        self.context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
        self.context.set_default_timeout(30_000)
        self.context.add_cookies([{"name": "sessionid", "value": session, "url": url}])
        self.context.expose_function("pwned", lambda *n: self.note(f"ran {n}"))
        self.context.expose_function("violated", lambda what: self.note(f"policy: {what}"))
        self.context.add_init_script(_LISTEN)
        # Noticed, not held up: a route through this process would also switch the browser's cache off. Nothing gets out,
        # because the browser of all journeys knows no host but this one.
        self.context.on("request", self._only_here)
        self.page = self.context.new_page()
        self.page.on("dialog", lambda dialog: (self.note(f"dialog {dialog.message}"), dialog.dismiss()))
        self.page.on("pageerror", lambda error: self.note(f"error {error}") if is_mistake(error) else None)
        self.page.on("console", self._console)
        self.page.on("popup", lambda page: self.note(f"popup {page.url}"))

    def note(self, what: str) -> None:
        self.found.append(f"{self.at}: {what}"[:400])

    def _console(self, message) -> None:
        # A part that is asked for from another page finds no places there for its pieces.
        known = r"status of (4\d\d|503)|Response Status Error Code 4\d\d|htmx:oobErrorNoTarget"
        if is_complaint(message) and not re.search(known, message.text):
            self.note(f"console {message.text}")

    def _only_here(self, request) -> None:
        if not request.url.startswith((self.url, "data:image/")):
            self.note(f"fetched {request.url}")

    def open(self, path: str) -> None:
        self.at = path[:120]
        self.page.goto(path, wait_until="load")
        self.inspect()

    def post(self, path: str, **fields: object) -> None:
        """Submit a form from the open page, and check the answer as a page; a field of several values is a list."""
        pairs = [(name, str(one)) for name, row in fields.items() for one in (row if isinstance(row, list) else [row])]
        self.at = f"POST {path[:100]}"
        with self.page.expect_navigation(wait_until="load") as gone:
            self.page.evaluate(_SEND, [path, pairs])
        assert gone.value.status in (200, 409, 422), (
            path,
            gone.value.status,
        )  # the page itself, not one about an error
        self.inspect()

    def inspect(self) -> None:
        self.page.evaluate(_TOUCH)
        for what in self.page.evaluate(_FIND_TROUBLE):
            self.note(what)

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def inspect_page(hostile, live_server, browser):
    """A browser whose user may see everything."""
    opened = InspectedPage(browser, live_server.url, hostile[3])
    yield opened
    opened.close()


def none_of(found: list[str]) -> None:
    assert not found, "\n".join(["", *list(dict.fromkeys(found))[:40]])


def answers(*kinds: str) -> list:
    """Every address of the URLconf that answers to a GET, but for the way out."""
    return [a for a in addresses() if "GET" in a.methods and a.kind in kinds and a.name not in {"logout", "admin:"}]


# What an address is asked, so that it shows what stands in the rows.
PARAMETERS = {"failure-complete": "q=queue:&at=6", "failure-diff": "left=1.1&right=1.2", "failure-newer": "q=&since=1"}
PARAMETERS |= dict.fromkeys(("incident", "incident-text"), "source=shop&until=2100-01-01")


def path_to(address, rows: Rows) -> str:
    return (
        f"{path_of(address, rows)}?{PARAMETERS.get(address.name, 'q=')}"
        if address.kind == "page"
        else path_of(address, rows)
    )


def as_page(address) -> bool:
    return address.name not in {"failure-text", "failure-export", "incident-text", "healthz", "readyz"}


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_nothing_runs_on_any_page(hostile, inspect_page):
    rows, failures, groups, *_ = hostile
    for address in answers("page"):
        if as_page(address):
            inspect_page.open(path_to(address, rows))
    for n in range(0, len(failures) - 1, 50):  # each payload in each column of the lists
        inspect_page.open(f"/failures/?after={failures[n].pk + 50}")
    for pk in Alert.objects.order_by("-pk").values_list("pk", flat=True)[:6]:
        inspect_page.open(f"/alerts/{pk}/")
    for n in range(SHOWN):
        inspect_page.open(f"/failures/{failures[n * (ROWS // SHOWN)].pk}/")
        if n % 3 == 0:
            inspect_page.open(f"/groups/{groups[n * (ROWS // SHOWN)].fingerprint}/")
    none_of(inspect_page.found)


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_nothing_runs_in_what_a_page_shows_back(hostile, inspect_page):
    """Hostile text in the address itself: searches, cursors, names."""
    parts = [EVERYTHING[start : start + 900] for start in range(0, len(EVERYTHING), 900)]
    for n, text in enumerate(parts):
        page = ("/failures/?q={}", "/groups/?q={}", "/audit/?act={}", "/replays/new/?q={}")[n % 4]
        inspect_page.open(page.format(quote(text)))
    for text in (parts[0], PAYLOADS[200], PAYLOADS[-3]):
        inspect_page.open(f"/login/?next={quote(text)}")
        inspect_page.open(f"/{quote(text[:200], safe='')}")
        inspect_page.open(f"/groups/{quote(text[:200], safe='')}/")
    none_of(inspect_page.found)


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_nothing_runs_in_parts_that_htmx_swaps_in_or_in_what_an_act_shows(hostile, inspect_page):
    rows, failures, *_ = hostile
    inspect_page.open("/queues/")
    for address in answers("page"):
        # Not what leads on to another page.
        if as_page(address) and address.name not in {*WAYS_IN, "second-factor", "policy-of"}:
            inspect_page.at = f"part of {address.route}"
            path = path_to(address, rows)
            inspect_page.page.evaluate(
                """async path => {
                    const probe = document.createElement("div");
                    document.body.append(probe);
                    await Promise.race([htmx.ajax("GET", path, {target: probe, swap: "innerHTML"}), new Promise(r => setTimeout(r, 2000))]);
                }""",
                path,
            )
            inspect_page.page.evaluate(_TOUCH)
            for what in inspect_page.page.evaluate(_FIND_TROUBLE):
                inspect_page.note(what)
            inspect_page.page.evaluate("document.body.lastElementChild.remove()")
    for n in (1, 2):
        inspect_page.open(f"/failures/{failures[n].pk}/")
        form = inspect_page.page.locator("form[action$='/discard/']").first
        if form.count():
            with suppress(Exception):
                form.evaluate("form => form.requestSubmit()")
                inspect_page.page.wait_for_timeout(300)
        inspect_page.page.keyboard.press("Control+k")
        inspect_page.page.keyboard.type("<img")
        inspect_page.page.keyboard.press("Escape")
        for what in inspect_page.page.evaluate(_FIND_TROUBLE):
            inspect_page.note(what)
    none_of(inspect_page.found)


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_nothing_runs_on_pages_that_answer_a_form(hostile, inspect_page, monkeypatch):
    """Previews, refusals and the step of a large act: pages that no address opens."""
    _, failures, groups, *_ = hostile
    inspect_page.open("/groups/rules/")
    names = [group.fingerprint for group in groups[-40:]]
    inspect_page.post("/groups/rules/preview/", kind="merge", groups=names)
    inspect_page.post("/groups/rules/preview/", kind="merge", groups=[names[-1], EVERYTHING[:900]], by=EVERYTHING[:900])
    inspect_page.post("/groups/rules/preview/", kind="split", groups=names[-1:], by="tenant")
    inspect_page.post("/groups/rules/preview/", kind="split", groups=names[-1:], by=f"kwargs.{payload(3, 0)}")
    for n in (0, 40, 90):
        inspect_page.post("/groups/rules/preview/", kind="ignore", frame=f"{payload(n, 0)} in *")
    inspect_page.post("/groups/rules/preview/", kind=payload(5, 0), frame=EVERYTHING[:900])
    chosen = [failure.pk for failure in failures[-60:]]
    inspect_page.post("/replays/new/", selection=chosen, step="preview")
    Source.objects.update(is_reachable=True)
    inspect_page.post("/replays/new/", selection=chosen, step="preview")
    assert inspect_page.page.locator("h1", has_text=re.compile(r"^Replay [\d,]+\s+jobs")).count() == 1
    inspect_page.post("/replays/new/", q=EVERYTHING[:900], step="start", reason=EVERYTHING[:450], amount=payload(7, 0))
    inspect_page.post(
        "/replays/new/", selection=chosen, step="start", reason=payload(8, 0), confirm=payload(9, 0), unit=payload(2, 0)
    )
    edited = f"/failures/{failures[1].pk}/edit/"
    inspect_page.post(
        edited, args=json.dumps(PAYLOADS[:8]), kwargs=json.dumps({payload(n, 0): payload(n, 1) for n in range(8)})
    )
    assert inspect_page.page.locator("h1", has_text="Review changes").count() == 1
    inspect_page.post(edited, args=EVERYTHING, kwargs=EVERYTHING, reason=payload(4, 0))
    # Small steps: the page of a large act is shown between two of them.
    monkeypatch.setattr(triage, "_AT_ONCE", 1)
    monkeypatch.setattr(failure_bulk, "STEP_S", 0)
    inspect_page.post("/failures/bulk/", act="discard", everything="on", q="state:dead", reason=EVERYTHING[:450])
    assert inspect_page.page.locator("h1", has_text="Discarding").count() == 1
    inspect_page.open("/alerts/silences/")
    inspect_page.post(
        "/alerts/silences/save/",
        source="shop",
        queue=payload(3, 0),
        rule=payload(4, 0),
        comment="",
        until=EVERYTHING[:900],
    )
    inspect_page.post(
        "/alerts/silences/save/",
        queue=EVERYTHING[:900],
        comment=EVERYTHING[:900],
        severity=payload(5, 0),
        **{"for": 3600},
    )
    inspect_page.open("/alerts/rules/new/")
    texts = {
        "source": payload(1, 0),
        "queue": payload(2, 0),
        "task": payload(3, 0),
        "runbook_url": payload(4, 0),
        "view": payload(5, 0),
    }
    wrong = {
        "threshold": payload(6, 0),
        "for_s": payload(7, 0),
        "severity": payload(8, 0),
        "channels": [payload(9, 0), payload(10, 0)],
    }
    for path in ("preview/", "create/"):
        inspect_page.post(f"/alerts/rules/{path}", name=EVERYTHING[:900], metric=payload(0, 0), **texts, **wrong)
        inspect_page.post(f"/alerts/rules/{path}", name=payload(11, 0), metric="dead", threshold=1, **texts)
    inspect_page.open("/alerts/channels/new/")
    for kind in ("webhook", "email", payload(3, 1)):
        inspect_page.post(
            "/alerts/channels/create/", name=payload(4, 1), kind=kind, url=payload(5, 1), to=EVERYTHING[:900], secret=payload(6, 1),
            events=payload(7, 1),
        )  # fmt: skip
    inspect_page.open("/alerts/runbooks/")
    inspect_page.post("/alerts/runbooks/save/", task=EVERYTHING[:900], url=payload(8, 1))
    inspect_page.open("/failures/")
    inspect_page.post("/failures/bulk/", act="discard", selection=chosen[:2], q=payload(6, 0), reason=payload(7, 0))
    inspect_page.post("/failures/bulk/", act=payload(8, 0), selection=chosen[:2])
    inspect_page.post("/failures/bulk/", act="discard", selection=[payload(9, 0)])
    none_of(inspect_page.found)


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_nothing_runs_in_djangos_admin(hostile, inspect_page):
    for address in answers("admin"):
        if address.right != "nobody" and not address.name.endswith(("logout", "jsi18n")):
            inspect_page.open(path_of(address, hostile[0]))
    none_of(inspect_page.found)


def formulas(route: str, answer) -> list[str]:
    """Cells that a spreadsheet would work out. A text of several lines is one cell."""
    text = b"".join(answer.streaming_content).decode()
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    begun = [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
    assert len(cells) > 100, route
    return [f"{route}: a formula: {cell[:60]}" for cell in begun if not re.fullmatch(r"-?[\d.]+", cell)][:3]


@pytest.mark.long("Opens pages with hostile values in a browser.")
def test_exports_and_answers_of_the_api_are_no_pages(hostile, live_server, client):
    """A browser that is led there shows text, or keeps a file: each says what it is, and is not to be guessed at."""
    rows, _, _, session, bearer = hostile
    client.cookies["sessionid"] = session
    found = []
    for address in answers("page", "api"):
        if address.kind == "page" and as_page(address):
            continue
        # A depth is of one queue.
        of_queue = {"source": "shop", "queue": payload(0, 0)} if address.name == "api:get_depth" else {}
        answer = client.get(path_of(address, rows), of_queue, headers={"Authorization": f"Bearer {bearer}"})
        kind = answer["Content-Type"].split(";")[0]
        if kind not in {
            "application/json",
            "text/plain",
            "text/csv",
            "text/markdown",
            "application/x-ndjson",
            "application/jsonl",
        }:
            found.append(f"{address.route} is {kind}")
        if answer.headers.get("X-Content-Type-Options") != "nosniff" or answer.status_code not in {200, 404, 503}:
            found.append(f"{address.route} {answer.status_code} {answer.headers}")
        if kind == "text/csv":
            found += formulas(address.route, answer)
    for form in ("jsonl", "csv"):  # the page's own, which is a POST
        answer = client.post(f"/failures/export/{form}/", {"q": "state:any"})
        stored = answer.headers["Content-Disposition"].startswith("attachment;")
        if answer.status_code != 200 or not stored or answer.headers.get("X-Content-Type-Options") != "nosniff":
            found.append(f"export {form} {answer.status_code} {answer.headers}")
        if form == "csv":
            found += formulas("export", answer)
    none_of(found)
    assert urlsplit(live_server.url).hostname == "localhost"


def test_markup_that_came_through_would_be_noticed(inspect_page):
    inspect_page.open("/queues/")
    inspect_page.page.evaluate(
        "html => document.body.insertAdjacentHTML('beforeend', html)",
        "\n".join(p for p in PAYLOADS if "http-equiv" not in p),
    )

    def reported():
        return {found[0] for line in inspect_page.found if (found := re.search(r"policy: (script|img|style)", line))}

    all_three = {"policy: script", "policy: img", "policy: style"}
    for _ in range(600):  # the browser tells of them one by one
        if reported() == all_three:
            break
        inspect_page.page.wait_for_timeout(100)
    assert reported() == all_three and len(inspect_page.page.evaluate(_FIND_TROUBLE)) == 5


def test_whatever_requests_something_elsewhere_would_be_noticed(inspect_page):
    inspect_page.open("/queues/")
    with suppress(Exception):  # nobody answers there
        inspect_page.page.goto("http://evil.example/7")
    assert [line for line in inspect_page.found if "fetched http://evil.example/7" in line]
