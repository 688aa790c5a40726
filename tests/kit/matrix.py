"""Two sources full of rows, the people who may see one of them, and a real request for each address of the URLconf.

What an address's parameters stand for is found by their names: a new address of a known noun is covered as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.apps import apps
from django.contrib.auth import get_user_model
from django.contrib.contenttypes.models import ContentType
from django.db import connection, transaction
from django.http import HttpResponse
from django.utils import timezone

from dashboard.web.rights import Address, addresses
from jobs_admin import config
from jobs_admin.core import keys, policy
from jobs_admin.core.path_segment import escaped
from jobs_admin.db import audit
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
    FailureCount,
    Group,
    GroupCounter,
    GroupRule,
    GroupSource,
    Notice,
    Pause,
    Payload,
    PolicyVersion,
    QueueCounter,
    RefusedReports,
    Release,
    Replay,
    ReplayItem,
    Reschedule,
    Role,
    Rule,
    Runbook,
    SavedView,
    SecondFactor,
    Silence,
    Source,
    SourceKey,
    Traceback,
    Unfiled,
    Worker,
)  # fmt: skip
from jobs_admin.models.access import ENGINE
from tests.kit.browsing import Browser

# Stands in every field of the source that is out of sight; as does a number that nothing else comes to.
CANARY, NUMBER = "zircon", 918273
SHOP, BANK, DEMO = f"{CANARY}-shop", "bank", "shop"
TRACE = (
    'Traceback (most recent call last):\n  File "/srv/{0}/app.py", line 3, in {0}\n    raise {0}Error\n{0}Error: {0}'
)


# --- rows --------------------------------------------------------------------------------------------------------


@dataclass
class Rows:
    """One of each noun, of one source: what the parameters of addresses stand for."""

    failure: Failure
    discarded: Failure
    quarantined: Failure
    group: Group
    replay: Replay
    paused: Replay
    uncertain: ReplayItem
    more: dict[str, Any] = field(default_factory=dict)  # by name of model: what Django's admin shows


def create_rows(source: str, word: str) -> Rows:
    """Rows of `source` with `word` in every field that holds text."""
    now = timezone.now()
    Source.objects.create(
        name=source, is_configured=True, is_reachable=True, sampled_at=now, changed_at=now,
        findings=[{"id": "x", "severity": "high", "text": f"{word} finding", "fix": f"{word} fix"}],
    )  # fmt: skip
    number = NUMBER if source == SHOP else 7
    group = create_group(f"{word}Error", word, number)
    trace = Traceback.objects.create(sha256=hashlib.sha256(word.encode()).hexdigest(), text=TRACE.format(word))

    def bury(n: int, **changes: Any) -> list[Failure]:
        start = Failure.objects.count()
        values = {
            "source": source, "queue": f"{word}-queue", "task": f"{word}.task", "state": "dead", "group": group,
            "error_type": f"{word}Error", "message": f"{word} message", "traceback": trace, "kind": "exception",
            "reason": f"{word} reason", "first_failed_at": now, "failed_at": now, "received_at": now,
            "worker": f"{word}-worker", "host": f"{word}-host", "release": f"{word}-1", "tenant": f"{word}-tenant",
            "args": json.dumps([word]), "kwargs": json.dumps({word: word}), "headers": json.dumps({"id": word}),
        } | changes  # fmt: skip
        made = [Failure(**values, first_job_id=f"{word}-{start + i}", job_id=f"{word}-{start + i}") for i in range(n)]
        made = Failure.objects.bulk_create(made)
        raw = json.dumps({"args": [word], "kwargs": {word: word}}).encode()
        keys = config.payload_keys()
        Payload.objects.bulk_create(
            Payload(failure=f, run=1, body=keys.encrypt(raw), size=len(raw), sha256="0" * 64) for f in made
        )
        Attempt.objects.bulk_create(
            Attempt(
                failure=f, run=1, attempt=n, kind="exception", job_id=f.job_id, group=group, traceback=trace,
                error_type=f"{word}Error", message=f"{word} message", reason=f"{word} reason", ended_at=now,
                received_at=now, worker=f"{word}-worker", host=f"{word}-host", release=f"{word}-{n}", policy=f"{word}@1",
            )
            for f in made
            for n in (1, 2)
        )  # fmt: skip
        return made

    [failure], [discarded], [quarantined] = bury(1), bury(1, state="discarded"), bury(1, state="quarantined")
    Group.objects.filter(pk=group.pk).update(representative=failure)
    create_part(group, source, word)
    replays = [create_replay(source, word, state, bury(4, state="replaying"), group) for state in ("running", "paused")]
    for step in (60, 900, 3600):
        at = now.replace(minute=0, second=0, microsecond=0)
        QueueCounter.objects.create(source=source, queue=f"{word}-queue", step=step, at=at, failed=number)
        if step != 900:
            GroupCounter.objects.create(group=group, step=step, at=at, failed=number)
    DepthSample.objects.create(
        source=source, queue=f"{word}-queue", at=now, waiting=number, dead=number, workers=number
    )
    worker = Worker.objects.create(source=source, name=f"{word}-worker", boot="1", seen_at=now, host=f"{word}-host")
    Release.objects.create(source=source, version=f"{word}-1", at=now)
    if source == SHOP:  # counters that say more than the rows, so that a leak is a number that stands out
        FailureCount.objects.filter(source=source, state="dead").update(count=NUMBER)
    token = ApiToken.objects.create(name=f"{word}-token", sha256=f"{word}-sha", role="viewer", source=source)
    rule = create_group_rules(word, bury)
    with transaction.atomic():
        event = audit.record(ENGINE, f"{word}.act", f"failure:{failure.pk}", source=source, reason=f"{word} reason")
    more = {"failure": failure, "group": group, "replay": replays[0], "source": Source.objects.get(pk=source)}
    more["dependency"] = f"{word}.example"
    more |= {"auditevent": event, "apitoken": token, "grouprule": rule, "worker": worker}
    more |= {"policyversion": create_policy(source, word)} | create_delivery(source, word)
    more |= create_alert(source, word, more["notice"])
    more["pause"] = Pause.objects.create(
        source=source, queue=f"{word}-queue", reason=f"{word} reason", created_at=now, created_by=f"{word}-author"
    )
    name = more["policyversion"].name
    config.store().hset(
        keys.breakers(source),
        name,
        b'1 {"state":"open","held":%d,"evidence":{"first_error":"%s error"}}' % (number, word.encode()),
    )
    more["breakerevent"] = BreakerEvent.objects.create(
        source=source, name=name, at=now, from_state="closed", to_state="open", why=f"{word} why", on_hold=number
    )  # fmt: skip
    more["automation"] = Automation.objects.create(
        name=f"{word}-automation", source=source, query=f"queue:{word}-queue", min_jobs=number, quiet_s=60, cooldown_s=60,
        cap_per_hour=number, act="replay", parameters={"pace": {"style": "careful"}}, note=f"{word} note", mode="live",
        owner_name=f"{word}-owner", created_at=now, changed_at=now, why_not=f"{word} why", tripped_at=now,
        why_tripped=f"{word} tripped",
    )  # fmt: skip
    more["automationdecision"] = AutomationDecision.objects.create(
        automation=more["automation"],
        n=1,
        at=now,
        version=1,
        state="done",
        jobs=number,
        text=f"{word} text",
        replay=replays[0],
    )
    more["reschedule"] = Reschedule.objects.create(
        source=source, state="done", query=f"{word}", scope_max_id=number, below=0, change={"max_attempts": 5}, actor=f"{word}-actor",
        reason=f"{word} reason", created_at=now, ended_at=now, matched=number, changed=number, left=number,
    )  # fmt: skip
    for cause in ("unsigned", "signature", "unknown"):
        RefusedReports.objects.create(
            source=source, cause=cause, refused=number, dropped=number, first_at=now, last_at=now, why=f"{word} why"
        )
    more["sourcekey"] = SourceKey.objects.create(
        source=source, key_id=hashlib.sha256(word.encode()).hexdigest()[:12], sealed=word, created_by=f"{word}-author"
    )
    uncertain = ReplayItem.objects.get(replay=replays[0], state="uncertain")
    return Rows(failure, discarded, quarantined, group, *replays, uncertain, more)


def create_delivery(source: str, word: str) -> dict[str, Any]:
    """A notice of the source, and its delivery to a channel: of that everybody sees the name, and only admins of all where
    it leads.
    """
    secret = config.payload_keys().encrypt(f"whsec_{word}".encode()).decode()
    channel = Channel.objects.create(
        name=f"Channel {Channel.objects.count() + 1}", kind="webhook", url=f"https://{CANARY}.example/{NUMBER}",
        secrets=[secret, secret], disabled_at=timezone.now(), why_disabled=f"{CANARY} answered 410",
    )  # fmt: skip
    body = {"title": f"{word} title", "message": f"{word} message", "queue": f"{word}-queue"}
    notice = Notice.objects.create(key=f"k-{word}", type="ping", source=source, body=body, routed_at=timezone.now())
    delivery = Delivery.objects.create(
        notice=notice, channel=channel, state="parked", request=json.dumps(body), answer=f"{CANARY} answer",
        error=f"{CANARY} error", log=[{"at": timezone.now().isoformat(), "status": None, "error": CANARY, "took_ms": 1}],
    )  # fmt: skip
    return {"channel": channel, "notice": notice, "delivery": delivery}


def create_alert(source: str, word: str, notice: Notice) -> dict[str, Any]:
    """One that fires, with its notifications, one that is over, and a silence that fits another queue."""
    now = timezone.now()
    rule = Rule.objects.create(
        name=f"{word} rule", metric="dead", source=source, threshold=5, severity="critical",
        runbook_url=f"https://{word}.example/alert", changed_by=f"{word}-author",
    )  # fmt: skip
    fields = {"rule": rule, "source": source, "subject": f"{word}-queue", "severity": "critical", "value": NUMBER if source == SHOP else 7, "threshold": 5}  # fmt: skip
    began = now - timedelta(minutes=20)
    Alert.objects.create(**fields, state="resolved", opened_at=began, fired_at=began, resolved_at=now)
    alert = Alert.objects.create(**fields, state="firing", opened_at=now, fired_at=now, transitions=1, held_because=f"{word} held")  # fmt: skip
    AlertEvent.objects.create(alert=alert, n=1, at=now, to="firing", value=7, reason=f"{word} reason", actor=f"{word}-actor", notice=notice)  # fmt: skip
    Notice.objects.filter(pk=notice.pk).update(alert=alert)
    silence = Silence.objects.create(
        matchers={"source": source, "queue": f"{word}-other"}, author=f"{word}-author", comment=f"{word} comment",
        starts_at=now, ends_at=now + timedelta(hours=1),
    )  # fmt: skip
    runbook = Runbook.objects.create(task=f"task {Runbook.objects.count() + 1}", url="https://wiki.example/")
    return {"alert": alert, "silence": silence, "rule": rule, "runbook": runbook}


def create_group_rules(word: str, bury: Callable[..., list[Failure]]) -> GroupRule:
    """A split that was carried out, so that its group is empty, and a merge into a group whose jobs were pruned."""
    base, part, target = (create_group(f"{word}{name}", word, 7) for name in ("Base", "Part", "Target"))
    for group in (base, target):
        bury(1, group=group)
    base.failures.update(group=part)
    target.failures.all().delete()
    fields = {"note": word, "author": word, "is_applied": True}
    GroupRule.objects.create(kind="merge", group=target, others=[f"v1-{word}"], **fields)
    return GroupRule.objects.create(kind="split", by="task", group=base, **fields)


def create_policy(source: str, word: str, name: str = "") -> PolicyVersion:
    """The second version of a policy, and the first."""
    now = timezone.now()
    version = {"published_at": now, "published_by": f"{word}-publisher", "reason": f"{word} reason"}
    for number, ended in ((1, now), (2, None)):
        match = {"source": source, "queue": f"{word}-queue", "task": f"{word}.task"}
        fields = {"name": name or f"{word}-policy", "match": match, "max_attempts": number + 1, "note": f"{word} note"}
        document = policy.document(policy.parse(fields | {"breaker": {}}))
        made = PolicyVersion.objects.create(
            document=document, version=number, is_published=not ended, ended_at=ended, **version
        )
    return made


def create_group(error_type: str, word: str, number: int = NUMBER) -> Group:
    now = timezone.now()
    return Group.objects.create(
        fingerprint=f"v1-{hashlib.sha256(error_type.encode()).hexdigest()[:24]}", error_type=error_type,
        message=f"{word} message", culprit=f"{word}.py in {word}", count=number, note=f"{word} note",
        runbook_url=f"https://{word}.example/", issue_url=f"https://{word}.example/issue/1", first_seen=now - timedelta(hours=3), last_seen=now,
    )  # fmt: skip


def create_part(group: Group, source: str, word: str) -> None:
    """The part of a group at a source, with its dependency."""
    GroupSource.objects.create(
        group=group, source=source, error_type=group.error_type, message=f"{word} message", first_seen=group.first_seen,
        last_seen=group.last_seen, dependency=f"{word}.example", dependency_reason=f"{word} reason", dependency_by=f"{word}-setter",
    )  # fmt: skip


def create_replay(source: str, word: str, state: str, jobs: list[Failure], group: Group) -> Replay:
    now = timezone.now()
    states = ("planned", "sent", "uncertain", "failed_again")
    replay = Replay.objects.create(
        state=state, query=f"source:{source}", scope_max_id=jobs[-1].pk, matched=4, total=4, reason=f"{word} reason",
        actor=f"{word}-actor", pace={"style": "steady", "rate": 5}, rate=5, started_at=now, held_because=f"{word} held",
        **dict.fromkeys(states, 1),
    )  # fmt: skip
    for n, (job, item) in enumerate(zip(jobs, states, strict=True), 1):
        sent = None if item == "planned" else now
        ReplayItem.objects.create(
            replay=replay, n=n, failure=job, run=2, state=item, job_id=f"{word}-again-{n}", sent_at=sent, settled_at=sent,
            outcome=f"{word}Error: {word}", failed_group=group if item == "failed_again" else None,
        )  # fmt: skip
    return replay


@dataclass
class Desk:
    shop: Rows  # out of sight for those of the bank
    bank: Rows
    shared: Group  # with failures of both; first seen in a release of the shop, and back after another
    of_shared: Failure  # of the bank
    both: Replay  # with jobs of both


def create_desk(settings: Any, folder: Any) -> Desk:
    """Two sources, and what belongs to both. The store must be there."""
    file = folder / "sources.toml"
    file.write_text("".join(f'[sources.{name}]\nbackend = "memory"\nurl = "memory:"\n' for name in (SHOP, BANK)))
    settings.REDRIVE = settings.REDRIVE | {
        "SOURCES": str(file),
        "PAYLOAD_KEYS": [Fernet.generate_key().decode()],
        "SECURITY_CONTACT": ["mailto:security@example.com"],
    }
    for answer in (config.sources, config.store, config.payload_keys, config.adapter):
        answer.cache_clear()
    shop, bank = create_rows(SHOP, CANARY), create_rows(BANK, "plain")
    shared = create_group("SharedError", "shared")
    Group.objects.filter(pk=shared.pk).update(
        first_release=f"{CANARY}-1",
        state="regressed",
        state_since=shared.last_seen,
        regressed_after=f"release:{CANARY}-1",
    )
    shared.refresh_from_db()
    for word, source in ((CANARY, SHOP), ("plain", BANK)):
        now = timezone.now()
        job = Failure.objects.create(
            source=source, queue=f"{word}-queue", task=f"{word}.task", state="dead", kind="exception", group=shared,
            first_job_id=f"{word}-s", job_id=f"{word}-s", error_type="SharedError", message=f"{word} told",
            first_failed_at=now, failed_at=now, received_at=now, tenant=f"{word}-tenant", host=f"{word}-host",
        )  # fmt: skip
        create_part(shared, source, word)
        Attempt.objects.bulk_create(
            Attempt(
                failure=job, run=1, attempt=n, kind="exception", job_id=job.job_id, group=shared, ended_at=now,
                received_at=now, error_type="SharedError", message=f"{word} told", release=f"{word}-1",
            )
            for n in (1, 2)
        )  # fmt: skip
    jobs = [
        Failure.objects.create(
            source=source, queue=f"{word}-queue", task=f"{word}.task", state="dead", kind="exception",
            first_job_id=f"{word}-b", job_id=f"{word}-b", first_failed_at=now, failed_at=now, received_at=now,
        )
        for word, source in ((CANARY, SHOP), ("plain", BANK))
    ]  # fmt: skip
    evidence = {
        "kind": "failing", "judged": 2, "failed": 1, "queues": [[SHOP, f"{CANARY}-queue"]],
        "groups": [{"group": shop.group.pk, "title": f"{CANARY}Error", "count": 1}], "sentence": f"{CANARY} held",
    }  # fmt: skip
    both = Replay.objects.create(
        state="held", query="", scope_max_id=jobs[-1].pk, total=2, failed_again=1, actor="x", started_at=now,
        held_because=f"{CANARY} held", evidence=evidence,
    )  # fmt: skip
    for n, (job, group) in enumerate(zip(jobs, (shop.group, bank.group), strict=True), 1):
        state = "failed_again" if n == 1 else "succeeded"
        ReplayItem.objects.create(
            replay=both, n=n, failure=job, run=2, state=state, outcome=f"{group.error_type}", sent_at=now, settled_at=now,
            failed_group=group if n == 1 else None, job_id=job.job_id,
        )  # fmt: skip
    Unfiled.objects.create(entry_id="1-0", received_at=timezone.now(), why=f"{CANARY} why", body=b"sealed", size=1)
    return Desk(shop, bank, shared, shared.failures.get(source=BANK), both)


# --- people ------------------------------------------------------------------------------------------------------

# Who asks, and the roles they hold; None is a stranger to the desk.
PEOPLE: dict[str, dict[str, str] | None] = {
    "nobody": None,
    "no role": {},
    "viewer": {SHOP: "viewer", DEMO: "viewer"},
    "auditor": {SHOP: "auditor", DEMO: "auditor"},
    "operator": {SHOP: "operator", DEMO: "operator"},
    "admin": {SHOP: "admin", DEMO: "admin"},
    "elsewhere": {BANK: "admin"},
    "mixed": {SHOP: "viewer", BANK: "admin", DEMO: "viewer"},
    "root": {"*": "admin"},
}


def come(name: str, *, staff: bool = False) -> Browser:
    """The browser of one of PEOPLE. Who is not logged in has a session of the first step, in both of its forms."""
    client = Browser()
    if PEOPLE[name] is None:
        user = get_user_model().objects.create_superuser("p-half", password="x")
        SecondFactor.objects.create(user=user, sealed="x", last_step=0)
        client.force_login(user)
        session = client.session
        session["second_step"] = {
            "user": str(user.pk), "hash": user.get_session_auth_hash(), "after": "", "key": "", "at": time.time()
        }  # fmt: skip
        session.save()
        assert client.get("/login/code/").status_code == 200
    else:
        user = get_user_model().objects.create_user(f"p-{name}".replace(" ", "-"), password="x", is_staff=staff)
        user.is_superuser = name == "root"
        user.save()
        for source, role in PEOPLE[name].items():
            Role.objects.create(user=user, source=source, role=role)
        client.force_login(user)
    return client


def token(name: str) -> str:
    """A token with the first role of one of PEOPLE; "" for those without."""
    roles = PEOPLE[name]
    if not roles:
        return ""
    source, role = next(iter(roles.items()))
    text = f"token-of-{name}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    ApiToken.objects.create(name=f"t-{name}", sha256=digest, role=role, source=source)
    return text


# --- parameters --------------------------------------------------------------------------------------------------

_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>((?:[^()]|\([^()]*\))*)\)")
# What a form of a thing is called, where the address lists no alternatives.
_FORMS = {"failure-export": "jsonl"}
# The noun whose number a parameter is: the word before it in the route.
_NOUN = re.compile(
    r"/(view|rule|replay|retrie|failure|group|quarantine|alert|silence|pause|channel|runbook|deliver(?:y|ie))s?/$"
)
# What a plausible request carries beside its address.
_GIVEN = {"q": "", "at": "0", "from": "0", "left": "1.1", "right": "1.2", "since": "1"}
_GIVEN_TO: dict[str, dict[str, str]] = {"failure-opened": {"at": "args", "from": "0"}}
_GIVEN_TO |= {name: {"since": ""} for name in ("incident", "incident-text")}  # the last that there was
_BODIES: dict[str, dict[str, Any]] = {
    "api:merge_source": {"into": "shop"},
    "api:preview_replay": {"q": "state:dead"},
    "api:start_replay": {"q": "state:dead", "reason": "because"},
    "api:preview_reschedule": {"q": "", "change": {"max_attempts": 9}},
    "api:create_reschedule": {"q": "", "change": {"max_attempts": 9}, "reason": "because"},
    "api:change_replay_pace": {"pace": {"style": "steady", "rate": 3}},
    "api:resolve_replay_item": {"as": "ran"},
    "api:resolve_replay_items": {"as": "ran"},
    "api:change_group": {"note": "n"},
    "api:save_runbook": {"task": "t", "url": "https://wiki.example/"},
    "api:acknowledge_alert": {"comment": "because"},
    "api:report_release": {"source": SHOP, "version": "v9"},
    "api:create_pause": {"source": SHOP, "queue": "another", "reason": "because"},
    "api:resume_pause": {},
    "api:force_breaker": {"as": "auto"},
    "api:create_automation": {"name": "another", "source": SHOP},
    "api:change_automation": {"source": SHOP, "expected_version": 1},
    "api:preview_automation": {"source": SHOP},
    "api:approve_automation": {"expected_version": 1},
    "api:publish_policy": {"match": {"source": SHOP, "task": "t"}, "expected_version": 2},
}


class Unknown(LookupError):
    """An address has a parameter, and nothing says what it stands for: say it in tests/kit/matrix.py."""


def path_of(address: Address, rows: Rows) -> str:
    def value(found: re.Match[str]) -> str:
        noun = _NOUN.search(address.route[: found.start()])
        return str(_value(address, found[1] or found[2], found[3] or "", noun[1] if noun else "", rows))

    path = _PARAMETER.sub(value, address.route)
    return re.sub(r"\.\*|\\Z|\$$", "", path)


def _value(address: Address, name: str, pattern: str, noun: str, rows: Rows) -> Any:
    if name == "object_id" and address.name == "admin:view_on_site":
        return rows.failure.pk
    if name == "object_id":
        model = address.route.split("/")[3]
        return rows.more[model].pk if model in rows.more else _some(address, model)
    if name == "n":
        return rows.uncertain.n
    if name == "fingerprint":
        return rows.group.fingerprint
    if address.name in {"dependency-detail", "api:get_dependency"}:
        return escaped(rows.more["dependency"])
    if name == "boot":
        return "b1"  # a life of a worker, which is not gone
    if name in {"source", "queue"}:
        return escaped(rows.more.get("a_queue", rows.failure.queue) if name == "queue" else rows.failure.source)
    if name == "name" and "/breakers/" in address.route:
        return rows.more["policyversion"].name
    if is_of_automation(address):
        return rows.more["automation"].name
    if is_of_policy(address):
        return {"name": rows.more["policyversion"].name, "version": 1}[name]
    if name == "attempt_pk":
        return rows.failure.attempt_set.latest("pk").pk
    noun = {"deliverie": "delivery", "retrie": "reschedule"}.get(noun, noun)
    if noun and name in {"pk", f"{noun}_id"}:
        return _one(address, noun, rows).pk
    if name == "form":
        return pattern.split("|")[0] if pattern else _FORMS.get(address.name) or _unknown(address, name)
    fixed = {"app_label": "jobs_admin", "url": "nothing/", "content_type_id": None, "id": None}
    if name == "content_type_id":
        return ContentType.objects.get_for_model(Failure).pk
    if name == "id":
        return get_user_model().objects.order_by("pk").values_list("pk", flat=True).first()
    return fixed.get(name) or _unknown(address, name)


def _one(address: Address, noun: str, rows: Rows) -> Any:
    if noun == "failure":
        return {"restore": rows.discarded, "readmit": rows.quarantined}.get(_act(address), rows.failure)
    if noun == "quarantine":
        return rows.quarantined
    if noun == "replay":
        return rows.paused if _act(address) == "resume" else rows.replay
    if noun == "rule":
        return rows.more["grouprule" if "/groups/" in address.route else "rule"]
    return rows.more[{"view": "savedview"}.get(noun, noun)]


def _act(address: Address) -> str:
    return next((word for word in ("restore", "readmit", "resume") if word in address.name), "")


def _some(address: Address, model: str) -> Any:
    app = address.route.split("/")[2]
    found = apps.get_model(app, model).objects.order_by("pk").values_list("pk", flat=True).first()
    return 1 if found is None else found


def _unknown(address: Address, name: str) -> Any:
    raise Unknown(f"{address.route} ({address.name}) has the parameter {name!r}. {Unknown.__doc__}")


def has_object(address: Address) -> bool:
    """Return whether the address names something that belongs to a source; a saved view belongs to a person."""
    if is_of_person(address) or is_of_desk(address):
        return False
    named = {found[1] or found[2] for found in _PARAMETER.finditer(address.route)}
    return (
        address.name.startswith("demo")
        or is_of_policy(address)
        or "/breakers/<" in address.route
        or address.name in {"api:get_depth", "api:report_release", "dependency-detail", "api:get_dependency"}
        or is_of_automation(address)
        or bool(
            named
            & {
                "pk",
                "boot",
                "fingerprint",
                "object_id",
                "failure_id",
                "replay_id",
                "reschedule_id",
                "rule_id",
                "delivery_id",
                "queue",
                "source",
                "alert_id",
                "silence_id",
                "pause_id",
            }
        )
    )


def is_of_policy(address: Address) -> bool:
    return re.search(r"/policies/(<str:|\{|<)?.*name", address.route) is not None


def is_of_automation(address: Address) -> bool:
    return re.search(r"/automations/(<str:|\{|<)?.*name", address.route) is not None


def is_of_desk(address: Address) -> bool:
    """Return whether it is about a channel or a runbook: everybody sees that there is one, who has a role on all changes it.

    Also a call about a source that is unknown: who has a role on all decides.
    """
    return re.search(r"/(channel|runbook)s?(/|$)|/sources/<\w+>/(accept|discard|merge)$", address.route) is not None


def is_of_person(address: Address) -> bool:
    """Return whether it is about a saved view, which here is another person's, shared with all."""
    return re.search(r"(?<!pre)views?([_-]|$)|_view$|savedview", address.name) is not None


_ECHOED = {"silence-save", "alert-rule-preview", "alert-rule-create", "alert-rule-change"}


def form_for(address: Address, rows: Rows) -> dict[str, Any]:
    """The form that a person would send: each view takes of it what it knows."""
    return {
        "reason": "because", "q": "state:dead", "selection": str(rows.failure.pk), "act": "discard",
        "step": "start", "style": "steady", "amount": "5", "unit": "rate", "as": "ran", "mode": "outage", "rate": "1",
        "args": "[1]", "kwargs": "{}", "name": "A view", "query": "state:dead", "state": "resolved", "note": "n",
        "kind": "ignore", "frame": "app.py in main", "group": rows.group.fingerprint, "by": "task",
        "fingerprint": rows.group.fingerprint, "groups": rows.group.fingerprint, "seen": '{"replayable": 1}',
        "username": "p-root", "password": "x", "action": "discard", "_selected_action": str(rows.failure.pk),
        "for": "3600", "queue": "x", "comment": "because",
        # What somebody says of a source that they may not see is said back to them, and is no leak.
        "source": "" if address.name in _ECHOED else SHOP, "metric": "dead",
        "confirmed": "yes", "user": "1", "role": "viewer", "post": "yes",
    }  # fmt: skip


# --- requests ----------------------------------------------------------------------------------------------------


@contextmanager
def undone() -> Iterator[None]:
    """Undo all changes that are made inside."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


class Asker:
    """Sends one request after the other as if each were the first."""

    def __init__(self, client: Browser, bearer: str = "") -> None:
        self.client = client
        self.cookies = client.cookies.output(header="", sep=";")
        self.headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        self.given: dict[str, str] = {}  # beside what each address takes
        self.client.raise_request_exception = True

    def request(self, method: str, address: Address, rows: Rows, **headers: str) -> HttpResponse:
        return self.send(method, address, path_of(address, rows), self.parameters(method, address, rows), **headers)

    def send(self, method: str, address: Address, path: str, sent: dict[str, Any], **headers: str) -> HttpResponse:
        self.client.cookies = SimpleCookie(self.cookies)
        headers = self.headers | headers
        if method in {"GET", "HEAD"}:
            return getattr(self.client, method.lower())(path, sent, headers=headers)
        if address.kind == "api":
            return self.client.generic(method, path, json.dumps(sent), content_type="application/json", headers=headers)
        return self.client.post(path, sent, headers=headers)

    def parameters(self, method: str, address: Address, rows: Rows) -> dict[str, Any]:
        """The parameters, form or body of a request."""
        if method not in {"GET", "HEAD"}:
            is_api = address.kind == "api"
            return _BODIES.get(address.name, {"reason": "because"}) if is_api else form_for(address, rows)
        if address.name == "api:get_depth":
            return {"source": rows.failure.source, "queue": rows.failure.queue}
        given = _GIVEN | _GIVEN_TO.get(address.name, {}) if address.kind == "page" else {}
        return given | self.given


_READ_ONLY = re.compile(
    r"^\W*(SELECT|WITH|EXPLAIN|PRAGMA|SAVEPOINT|RELEASE|ROLLBACK|BEGIN|COMMIT|SET|SHOW)\b", re.IGNORECASE
)


_SESSIONS = ("django_session", "jobs_admin_signin")  # of these each request may be one


@contextmanager
def writes(*allowed: str) -> Iterator[list[str]]:
    """The statements run inside that write, but for those to the tables that are allowed."""
    found: list[str] = []

    def note(execute: Any, sql: str, *rest: Any) -> Any:
        if not _READ_ONLY.match(sql) and not any(f'"{table}"' in sql for table in (*allowed, *_SESSIONS)):
            found.append(sql[:160])
        return execute(sql, *rest)

    with connection.execute_wrapper(note):
        yield found


def digest() -> dict[str, str]:
    """Table -> hash of all that stands in it, but for who logged in when."""
    found = {}
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            columns = [c.name for c in connection.introspection.get_table_description(cursor, table)]
            shown = ", ".join(f'"{name}"' for name in columns if name != "last_login")
            if table not in _SESSIONS:
                cursor.execute(f'SELECT {shown} FROM "{table}"')
                found[table] = hashlib.sha256(repr(sorted(map(repr, cursor.fetchall()))).encode()).hexdigest()
    return found


def keys_of(store: Any) -> dict[bytes, bytes | None]:
    """All that stands in Redis, byte for byte."""
    return {key: store.dump(key) for key in sorted(store.keys("*"))}


def body_of(answer: HttpResponse) -> str:
    content = b"".join(answer.streaming_content) if answer.streaming else answer.content
    return f"{content.decode(errors='replace')}\n{answer.headers}"


def views_of(desk: Desk, user: Any) -> None:
    """A saved view of another person's for each source. Shared, it is text for all; what it finds is asked for each."""
    Role.objects.create(user=user, source="*", role="viewer")
    for rows, word in ((desk.shop, "first"), (desk.bank, "second")):
        rows.more["savedview"] = SavedView.objects.create(name=word, query="state:dead", owner=user, is_shared=True)


# What an answer comes to.
IN, LOGIN, REFUSED, MISSING, NO_METHOD, TOKEN = "yes", "login", "403", "404", "405", "401"


@pytest.fixture
def desk(watched, settings, tmp_path, db, engine) -> Desk:
    """Two sources full of rows; the demo runs, whose partner is away."""
    settings.REDRIVE = settings.REDRIVE | {"DEMO_BROKER_URL": engine.url, "DEMO_PARTNER_URL": "http://127.0.0.1:9"}
    # Thousands of requests may take longer than a step of watch may be late.
    for step in ("ingest", "sample"):
        watched.hset(keys.steps(), step, json.dumps({"at": timezone.now().timestamp() + 3600}))
    desk = create_desk(settings, tmp_path)
    views_of(desk, get_user_model().objects.create_user("olga"))
    return desk


def really(answer) -> str:
    status = answer.status_code
    if status == 302 and re.match(r"/(admin/)?login/\?next=", answer["Location"]):
        return LOGIN
    if status == 302 and answer["Location"] == "/admin/" and "login" not in answer.request["PATH_INFO"]:
        return MISSING
    known = {401: TOKEN, 403: REFUSED, 404: MISSING, 405: NO_METHOD}
    return known.get(status, IN if status < 400 or status in {409, 422} else f"status {status}")


def list_addresses(*kinds: str) -> list[Address]:
    return [address for address in addresses() if address.kind in kinds]


def none_of(found: list[str]) -> None:
    assert not found, "\n".join(["", *found])
