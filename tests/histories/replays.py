"""Histories of replays: drafted, started, created, sent, steered, stopped and settled, while jobs end, and processes die.

The model is what the workers of these histories have fetched and run: a job of a replay is fetched at most once; an item says how
its run ended, or that no one knows; a job is in the state that its last run left it in; no job of a group that an operator excluded
is sent before the group is brought back, whatever becomes of the group.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs_admin.core.refused import Refused
from tests.histories.celery_desk import CeleryDesk
from tests.histories.deaths import forget_process
from tests.histories.desk import compare_counts
from tests.histories.jobs import Fetched, fetched, message, report
from tests.histories.kit import Divergence, act

FIRST, BATCH = 3, 4  # jobs that a start lays out itself, and that a step of `create_items` does, in these histories
SOURCES = ("shop", "web", "bank")
TASKS = ("charge", "refund", "mail")
_SIZES = (0, 1, FIRST - 1, FIRST, FIRST + 1, FIRST + BATCH - 1, FIRST + BATCH, FIRST + BATCH + 1, FIRST + 3 * BATCH)
_BOUNDS = {
    "replays.freezing.FIRST": FIRST,
    "replays.freezing.BATCH": BATCH,
    "replays.settling._READ": 5,
    "replays.settling._BATCH": 2,
    "replays.settling._MANY": 12,
    "replays.stopping._BATCH": 2,
    "replays.stopping._AT_ONCE": 5,
    "replays.stopping._AGAIN_S": 0.0,
    "replays.acts._CANCELLED_AT_ONCE": 3,
    "replays.setting_aside._BATCH": 2,
    "replays.send_results._FEWEST": 1,
    "replays.send_results._MOST": 4,
    "replays.choosing._PASSED_AT_ONCE": 5,
    "replays.observation._AT_ONCE": 4,
    "replays.observation._QUEUES_S": 0.0,
    "replays.sending._ROUND_S": 0.004,
    "replays.sending._CHECK_STOPPED_S": 0.0,
    "replays.sending._SILENT_S": 0.0,
    "groups.regrouping._FEWEST": 1,
    "groups.regrouping._MOST": 3,
}
_PACES: tuple[dict[str, Any], ...] = (
    {"style": "at_once"},
    {"style": "at_once", "in_flight": 2},
    {"style": "at_once", "per_key": {"key": "task", "concurrency": 1}},
    {"style": "at_once", "queue_cap": 2},
    {"style": "at_once", "shuffle": True},
    {"style": "steady", "rate": 200},
    {"style": "steady", "rate": 50, "jitter": 0.5, "stop": {"failed": 0.5, "of_last": 10}},
    {"style": "careful", "canary": {"jobs": 2, "success": 0.5, "within": 60}, "ramp": {"from": 50, "to": 500}},
    {
        "style": "careful",
        "canary": {"jobs": 3},
        "ramp": {"from": 20, "to": 200},
        "stop": {"failed": 0.3, "of_last": 10},
    },
)
_OVER = ("done", "stopped", "cancelled")


@dataclass(slots=True)
class Job:
    source: str
    queue: str
    job_id: str
    task: str
    state: str = "dead"
    run: int = 1
    attempts: int = 1
    is_pruned: bool = False
    ends: dict[int, str] = field(default_factory=lambda: {1: "exception"})  # run -> how it ended


@dataclass(slots=True)
class Running:
    job: Fetched
    attempt: int


class Replays(CeleryDesk):
    most_acts = 16

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SOURCES, _BOUNDS)
        from jobs_admin.models.access import OPERATOR, Viewer

        self.ann, self.bob = Viewer("ann", {"*": OPERATOR}), Viewer("bob", {"shop": OPERATOR, "web": OPERATOR})

    # -- the beginning --------------------------------------------------------------------------------------------

    def begin(self, rng: random.Random) -> None:
        super().begin(rng)
        self.queues = [f"q{n}" for n in range(rng.choice([1, 2, 3, 20]))]
        self.jobs: dict[int, Job] = {}
        self.running: list[Running] = []
        self.outbox: list[dict[bytes, bytes]] = []  # reports that have not arrived
        self.fetched: Counter[int] = Counter()  # by item
        self.ran: dict[int, tuple[int, int]] = {}  # item -> job and run
        self.by_word: dict[int, str] = {}  # item -> what a person said became of it
        self.has_lost_queues = False
        self.excluded: dict[int, set[int]] = defaultdict(
            set
        )  # replay -> jobs that an operator excluded with their group
        self._bury(rng, rng.choice(_SIZES))
        if rng.random() < 0.7:
            self.start(rng)

    def described(self) -> str:
        from jobs_admin.models import Replay, ReplayItem

        columns = (
            "pk", "state", "pace", "total", "planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled",
            "taken", "held_because", "may_send", "rate", "sender",
        )  # fmt: skip
        items = ReplayItem.objects.order_by("pk").values_list(
            "pk", "replay", "failure", "run", "state", "outcome", "claimed_at"
        )
        state = [*Replay.objects.order_by("pk").values_list(*columns), *items, *sorted(self.jobs.items())]
        return "\n".join(map(str, state))

    def _bury(self, rng: random.Random, count: int) -> None:
        from jobs_admin.models import Failure

        entries = []
        for _ in range(count):
            self.jobs_made += 1
            source, queue, task = rng.choice(SOURCES), rng.choice(self.queues), rng.choice(TASKS)
            job_id = f"j{self.jobs_made}"
            raw = message(job_id, queue, task, [self.jobs_made])
            tenant = rng.choice(["", "acme", "cobalt"])
            entries.append(
                report(source, queue, job_id, at=self.now(), task=task, error=rng.choice(["Refused", "Timeout"]), raw=raw,
                       tenant=tenant, args=f"[{self.jobs_made}]", kwargs="{}")
            )  # fmt: skip
        self.file(entries)
        for pk, *name in Failure.objects.exclude(pk__in=self.jobs).values_list(
            "pk", "source", "queue", "first_job_id", "task"
        ):
            self.jobs[pk] = Job(*name)

    # -- people ---------------------------------------------------------------------------------------------------

    @act(weight=12)
    def go_on(self, rng: random.Random) -> None:
        """All steps of watch once, and the workers beside them."""
        for step in (self.create_items, self.send, self.work, self.hear, self.settle):
            step(rng)
        self.clock.step(rng.choice([0.3, 1, 3]))

    @act(weight=6)
    def start(self, rng: random.Random) -> None:
        from jobs_admin import replays

        who = rng.choice([self.ann, self.ann, self.bob])
        pace = rng.choice(_PACES)
        options, edit, selection, query = replays.Options(), None, [], ""
        known = sorted(pk for pk, job in self.jobs.items() if not job.is_pruned)
        kind = rng.choice(["all", "all", "all", "query", "chosen", "edited", "patched"])
        if kind == "query":
            query = rng.choice([f"queue:{rng.choice(self.queues)}", f"task:{rng.choice(TASKS)}", "source:shop"])
        elif kind == "chosen" and known:
            selection = rng.sample(known, min(len(known), rng.choice([1, 2, FIRST, FIRST + 1, FIRST + BATCH])))
        elif kind == "edited" and known:
            selection, edit = [rng.choice(known)], {"args": ["edited"], "kwargs": {}}
        elif kind == "patched":
            options = replays.Options(patch={"kwargs": {"dry": True}}, attempts=rng.choice(["reset", "kept", 3]))
        if not query and not selection:
            query = "state:dead"
        is_draft_only = rng.random() < 0.1

        def work() -> None:
            try:
                draft = replays.draft(
                    who, query=query, selection=selection, pace=pace, reason="fixed", options=options, edit=edit
                )
                if not is_draft_only:
                    replays.start(who, draft)
            except Refused as refused:
                if refused.code not in ("nothing_to_replay", "already_open", "bad_scope", "changed"):
                    raise

        self.dies(rng, 60, work)

    @act(weight=4)
    def steer(self, rng: random.Random) -> None:
        """Pause, resume, cancel, go at another pace, or go on without a group."""
        from jobs_admin import replays
        from jobs_admin.models import Group, Replay

        replay = self._some_replay(rng)
        if replay is None:
            return
        groups = list(Group.objects.order_by("pk").values_list("fingerprint", flat=True))
        without, pace = rng.sample(groups, min(1, len(groups))), rng.choice(_PACES)
        acts = {
            "pause": lambda: replays.pause(self.ann, replay, "wait"),
            "resume": lambda: replays.resume(self.ann, replay, "go on"),
            "without": lambda: replays.resume(self.ann, replay, "go on", without_groups=without),
            "cancel": lambda: replays.cancel(self.ann, replay, "no"),
            "start": lambda: replays.start(self.ann, Replay.objects.get(pk=replay.pk)),
            "pace": lambda: replays.change_pace(self.ann, replay, pace),
        }
        name = rng.choice(["pause", "resume", "resume", "without", "without", "cancel", "pace", "start"])
        theirs = self._unsent_of(replay.pk, without) if name == "without" else set()
        before = set(replay.without_groups)

        def work() -> None:
            try:
                acts[name]()
            except Refused as refused:
                if refused.code not in ("wrong_state", "bad_pace", "nothing_to_replay", "already_open", "changed"):
                    raise

        self.dies(rng, 30, work)
        if set(Replay.objects.values_list("without_groups", flat=True).get(pk=replay.pk)) - before:
            self.excluded[replay.pk] |= theirs

    @act(weight=3)
    def bring_back(self, rng: random.Random) -> None:
        from jobs_admin import replays
        from jobs_admin.models import Replay

        rows = [row for row in Replay.objects.exclude(state__in=_OVER).order_by("pk") if row.without_groups]
        if not rows:
            return
        replay = rng.choice(rows)
        groups = [one.group.fingerprint for one in replays.groups_aside(self.ann, replay) if one.phase == "run"]
        if not groups:
            return
        chosen = [rng.choice(groups)]
        self.excluded[replay.pk] -= self._jobs_of(chosen)

        def work() -> None:
            try:
                replays.bring_back(self.ann, replay, chosen)
            except Refused as refused:
                if refused.code != "wrong_state":
                    raise

        self.dies(rng, 30, work)

    def _jobs_of(self, groups: list[str]) -> set[int]:
        """The jobs in these groups, and in those that they are just taking in."""
        from jobs_admin.models import Failure
        from jobs_admin.replays.options import group_ids, with_merging_groups

        return set(
            Failure.objects.filter(group__in=with_merging_groups(group_ids(groups))).values_list("pk", flat=True)
        )

    def _unsent_of(self, replay: int, groups: list[str]) -> set[int]:
        from jobs_admin.models import FrozenBatch, ReplayItem
        from jobs_admin.replays.freezing import unpack_ids

        items = ReplayItem.objects.filter(replay=replay, state="planned", claimed_at=None)
        frozen = FrozenBatch.objects.filter(replay=replay)
        unsent = {*items.values_list("failure", flat=True), *(pk for batch in frozen for pk in unpack_ids(batch))}
        return unsent & self._jobs_of(groups)

    @act(weight=3)
    def merge_or_split(self, rng: random.Random) -> None:
        from jobs_admin.groups import group_rules
        from jobs_admin.models import Group, GroupRule

        names = sorted(Group.objects.exclude(fingerprint__startswith="was-").values_list("fingerprint", flat=True))
        rules = list(GroupRule.objects.filter(is_withdrawn=False).order_by("pk"))
        kind = rng.choice(["merge", "merge", "split", "withdraw"])
        if not names or (kind == "withdraw" and not rules):
            return
        groups = rng.sample(names, min(len(names), 2 if kind == "merge" else 1))

        def work() -> None:
            try:
                if kind == "withdraw":
                    group_rules.withdraw(self.ann, rng.choice(rules))
                else:
                    by = rng.choice(["queue", "task"]) if kind == "split" else ""
                    group_rules.save(self.ann, kind, groups=groups, by=by)
            except Refused as refused:
                if refused.code not in ("invalid", "conflict"):
                    raise

        self.dies(rng, 30, work)
        self.regroup(rng)

    @act(weight=3)
    def regroup_excluded(self, rng: random.Random) -> None:
        """A group is excluded from a replay with unsent jobs of it, and merged into another, another into it, or split."""
        from jobs_admin import replays
        from jobs_admin.groups import group_rules
        from jobs_admin.models import Failure, Group, Replay

        replay = Replay.objects.filter(planned__gt=1).exclude(state__in=("draft", "awaiting_approval", *_OVER)).first()
        if replay is None:
            return
        planned = Failure.objects.filter(replay_items__replay=replay, replay_items__state="planned")
        groups = sorted(set(planned.values_list("group__fingerprint", flat=True)) - {None})
        groups = [name for name in groups if not name.startswith("was-")]
        if not groups:
            return
        excluded, theirs = rng.choice(groups), set[int]()
        try:
            if replay.state not in ("paused", "held"):
                replays.pause(self.ann, replay, "wait")
            theirs = self._unsent_of(replay.pk, [excluded])
            replays.resume(self.ann, replay, "go on", without_groups=[excluded])
        except Refused as refused:
            if refused.code != "wrong_state":
                raise
            return
        self.excluded[replay.pk] |= theirs
        others = sorted(set(Group.objects.values_list("fingerprint", flat=True)) - {excluded})
        others = [name for name in others if not name.startswith("was-")]
        kind = rng.choice(["merge", "merge", "split"]) if others else "split"
        merged = [excluded, rng.choice(others)] if kind == "merge" else [excluded]
        rng.shuffle(merged)
        with contextlib.suppress(Refused):
            group_rules.save(self.ann, kind, groups=merged, by=rng.choice(["queue", "task"]) if kind == "split" else "")
        self.clock.step(4)
        self.regroup(rng)
        self.send(rng)
        self._fetch(rng, 100)

    @act(weight=4)
    def regroup(self, rng: random.Random) -> None:
        from django.utils import timezone

        from jobs_admin.groups import regrouping

        for _ in range(rng.choice([0, 1, 3, 20])):
            self.dies(rng, 20, lambda: regrouping.regroup(timezone.now()))

    @act(weight=3)
    def cancel_what_waits(self, rng: random.Random) -> None:
        """Cancelled while jobs of it wait on their queues: those are taken back, what a worker has runs on."""
        from jobs_admin import replays
        from jobs_admin.models import Replay

        self.send(rng)
        self._fetch(rng, rng.choice([0, 0, 1]))
        if replay := Replay.objects.filter(sent__gt=0).exclude(state__in=_OVER).order_by("pk").first():
            replays.cancel(self.ann, replay, "no")
            self.settle(rng)

    @act()
    def resolve(self, rng: random.Random) -> None:
        """A person's word on an item of which nothing is known."""
        from jobs_admin import replays
        from jobs_admin.models import ReplayItem

        items = list(ReplayItem.objects.filter(state="uncertain").select_related("replay").order_by("pk"))
        if items:
            item = rng.choice(items)
            word = rng.choice(["ran", "lost"])
            replays.resolve_item(self.ann, item.replay, item.n, word)
            self.by_word[item.pk] = word

    @act()
    def discard_or_restore(self, rng: random.Random) -> None:
        from jobs_admin.failures import triage

        known = sorted(pk for pk, job in self.jobs.items() if not job.is_pruned)
        if not known:
            return
        chosen = rng.sample(known, min(len(known), rng.choice([1, 2, 5])))
        name = rng.choice(["discard", "restore"])
        done = triage.act_on(self.ann, name, chosen, reason="because")
        for pk in done.ids:
            self.jobs[pk].state = "discarded" if name == "discard" else "dead"

    # -- the steps of watch ---------------------------------------------------------------------------------------

    @act(weight=4)
    def create_items(self, rng: random.Random) -> None:
        from jobs_admin import replays

        rounds = rng.choice([1, 1, 5])
        self.dies(rng, 20, lambda: all(replays.create_items() for _ in range(rounds)))

    @act(weight=8)
    def send(self, rng: random.Random) -> None:
        from jobs_admin import replays

        name = rng.choice(["one", "one", "one", "other"])
        skips = rng.choices([0.0, 0.05, 0.5], k=rng.choice([1, 2, 6]))

        def work() -> None:
            for seconds in skips:
                self.skip(seconds)
                replays.send(name)

        self.dies(rng, 60, work)

    @act(weight=6)
    def settle(self, rng: random.Random) -> None:
        from jobs_admin import replays

        rounds = rng.choice([1, 1, 4])
        self.dies(rng, 60, lambda: all(replays.settle() for _ in range(rounds)))

    @act(weight=6)
    def work(self, rng: random.Random) -> None:
        """Workers fetch some jobs; some of those that run end."""
        wells = rng.choice([0.0, 0.3, 0.8, 1.0])
        self._fetch(rng, rng.choice([0, 1, 2, 5, 100]))
        rng.shuffle(self.running)
        for one in self.running[: rng.choice([0, 1, 3, 100])]:
            self._end(rng, one, wells)

    @act(weight=5)
    def hear(self, rng: random.Random) -> None:
        """Some reports arrive, in any order, some of them twice."""
        rng.shuffle(self.outbox)
        count = rng.choice([1, 3, 100])
        some, self.outbox = self.outbox[:count], self.outbox[count:]
        some += rng.sample(some, min(len(some), rng.choice([0, 0, 2])))
        self.file(some, rng)

    @act()
    def bury(self, rng: random.Random) -> None:
        self._bury(rng, rng.choice([1, BATCH]))

    @act()
    def prune(self, rng: random.Random) -> None:

        from jobs_admin.models import Failure, ReplayItem
        from jobs_admin.models.replay import OPEN_ITEM
        from tests.kit.failures import forget

        open_jobs = set(ReplayItem.objects.filter(state__in=OPEN_ITEM).values_list("failure", flat=True))
        busy = {self.ran[one.job.item][0] for one in self.running} | {
            pk for pk, job in self.jobs.items() if len(job.ends) < job.run
        }
        free = sorted(pk for pk, job in self.jobs.items() if not job.is_pruned and pk not in open_jobs | busy)
        gone = rng.sample(free, min(len(free), 1))
        if gone and not self.outbox:
            forget(Failure.objects.filter(pk__in=gone).values_list("pk", flat=True))
            for pk in gone:
                self.jobs[pk].is_pruned = True

    @act()
    def step_clock(self, rng: random.Random) -> None:
        self.clock.step(rng.choice([-120, -5, -1, 1, 6, 60, 600]))

    @act()
    def lose_queues(self, rng: random.Random) -> None:
        """A broker comes back empty: its queues and its ledgers are gone."""
        self.brokers[rng.choice(SOURCES)].flushdb()
        self.has_lost_queues = True

    @act()
    def die(self, rng: random.Random) -> None:
        forget_process()

    # -- workers --------------------------------------------------------------------------------------------------

    def _fetch(self, rng: random.Random, most: int) -> int:
        count = 0
        for source, client in self.brokers.items():
            for name in sorted(client.keys("q*")):  # of those of the histories: the ledgers' names begin otherwise
                while count < most and (raw := client.rpop(name)):
                    count += 1
                    self._note_fetched(fetched(source, name.decode(), raw))
        return count

    def _note_fetched(self, job: Fetched) -> None:
        from jobs_admin.models import ReplayItem

        lineage = job.lineage
        if lineage is None:
            raise Divergence(f"{job} was sent without its lineage")
        mine = [
            pk for pk, one in self.jobs.items()
            if (one.source, one.queue, one.job_id) == (job.source, lineage["queue"], lineage["job_id"])
        ]  # fmt: skip
        if not mine:
            raise Divergence(f"{job} is no job of ours")
        pk, run = mine[0], lineage["run"]
        if (pk, run) in {of for item, of in self.ran.items() if self.fetched[item] and item != job.item}:
            raise Divergence(f"Run {run} of job {pk} was sent by two items: {job}")
        if pk in self.excluded[ReplayItem.objects.values_list("replay", flat=True).get(pk=job.item)]:
            raise Divergence(f"Job {pk} was excluded with its group, and was sent: {job}")
        self.fetched[job.item] += 1
        if self.fetched[job.item] > 1:
            raise Divergence(f"Item {job.item} was sent {self.fetched[job.item]} times: {job}")
        self.ran[job.item] = pk, run
        self.jobs[pk].run = max(self.jobs[pk].run, run)
        self.running.append(Running(job, 1))

    def _end(self, rng: random.Random, one: Running, wells: float) -> None:
        job = one.job
        draw = rng.random()
        kind = "success" if draw < wells else rng.choice(["exception", "retry"])
        if one.attempt >= 3 and kind == "retry":
            kind = "exception"
        error = rng.choice(["Refused", "Timeout", "New"])
        self.outbox.append(
            report(job.source, job.queue, job.job_id, at=self.now(), task=job.task, kind=kind, attempt=one.attempt,
                   error=error, raw=job.raw, lineage=job.lineage, duration_s=0.1, args=json.dumps(job.args),
                   kwargs=json.dumps(job.kwargs))
        )  # fmt: skip
        pk, run = self.ran[job.item]
        mine = self.jobs[pk]
        if kind == "retry":
            one.attempt += 1
            return
        self.running.remove(one)
        mine.ends[run] = kind
        if run == mine.run:
            mine.state, mine.attempts = ("recovered" if kind == "success" else "dead"), one.attempt

    # -- the end --------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        from jobs_admin import replays
        from jobs_admin.models import Replay

        rng = random.Random(1)
        self.clock.step(130)  # whatever set it back: leases run out
        self._regroup_all()
        quiet = 0
        for turn in range(400):
            before = self._progress()
            for replay in Replay.objects.filter(state__in=("paused", "held")).order_by("pk"):
                (replays.resume if turn < 60 or replay.state == "paused" else replays.cancel)(self.ann, replay, "go on")
            while replays.create_items():
                pass
            for _ in range(3):
                self.skip(1.0)
                replays.send("last")
            self._fetch(rng, 1_000)
            for one in list(self.running):
                self._end(rng, one, 0.8)
            some, self.outbox = self.outbox, []
            self.file(some)
            replays.settle()
            self.clock.step(3)
            is_still = self._progress() == before and not self.running and not self.outbox
            quiet = quiet + 1 if is_still else 0
            waits = Replay.objects.filter(state__in=("waiting", "canary", "ramping", "running", "held", "paused"))
            if (
                quiet >= (3 if waits.exists() else 1)
                and not waits.filter(planned__gt=0).exists()
                and not self._is_anything_left()
            ):
                break
            if quiet >= 40:
                break
        else:
            raise Divergence("The replays do not come to their end")
        for _ in range(40):  # a canary sends its next job when nobody knows, after an hour, how the one before ended
            self.clock.step(2 * 3600)
            for _ in range(3):
                replays.send("last")
                self.settle_all()
                self.clock.step(3)
            if not Replay.objects.exclude(planned=0, sent=0, running=0).exists():
                break

    def _regroup_all(self) -> None:
        from django.utils import timezone

        from jobs_admin.groups import regrouping

        for _ in range(2_000):
            if not regrouping.regroup(timezone.now()):
                return
        raise Divergence("Regrouping does not come to its end")

    def _is_anything_left(self) -> bool:
        from jobs_admin.models import Replay

        return Replay.objects.filter(state__in=("cancelled", "stopped")).exclude(planned=0).exists()

    def _progress(self) -> object:
        from jobs_admin.models import Replay

        columns = ("pk", "state", "planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled")
        return list(Replay.objects.order_by("pk").values_list(*columns)), sum(self.fetched.values())

    def check(self) -> None:
        from jobs_admin import replays
        from jobs_admin.db import audit
        from jobs_admin.models import FrozenBatch, Replay, ReplayItem

        wrong: list[str] = []
        counts: dict[int, Counter[str]] = defaultdict(Counter)
        items = list(ReplayItem.objects.order_by("pk").values_list("pk", "replay", "failure", "run", "state"))
        for _, replay, _, _, state in items:
            counts[replay][state] += 1
        pruned = {pk for pk, job in self.jobs.items() if job.is_pruned}
        for replay in Replay.objects.order_by("pk"):
            fields = {name: getattr(replay, name) for name in (
                "planned", "sent", "running", "succeeded", "failed_again", "uncertain", "cancelled")}  # fmt: skip
            if replay.state == "draft":
                continue
            if sum(fields.values()) != replay.total:
                wrong.append(f"replay {replay.pk}: {fields} make {sum(fields.values())}, not {replay.total}")
            must_be_over = fields["uncertain"] == 0 or replay.state in _OVER
            if replay.state not in _OVER and must_be_over:
                wrong.append(f"replay {replay.pk} is {replay.state} still: {fields}")
            if fields["planned"] or fields["sent"] or fields["running"]:
                wrong.append(f"replay {replay.pk} ({replay.state}) has jobs without an end: {fields}")
            dropped = fields["cancelled"] - counts[replay.pk]["cancelled"]  # of what was never laid out no row is left
            # Of the states without a job the page of one is looked at, which one depends on the history.
            unused = sorted(fields)[(replay.pk + replay.total) % len(fields)]
            for name, n in fields.items():
                is_so = counts[replay.pk][name]
                if pruned or name == "cancelled":
                    is_wrong = is_so > n
                else:
                    is_wrong = is_so != n
                if is_wrong:
                    wrong.append(f"replay {replay.pk}: {n} {name}, its link shows {is_so}")
                if not (n or is_so or name == unused):
                    continue
                page = replays.items(self.ann, replay, state=name, limit=500)
                if len(page.rows) != is_so:
                    wrong.append(f"replay {replay.pk}: its page of {name} has {len(page.rows)} rows, there are {is_so}")
            if (
                dropped
                and not pruned
                and replay.state not in ("cancelled", "stopped")
                and dropped > fields["cancelled"]
            ):
                wrong.append(f"replay {replay.pk}: {dropped} were cancelled and left no item")
            item_counts, _ = replays.count_items(self.ann, replay)
            if item_counts != replay.total:
                wrong.append(f"replay {replay.pk}: {item_counts} items, {replay.total} in all")
        if FrozenBatch.objects.exists():
            wrong.append(f"{FrozenBatch.objects.count()} batches are frozen still")
        wrong += self._wrong_items(items)
        wrong += self._wrong_jobs(
            {failure: (run, state) for _, _, failure, run, state in items if state == "uncertain"}
        )
        if wrong:
            raise Divergence("\n".join(wrong[:15]))
        if (broken := audit.verify()) is not None:
            raise Divergence(f"The audit breaks at {broken}")
        compare_counts(with_attempts=not pruned)

    def _wrong_items(self, items: list[tuple[int, int, int, int, str]]) -> list[str]:
        wrong = []
        for pk, replay, failure, run, state in items:
            job, was_fetched = self.jobs[failure], self.fetched[pk]
            end = job.ends.get(run) if was_fetched else None
            if pk in self.by_word and state in ("succeeded", "failed_again"):
                continue
            must = {"success": "succeeded", "exception": "failed_again"}.get(end or "")
            if must is not None and state != must:
                wrong.append(f"item {pk} of replay {replay}: its job ended with {end}, it is {state}")
            elif must is None and state in ("succeeded", "failed_again"):
                wrong.append(f"item {pk} of replay {replay} is {state}, and its job never ended")
            elif state == "uncertain" and not self.has_lost_queues:
                wrong.append(f"item {pk} of replay {replay} is uncertain, and nothing was lost")
        return wrong

    def _wrong_jobs(self, uncertain: dict[int, tuple[int, str]]) -> list[str]:
        from jobs_admin.models import Failure

        wrong = []
        found = {pk: values for pk, *values in Failure.objects.values_list("pk", "state", "run", "attempts", "job_id")}
        for pk, job in self.jobs.items():
            if job.is_pruned:
                if pk in found:
                    wrong.append(f"job {pk} was pruned, and is there")
                continue
            if pk not in found:
                wrong.append(f"job {pk} is lost")
                continue
            state, run, _, _ = found[pk]
            words = [word for item, word in self.by_word.items() if item in self._items_of(pk)]
            if pk in uncertain:
                if (state, run) != ("replaying", uncertain[pk][0]):
                    wrong.append(
                        f"job {pk} is {state} in run {run}, and its item of run {uncertain[pk][0]} is uncertain"
                    )
            elif words:
                if state not in ("dead", "recovered", "discarded"):
                    wrong.append(f"job {pk} was settled by a person's word, and is {state}")
            elif (state, run) != (job.state, job.run):
                wrong.append(f"job {pk} is {state} in run {run}, expected {job.state} in run {job.run}: {job}")
        wrong += [f"failure {pk} is no job of ours" for pk in found.keys() - self.jobs.keys()]
        return wrong

    def _items_of(self, failure: int) -> set[int]:
        from jobs_admin.models import ReplayItem

        return set(ReplayItem.objects.filter(failure=failure).values_list("pk", flat=True))

    # -- the model ------------------------------------------------------------------------------------------------

    def _some_replay(self, rng: random.Random) -> Any:
        from jobs_admin.models import Replay

        found = list(Replay.objects.order_by("-pk"))
        return rng.choice([found[0], rng.choice(found)]) if found else None
