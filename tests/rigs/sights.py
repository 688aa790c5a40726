"""A random desk of several sources, each with a word of its own in every text, and what people of some of them are shown.

Two questions are asked of each answer: whether it holds the word of a source out of sight, and whether it is the same on
a desk that has no rows of those sources. The second finds a count, a time or an order that says something of them.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.models import Exists, F, OuterRef, Q
from django.test import Client
from django.utils import timezone

from dashboard.web.middleware import identity
from dashboard.web.rights import Address, addresses
from jobs_admin import config, ingest
from jobs_admin.core.envelope import Envelope, encode
from jobs_admin.core.fingerprint import SPLITS
from jobs_admin.core.refused import Refused
from jobs_admin.db import audit, grouping_rules
from jobs_admin.desk import overview
from jobs_admin.failures import saved_views
from jobs_admin.groups import group_changes, group_rules, regrouping
from jobs_admin.models import (
    Alert,
    AlertEvent,
    ApiToken,
    Attempt,
    AuditEvent,
    DepthSample,
    Failure,
    FailureCount,
    Group,
    GroupCounter,
    GroupRule,
    GroupSource,
    Payload,
    PolicyVersion,
    QueueCounter,
    Release,
    Replay,
    ReplayItem,
    Reschedule,
    Role,
    Rule,
    SavedView,
    Silence,
    Source,
    Total,
    Worker,
)  # fmt: skip
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, Viewer
from jobs_admin.queues import liveness
from jobs_admin.rights import people, view_sight
from tests.kit.matrix import Asker, Rows, body_of, create_rows, path_of, undone
from tests.kit.sources import forget_configuration

ANN = Viewer("ann", {"*": ADMIN})
NAMES = ("alpha", "beta", "gamma", "delta", "omega")
_SPELT = ("bdfgklmnprtvz", "aeiou")


@dataclass
class Person:
    name: str
    sources: frozenset[str]  # of their login
    page: Asker
    token: Asker
    of_token: str  # the one source of it

    def visible(self, address: Address) -> frozenset[str]:
        return frozenset([self.of_token]) if address.kind == "api" else self.sources


@dataclass
class World:
    words: dict[str, str]  # source -> its word
    rows: dict[str, Rows]  # by source
    shared: list[Rows] = field(default_factory=list)  # of several sources: a merged group, a replay
    people: list[Person] = field(default_factory=list)


def word(rng: random.Random) -> str:
    return "".join(rng.choice(alphabet) for _ in range(5) for alphabet in _SPELT)


# -- the desk -----------------------------------------------------------------------------------------------------


def draw(rng: random.Random, settings: Any, folder: Path) -> World:
    """A desk of three or four sources: what `matrix.lay` makes of each, filed failures, and what several of them share."""
    words = {f"{one}-src": one for one in {word(rng) for _ in range(rng.choice((3, 4)))}}
    file = folder / "sources.toml"
    file.write_text("".join(f'[sources.{name}]\nbackend = "memory"\nurl = "memory:"\n' for name in words))
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    forget_configuration(config)
    forget()
    operators = {source: _person(f"{one}-op", {source: OPERATOR}) for source, one in words.items()}
    world = World(words, {source: create_rows(source, one) for source, one in words.items()})
    groups = {source: _file(rng, source, one) for source, one in words.items()}
    for source, one in words.items():
        _write_words(rng, source, one, operators[source], groups[source])
    for _ in range(3):
        _merge(rng, world, groups)
    for rows in world.rows.values():
        rows.group = Failure.objects.get(pk=rows.failure.pk).group
        rows.more["group"] = rows.group
    _save_views(rng, world, operators)
    world.shared = [_share(rng, world) for _ in range(3)]
    _people(rng, world)
    Worker.objects.update(seen_at=timezone.now() + timedelta(hours=1))  # alive for as long as this takes
    return world


def _file(rng: random.Random, source: str, one: str) -> list[Group]:
    """Failures reported by workers: errors of the source's own, and one that each source has."""
    now, entries = timezone.now(), []
    for kind in range(rng.randint(3, 5)):
        for n in range(rng.randint(1, 5)):
            entries.append(_report(rng, source, one, f"{one}.E{NAMES[kind]}", f"{one} broke {NAMES[kind]}", n, now))
    entries += [_report(rng, source, one, "shared.Error", f"of '{one}'", n, now) for n in range(rng.randint(1, 4))]
    ingest.file(
        [(f"{Failure.objects.count() + 1}-{n}".encode(), encode(entry)) for n, entry in enumerate(entries)], now
    )
    mine = Group.objects.filter(error_type__startswith=f"{one}.E", failures__source=source).distinct()
    return list(mine.order_by("pk"))


def _report(rng: random.Random, source: str, one: str, error: str, message: str, n: int, now: Any) -> Envelope:
    task, place = f"{one}.task{rng.randint(1, 2)}", "shared" if error.startswith("shared") else one
    trace = f'Traceback (most recent call last):\n  File "/srv/{place}/app.py", line 3, in {place}\n{error}: {message}'
    secret = f'{{"{one}_id": "{one}-{n}"}}'
    raw = f'{{"args": ["{one}"], "kwargs": {secret}}}'
    return Envelope(
        source=source, queue=f"{one}-queue{rng.randint(1, 2)}", task=task, job_id=f"{one}-{error}-{n}", attempt=1,
        kind=rng.choice(("exception", "exception", "retry")), at=now.timestamp() - rng.randint(60, 50_000),
        error_type=error, message=message, trace=trace, raw=raw.encode(), raw_size=len(raw), args=f'["{one}"]',
        kwargs=secret, worker=f"{one}-worker", host=f"{one}-host", tenant=f"{one}-tenant{rng.randint(1, 2)}",
        release=f"{one}-{rng.randint(1, 3)}", headers=f'{{"id": "{one}"}}', due_at=now.timestamp() + 9_000,
    )  # fmt: skip


def _write_words(rng: random.Random, source: str, one: str, viewer: Viewer, groups: list[Group]) -> None:
    for group in rng.sample(groups, 2):
        fields = {
            "note": f"{one} note",
            "runbook_url": f"https://{one}.example/",
            "issue_url": f"https://{one}.example/",
            "assignee": viewer.name,
        }
        group_changes.change(viewer, group, fields, reason=f"{one} reason")
        if rng.random() < 0.5:
            group_changes.change(viewer, group, {"state": rng.choice(("resolved", "muted"))}, reason=f"{one} reason")


def _merge(rng: random.Random, world: World, groups: dict[str, list[Group]]) -> None:
    """Merge a group of each of some sources; now and then split what came of it, or withdraw it again."""
    sources = rng.sample(sorted(groups), rng.choice((2, 2, 3)))
    chosen = [groups[source].pop(rng.randrange(len(groups[source]))) for source in sources]
    if rng.random() < 0.3:
        chosen[0] = Failure.objects.get(pk=world.rows[sources[0]].failure.pk).group  # laid without a report
    chosen = list(Group.objects.filter(pk__in=[group.pk for group in chosen]).order_by("pk"))
    rng.shuffle(chosen)
    if len(chosen) < 2 or any(one.name != one.fingerprint for one in chosen):
        return
    try:
        rule = group_rules.save(ANN, "merge", groups=[group.fingerprint for group in chosen], note="why not")
    except Refused:  # of a split, or of a merge that is being withdrawn
        return
    if rng.random() < 0.8:
        _carry_out()
    act = rng.random()
    if act < 0.15:
        group_rules.withdraw(ANN, rule)
    elif act < 0.35:
        _carry_out()
        with contextlib.suppress(Refused):
            group_rules.save(ANN, "split", groups=[rule.group.fingerprint], by=rng.choice(SPLITS))
    elif act < 0.7:
        done = group_changes.change(ANN, rule.group, {"note": "for all", "state": "resolved"})
        if act < 0.5:
            group_changes.undo(ANN, done.receipt)
    if rng.random() < 0.8:
        _carry_out()


def _carry_out() -> None:
    grouping_rules.forget()
    GroupRule.objects.update(since=timezone.now() - timedelta(hours=1))
    while regrouping.regroup(timezone.now()):
        pass


def _share(rng: random.Random, world: World) -> Rows:
    """Rows of several sources: a group with a job of one of them, and a replay over jobs of two or three."""
    sources = rng.sample(sorted(world.words), rng.choice((2, 3)))
    free = Failure.objects.filter(
        ~Exists(ReplayItem.objects.filter(failure=OuterRef("pk"))), state="dead", group__isnull=False
    )
    jobs = [rng.choice(list(free.filter(source=source).order_by("pk"))) for source in sources]
    rows = world.rows[sources[0]]
    replay = _replay(rng, world, jobs)
    shared = Group.objects.filter(of_sources__source__in=sources).filter(
        pk__in=FailureCount.objects.filter(count__gt=0, source=sources[-1]).values("group_id")
    )
    groups = [one for one in shared.distinct() if len(set(one.failures.values_list("source", flat=True))) > 1]
    group = rng.choice(groups) if groups else rows.group
    failure = rng.choice([group.failures.filter(source=sources[-1]).first() or rows.failure, *jobs])
    more = rows.more | {"failure": failure, "group": group, "replay": replay}
    return replace(rows, failure=failure, group=group, replay=replay, paused=replay, more=more)


def _replay(rng: random.Random, world: World, jobs: list[Failure]) -> Replay:
    now, one = timezone.now(), world.words[jobs[0].source]
    states = [rng.choice(("failed_again", "succeeded", "planned", "uncertain")) for _ in jobs]
    counted = {state: states.count(state) for state in set(states)}
    group = jobs[0].group
    replay = Replay.objects.create(
        state=rng.choice(("held", "paused", "running", "done")), query=f"{one}", scope_max_id=max(job.pk for job in jobs),
        matched=len(jobs), total=len(jobs), actor="x", started_at=now, reason=f"{one} reason", rate=5,
        approval_because=rng.choice(("", f"It runs {one}.task1.")),
        pace={"style": "steady", "rate": 5}, held_because=f"{one} held", to_queue=f"{one}-queue1",
        by_source={} if rng.random() < 0.3 else {job.source: 1 for job in jobs},
        evidence={"kind": "failing", "judged": 2, "failed": 1, "queues": [[jobs[0].source, f"{one}-queue"]],
                  "groups": [{"group": group.pk if group else 0, "title": f"{one}Error", "count": 1}], "sentence": f"{one} held"},
        without_groups=[group.pk] if group and rng.random() < 0.5 else [],
        set_aside=[{"group": group.pk, "phase": "run", "code": "failed_again", "reason": f"{one} x", "by": "x",
                    "at": now.isoformat(), "jobs": 1}] if group else [],
        **counted,
    )  # fmt: skip
    for n, (job, state) in enumerate(zip(jobs, states, strict=True), 1):
        word_of_job = world.words[job.source]
        failed = job.group if state == "failed_again" else None
        ReplayItem.objects.create(
            replay=replay, n=n, failure=job, run=job.run + 1, state=state, job_id=f"{word_of_job}-again-{replay.pk}-{n}",
            outcome=f"{word_of_job}Error: {word_of_job}", failed_group=failed, first_group=failed, first_ok=failed is None,
            first_at=now, sent_at=None if state == "planned" else now, settled_at=None if state == "planned" else now,
        )  # fmt: skip
    if not replay.by_source:
        with transaction.atomic():
            for job in jobs:
                audit.record(ANN, "replay.start", f"replay:{replay.pk}", source=job.source, reason="go")
    return replay


def _save_views(rng: random.Random, world: World, operators: dict[str, Viewer]) -> None:
    everyone = _person("olga", {"*": ADMIN})
    for source, one in world.words.items():
        mine = saved_views.save(
            operators[source], name=f"{one} view", query=f"{one} queue:{one}-queue1", is_shared=True
        )
        world.rows[source].more["savedview"] = mine
        query = rng.choice((f"source:{source}", f"queue:{one}-queue1", f"tenant:{one}-tenant1", f"-task:{one}.task1"))
        theirs = saved_views.save(everyone, name=f"Of {number_of(one)}", query=f"{query} state:dead", is_shared=True)
        for view in (mine, theirs):
            rule = Rule.objects.create(
                name=f"{one} watches {view.pk}", metric="view", source=source, view=view, threshold=1
            )
            Alert.objects.create(
                rule=rule, source=source, subject=view.name, state="firing", severity="critical", value=2, threshold=1,
                opened_at=timezone.now(), fired_at=timezone.now(),
            )  # fmt: skip


def number_of(one: str) -> str:
    return hashlib.sha256(one.encode()).hexdigest()[:6]


def _person(name: str, roles: dict[str, str], *, staff: bool = True) -> Viewer:
    user = get_user_model().objects.create_user(name, is_staff=staff)
    for source, role in roles.items():
        Role.objects.create(user=user, source=source, role=role)
    return Viewer(name, roles, user_id=user.pk)


def _people(rng: random.Random, world: World) -> None:
    for n in range(5):
        theirs = rng.sample(sorted(world.words), rng.choice((1, 1, 1, 2)))
        roles = {source: rng.choice((VIEWER, OPERATOR, ADMIN)) for source in theirs}
        viewer = _person(f"person{n}", roles)
        client = Client()
        client.force_login(get_user_model().objects.get(pk=viewer.user_id))
        text = f"token-{n}-{rng.random()}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = theirs[0]
        ApiToken.objects.create(name=f"of person{n}", sha256=digest, role=roles[source], source=source)
        world.people.append(Person(viewer.name, frozenset(theirs), Asker(client), Asker(Client(), text), source))


def forget() -> None:
    """Drop what the process remembers from one request to the next."""
    overview.forget()
    liveness.forget()
    people._cached.clear()
    identity.forget()


# -- what is asked ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    person: Person
    address: Address
    method: str
    rows: Rows
    given: dict[str, str]

    @property
    def asker(self) -> Asker:
        asker = self.person.token if self.address.kind == "api" else self.person.page
        asker.given = self.given
        return asker

    @cached_property
    def path(self) -> str:
        """The same URL each time: on a desk without the rows it names, it could not be worked out."""
        return path_of(self.address, self.rows)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        return self.asker.parameters(self.method, self.address, self.rows)

    @property
    def visible(self) -> frozenset[str]:
        return self.person.visible(self.address)

    def __str__(self) -> str:
        return f"{self.method} {self.address.route} ({self.address.name}) {self.given} by {self.person.name}"


@dataclass
class Found:
    requested: int = 0
    compared: int = 0
    repeating: int = 0  # of these: a word out of sight that the request named
    answers: dict[str, int] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)
    leaks: list[str] = field(default_factory=list)


def reachable() -> list[Address]:
    """Every address of the URLconf but those of the demo, which has a source of its own."""
    return [one for one in addresses() if one.methods and not one.name.startswith("demo")]


def questions(rng: random.Random, world: World, number: int) -> Iterator[Question]:
    every = reachable()
    # Pages are asked for more often than forms are sent, and records that nobody may change are looked at first.
    pairs = [(one, method) for one in every for method in one.methods for _ in range(3 if method == "GET" else 1)]
    rng.shuffle(pairs)
    for n in range(number):
        address, method = pairs[n % len(pairs)]
        person = rng.choice(world.people)
        own = [rows for source, rows in world.rows.items() if source in person.visible(address)]
        rows = rng.choice([*own, *own, *world.rows.values(), *world.shared, *world.shared])
        yield Question(person, address, method, rows, _draw_parameters(rng, world, person.visible(address)))


def _draw_parameters(rng: random.Random, world: World, seen: frozenset[str]) -> dict[str, str]:
    """Parameters that many pages know; mostly about what is in sight, as an answer says back what it was asked."""
    source = rng.choice(sorted(seen)) if rng.random() < 0.8 else rng.choice(sorted(world.words))
    one = world.words[source]
    group = rng.choice(list(Group.objects.order_by("pk").values_list("fingerprint", flat=True)))
    texts = (
        "", "", "state:any", one, f"error:{one}*", f"tenant:{one}*", f"group:{group}", "source:*", "state:new,muted",
        f"kwargs.{one}_id:{one}*", "order", "broke", f"release:{one}-1", "age:<9d state:any", "zzz", f"{one[:4]}*",
        f"error:{one}.E9", "replay:>0 state:any", "state:muted", "assignee:none",
    )  # fmt: skip
    given = {
        "q": rng.choice(texts),
        "text": rng.choice(("queue:", "task:", "error:", "group:", "tenant:", "", "source:")),
    }
    given["at"] = str(len(given["text"]))
    given |= {"order": rng.choice(("last_seen", "first_seen", "count", "dead")), "limit": rng.choice(("1", "3", "50"))}
    given |= {"by": rng.choice(("queue", "tenant", "release")), "assignee": rng.choice(("", "ann", f"{one}-op"))}
    return {name: value for name, value in given.items() if rng.random() < 0.6}


def fetch(question: Question) -> tuple[int, str]:
    """The status and all of the answer. What it changed is changed back."""
    forget()
    with undone():
        answer = question.asker.send(question.method, question.address, question.path, question.parameters)
        return answer.status_code, body_of(answer)


def run_questions(rng: random.Random, world: World, number: int, *, compared: float = 0.3) -> Found:
    """Ask `number` questions, and some of them again on a desk without the rows that are out of sight: a share of the pages, and
    every answer that repeats a word out of sight which the request named."""
    found, again = Found(), []
    for n, question in enumerate(questions(rng, world, number), 1):
        status, text = fetch(question)
        found.requested += 1
        found.addresses.add(f"{question.method} {question.address.route}")
        found.answers[str(status)] = found.answers.get(str(status), 0) + 1
        found.leaks += leaks(question, world, status, text)
        drawn = question.method == "GET" and status == 200 and rng.random() < compared
        repeats = bool(repeated(question, world, text))
        found.repeating += repeats
        if drawn or repeats:
            again.append((question, (status, text)))
        if n % _AT_ONCE == 0 or n == number:
            _repeat(found, world, again)
            again = []
    return found


_AT_ONCE = 100  # questions, before some of them are asked again: soon, as pages say how long ago something was


def _repeat(found: Found, world: World, again: list[tuple[Question, tuple[int, str]]]) -> None:
    found.compared += len(again)
    for _ in range(3):  # what differs because of the time that went by in between does not differ each time
        differing = []
        for seen in {question.visible for question, _ in again}:
            mine = [(question, answer) for question, answer in again if question.visible == seen]
            with without(world, seen):
                alone = [fetch(question) for question, _ in mine]
            for (question, answer), other in zip(mine, alone, strict=True):
                if found_ := differences(question, answer, other):
                    differing.append((question, found_))
        again = [(question, fetch(question)) for question, _ in differing]
    found.leaks += [one for _, texts in differing for one in texts]


def leaks(question: Question, world: World, status: int, text: str) -> list[str]:
    """Return the parts of an answer about sources out of sight that the request did not name."""
    if status >= 500 and question.address.name != "readyz":
        return [f"{question}: {status}"]
    named, found = repeated(question, world, text), []
    for one in _words_out_of_sight(question, world, text):
        if one not in named:
            at = text.lower().find(one)
            found.append(f"{question} tells {text[max(0, at - 120) : at + 60]!r}")
    return found


def repeated(question: Question, world: World, text: str) -> list[str]:
    """Return the words out of sight that an answer has from the URL of the request, or from what was sent with it. That the answer
    is no leak is shown by a desk without their rows, which answers the same."""
    requested = " ".join([question.path, *map(str, question.parameters.values())])
    return [one for one in _words_out_of_sight(question, world, text) if one in requested]


def _words_out_of_sight(question: Question, world: World, text: str) -> list[str]:
    lower = text.lower()
    return [one for source, one in world.words.items() if source not in question.visible and one in lower]


# -- the same desk without what is out of sight ----------------------------------------------------------------------


@contextmanager
def without(world: World, seen: frozenset[str]) -> Iterator[None]:
    """No rows of other sources, and no text of theirs where rows are of several."""
    with transaction.atomic():
        elsewhere = ~Q(source__in=seen)
        # What a view names may be nowhere then, and so no reason to hide it.
        hidden = SavedView.objects.exclude(pk__in=view_sight.readable(Viewer("", dict.fromkeys(seen, VIEWER))))
        for model in (AlertEvent, Alert, Rule):
            column = {AlertEvent: "alert__rule__view", Alert: "rule__view", Rule: "view"}[model]
            pks = list(model.objects.filter(**{f"{column}__in": hidden}).values_list("pk", flat=True))
            model.objects.filter(pk__in=pks)._raw_delete("default")
        hidden._raw_delete("default")
        gone = list(Failure.objects.filter(elsewhere).values_list("pk", flat=True))
        for model in (Attempt, Payload, ReplayItem):
            model.objects.filter(failure__in=gone)._raw_delete("default")
        AlertEvent.objects.filter(alert__in=Alert.objects.filter(elsewhere).values("pk"))._raw_delete("default")
        of_source = (Alert, QueueCounter, Worker, Release, Reschedule, Total, Failure)
        others = [source for source in world.words if source not in seen]
        for model in (*of_source, PolicyVersion, Rule, Source):
            column = "match_source" if model is PolicyVersion else "name" if model is Source else "source"
            model.objects.filter(**{f"{column}__in": others})._raw_delete("default")
        GroupSource.objects.filter(elsewhere).update(error_type="Another", message="another", last_seen=F("first_seen"))
        Silence.objects.filter(
            pk__in=[one.pk for one in Silence.objects.all() if one.matchers.get("source") not in seen]
        ).delete()
        _rewrite_replays(seen)
        partial = set(FailureCount.objects.filter(elsewhere, group_id__gt=0).values_list("group_id", flat=True))
        Group.objects.filter(pk__in=partial).update(
            error_type="Another", message="another text", culprit="another.py in place", count=F("count") + 1_000,
            first_seen=timezone.now() - timedelta(days=9), first_release="another",
        )  # fmt: skip
        Group.objects.filter(representative__in=gone).update(representative=None)
        # That the desk was watching is everybody's to know.
        DepthSample.objects.filter(elsewhere).update(waiting=0, dead=0, workers=0)
        # A group stays partial, so that it takes a right on other sources to change it.
        FailureCount.objects.bulk_create(
            FailureCount(source="another", queue="another", task="another", group_id=pk, state="discarded", count=1)
            for pk in sorted(partial)
        )
        GroupCounter.objects.filter(group__in=partial).update(failed=F("failed") + 1_000)
        forget()
        yield
        transaction.set_rollback(True)
    forget()


def _rewrite_replays(seen: frozenset[str]) -> None:
    """Other words and other numbers in every replay that has jobs of a source out of sight."""
    shared = Replay.objects.filter(pk__in=[one.pk for one in Replay.objects.all() if not _sources_of(one) <= seen])
    for replay in shared:
        Replay.objects.filter(pk=replay.pk).update(
            reason=replay.reason and "another reason", query="another", to_queue=replay.to_queue and "another",
            held_because=replay.held_because and "another reason", total=replay.total + 1_000,
            approval_because=replay.approval_because and "another reason", matched=replay.matched + 1_000,
            blocked=[{"code": "another", "reason": "another", "count": 1_000}],
            evidence=replay.evidence and {"kind": "another"},
            set_aside=[note | {"reason": "another reason"} for note in replay.set_aside],
            by_source={source: n if source in seen else n + 1_000 for source, n in replay.by_source.items()},
        )  # fmt: skip


def _sources_of(replay: Replay) -> set[str]:
    begun = AuditEvent.objects.filter(object=f"replay:{replay.pk}", act="replay.start", allowed=True)
    return {*replay.by_source, *begun.values_list("source", flat=True)}


# What differs from one answer to the next: tokens, times, what is worked out from the time; and numbers of rows, which are
# given in one order to all sources.
_VOLATILE = re.compile(
    r'csrfmiddlewaretoken" value="[^"]+"|"X-CSRFToken": ?"[^"]+"|nonce-?="?[\w+/=-]+|\b[\w-]{64}\b|name="snapshot" value="[^"]+|'
    r"\d{4}-\d\d-\d\d(T|%20| )\d\d(:|%3A)\d\d(:|%3A)\d\d[.\d]*Z?|\d+(\.\d+)? (ms|s|min|seconds|minutes)( ago)?\b|\d+\.\d+%|"
    # The Unix seconds of a chart's values.
    r"\b1\d{9}\b|&quot;at&quot;:\[[^]]*\]|"
    r'points="[^"]+"|name="shown_at" value="\d+|name="idempotency_key" value="\w+|>\d\d:\d\d<|>now<|M[\d.]+ 0V\d+|\b(x|width|d)="[-MLHVZz \d.]+"|(?<=\.\d\d)\d+|"rate_now": [\d.]+|[\d.]+ a second|_seconds(\{[^}]*\})? [\d.]+'
)


# The headers that a person or their browser reads; the others hold nonces and cookies.
_SHOWN_HEADERS = re.compile(r"'((?:Location|HX-[\w-]+|Content-Disposition)': (?:'[^']*'|\"[^\"]*\"))")


def differences(question: Question, answer: tuple[int, str], alone: tuple[int, str]) -> list[str]:
    one, other = map(_comparable_lines, (answer, alone))
    if one == other:
        return []
    lines = [
        line
        for line in difflib.unified_diff(one, other, lineterm="", n=0)
        if line[:1] in "+-" and line[1:2] not in "+-"
    ]
    return [f"{question} depends on what is out of sight: {_nearest(lines)}"]


def _comparable_lines(answer: tuple[int, str]) -> list[str]:
    status, text = answer
    body, _, headers = text.rpartition("\n")
    shown = _SHOWN_HEADERS.findall(headers)
    return _VOLATILE.sub("·", "\n".join([f"status {status}", *shown, body])).splitlines()


def _nearest(lines: list[str]) -> str:
    """The first line that differs, around where it does."""
    if len(lines) < 2:
        return repr(lines[:1])[:300]
    was, is_now = lines[0], next((line for line in lines if line[0] != lines[0][0]), "")
    at = next((n for n, (a, b) in enumerate(zip(was[1:], is_now[1:], strict=False)) if a != b), 0)
    return f"{was[max(0, at - 100) : at + 100]!r} / {is_now[max(0, at - 100) : at + 100]!r}"
