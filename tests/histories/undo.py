"""Histories of acts on jobs and groups and of their undoing, by several people, beside ingest and replays.

The model keeps for each job the acts that still stand on it, the latest on top. An undo takes back what is on top, gives the job
the state and the reason that it had below, and leaves all others alone.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs_admin.core.refused import Refused
from tests.histories.celery_desk import CeleryDesk
from tests.histories.desk import compare_counts
from tests.histories.jobs import fetched, message, report
from tests.histories.kit import Divergence, act

BATCH = 3  # rows of one transaction of triage, in these histories
FOUND = 7  # ids that one look at a scope gives
SOURCES = ("shop", "web")
TASKS = ("charge", "refund", "mail", "ship")
WATCHED = ("dead", "discarded", "quarantined")

_BOUNDS = {
    "failures.triage._AT_ONCE": BATCH,
    "failures.triage._FOUND_AT_ONCE": FOUND,
    "failures.triage._STEPS_AT_ONCE": 2,
    "groups.group_changes.PER_TRANSACTION": 2,
    "groups.regrouping._FEWEST": 1,
    "groups.regrouping._MOST": 3,
    "replays.sending._ROUND_S": 0.005,
}
_BEFORE = {"discard": ("dead", "quarantined"), "restore": ("discarded",), "readmit": ("quarantined",)}
_AFTER = {"discard": "discarded", "restore": "dead", "readmit": "dead"}
_DONE = {"discard": "discarded", "restore": "restored", "readmit": "readmitted"}


@dataclass(slots=True)
class Job:
    source: str
    queue: str
    job_id: str
    task: str
    state: str
    run: int = 1
    attempts: int = 1
    reason: str = ""
    standing: list[tuple[str, str, str]] = field(default_factory=list)  # (act's key, state and reason before it)
    is_open: bool = False  # in a replay that is not over

    def change(self, state: str, reason: str = "") -> None:
        """By something else than an act on jobs: no act stands on it any more."""
        self.state, self.reason, self.standing = state, reason, []


@dataclass(slots=True)
class Done:
    """An act on jobs, as who did it can take it back."""

    key: str
    act: str
    actor: str
    jobs: set[int]


class Undo(CeleryDesk):
    most_acts = 12

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SOURCES, _BOUNDS)
        from jobs_admin.models.access import OPERATOR, VIEWER, Viewer

        self.people = {
            "ann": Viewer("ann", {"*": OPERATOR}),
            "bob": Viewer("bob", {"shop": OPERATOR, "web": VIEWER}),
            "cid": Viewer("cid", {"*": OPERATOR}),
        }

    # -- the beginning --------------------------------------------------------------------------------------------

    def begin(self, rng: random.Random) -> None:
        super().begin(rng)
        self.jobs: dict[int, Job] = {}
        self.acts_done: list[Done] = []
        self.receipts: list[tuple[str, str]] = []  # of changes of groups: who, receipt
        self.rules: list[int] = []  # in force
        self.merged: dict[str, str] = {}  # task -> the task whose group took its group in
        self.is_split = False
        self.pruned = 0
        self.sweep: tuple[str, Any, str] | None = None  # one that was left off: who, sweep, act
        self._arrive(rng, rng.choice([0, 1, BATCH - 1, BATCH, BATCH + 1, FOUND - 1, FOUND, FOUND + 1, 2 * FOUND]))

    def described(self) -> str:
        from jobs_admin.models import Group, GroupRule

        rules = GroupRule.objects.order_by("pk").values_list("pk", "kind", "group", "others", "by", "before")
        groups = Group.objects.order_by("pk").values_list("pk", "fingerprint", "culprit")
        return (
            "\n".join([*map(str, rules), *map(str, groups)])
            + "\n"
            + "\n".join(f"{pk}: {job}" for pk, job in sorted(self.jobs.items()))
        )

    # -- what happens beside people -------------------------------------------------------------------------------

    @act(weight=2)
    def arrive(self, rng: random.Random) -> None:
        self._arrive(rng, rng.choice([1, 1, 2, BATCH, FOUND]))

    def _arrive(self, rng: random.Random, count: int) -> None:
        from jobs_admin.models import Failure

        entries = []
        made: dict[tuple[str, str, str], Job] = {}
        for _ in range(count):
            self.jobs_made += 1
            source, queue, task = rng.choice(SOURCES), rng.choice(("emails", "orders")), rng.choice(TASKS)
            kind = rng.choices(["exception", "retry", "undecodable"], [8, 2, 1])[0]
            job_id = f"j{self.jobs_made}"
            raw = message(job_id, queue, task, [self.jobs_made])
            entries.append(report(source, queue, job_id, at=self.now(), task=task, kind=kind, raw=raw))
            state = {"exception": "dead", "retry": "retrying", "undecodable": "quarantined"}[kind]
            made[source, queue, job_id] = Job(source, queue, job_id, task, state)
        self.file(entries)
        for pk, *name in Failure.objects.values_list("pk", "source", "queue", "first_job_id"):
            if tuple(name) in made:
                self.jobs[pk] = made.pop(tuple(name))
        if made:
            raise Divergence(f"These were reported and are no failures: {sorted(made)}")

    @act(weight=2)
    def report_again(self, rng: random.Random) -> None:
        """A job's next attempt ends: of a retry that waited, of one that a person has set aside meanwhile, or the same again."""
        known = [pk for pk, job in sorted(self.jobs.items()) if job.run == 1 and not job.is_open]
        for pk in rng.sample(known, min(len(known), rng.choice([1, 2, BATCH + 1]))):
            job = self.jobs[pk]
            kind = rng.choice(["exception", "success", "retry", "same"])
            if kind == "same":  # at least once: the same report comes twice
                if job.state != "dead" or job.standing:
                    continue
                kind, attempt = "exception", job.attempts
            else:
                attempt = job.attempts + 1
            raw = message(job.job_id, job.queue, job.task, [pk])
            self.file([
                report(job.source, job.queue, job.job_id, at=self.now(), task=job.task, kind=kind, attempt=attempt, raw=raw)
            ])  # fmt: skip
            if attempt > job.attempts:
                job.attempts = attempt
                job.change({"exception": "dead", "success": "recovered", "retry": "retrying"}[kind])

    @act()
    def replay(self, rng: random.Random) -> None:
        """Some dead jobs are sent again at once and end, or are left under way."""
        from jobs_admin import replays
        from jobs_admin.models import ReplayItem

        dead = [pk for pk, job in sorted(self.jobs.items()) if job.state == "dead" and not job.is_open]
        chosen = rng.sample(dead, min(len(dead), rng.choice([1, 2, BATCH + 1])))
        if not chosen:
            return
        ann = self.people["ann"]
        draft = replays.draft(ann, selection=chosen, pace={"style": "at_once"}, reason="fixed")
        started = replays.start(ann, draft)
        if started.total != len(chosen):
            raise Divergence(f"{len(chosen)} dead jobs were chosen, {started.total} are replayed: {started.blocked}")
        for pk in chosen:
            self.jobs[pk].is_open = True
        if rng.random() < 0.3:  # taken back before anything goes
            replays.cancel(ann, started)
            for pk in chosen:
                self.jobs[pk].is_open = False
            return
        if rng.random() < 0.5:
            return  # nothing is sent until the history ends: the jobs are dead still, and held
        self._send_all()
        for pk in (pk for pk, job in self.jobs.items() if job.is_open and job.state == "dead"):
            self.jobs[pk].change("replaying")
            self.jobs[pk].run += 1
        if rng.random() < 0.3:
            return  # under way until the history ends
        self._work(rng)
        if ReplayItem.objects.filter(replay=started).exclude(state__in=("succeeded", "failed_again")).exists():
            raise Divergence(f"Replay {started.pk}: its jobs have ended, and its items have not.")

    def _send_all(self) -> None:
        from jobs_admin import replays

        ends = time.monotonic() + 120
        while replays.create_items() or replays.send("sender"):
            if time.monotonic() > ends:
                raise Divergence("A replay at once has not sent its jobs in 120 s.")

    def _work(self, rng: random.Random) -> None:
        """All that waits is run, reported and settled."""

        entries = []
        for source, client in self.brokers.items():
            for queue in ("emails", "orders"):
                while raw := client.rpop(queue):
                    job = fetched(source, queue, raw)
                    kind = rng.choice(["success", "exception"])
                    entries.append(
                        report(source, queue, job.job_id, at=self.now(), task=job.task, kind=kind, raw=raw,
                               lineage=job.lineage)
                    )  # fmt: skip
                    (mine,) = (
                        one for one in self.jobs.values()
                        if (one.source, one.queue, one.job_id) == (source, queue, job.lineage["job_id"])
                    )  # fmt: skip
                    if job.lineage["run"] != mine.run:
                        raise Divergence(f"{mine} was sent as run {job.lineage['run']}")
                    mine.attempts, mine.is_open = 1, False
                    mine.change("recovered" if kind == "success" else "dead")
        self.file(entries)
        self.settle_all()

    @act()
    def prune(self, rng: random.Random) -> None:
        """Retention takes some that are in no replay."""

        from tests.kit.failures import forget

        free = [pk for pk, job in sorted(self.jobs.items()) if not job.is_open]
        gone = rng.sample(free, min(len(free), rng.choice([0, 1, BATCH])))
        if not gone:
            return
        forget(gone)
        for pk in gone:
            del self.jobs[pk]
        self.pruned += len(gone)

    @act()
    def step_clock(self, rng: random.Random) -> None:
        self.clock.step(rng.choice([-3600, -60, -1, 1, 60, 3600, 86_400]))

    # -- acts on jobs ---------------------------------------------------------------------------------------------

    @act(weight=6)
    def act_on_chosen(self, rng: random.Random) -> None:
        from jobs_admin.failures import triage

        name, who = rng.choices(list(_BEFORE), [5, 3, 1])[0], rng.choice(list(self.people))
        size = rng.choice([1, 1, 2, BATCH - 1, BATCH, BATCH + 1, 2 * BATCH, FOUND + 1])
        chosen = rng.sample(sorted(self.jobs), min(len(self.jobs), size))
        if not chosen:
            return
        expected = {pk for pk in chosen if self._may_be_moved(pk, name, who)}
        found = []

        def work() -> None:
            try:
                found.append(triage.act_on(self.people[who], name, chosen, reason="because"))
            except Refused as refused:
                if refused.code != "forbidden" or any(self._may(who, pk) for pk in chosen):
                    raise

        if self.dies(rng, 30, work):
            self._note_what_was_done(name, who, expected)
            return
        if not found:
            return  # refused
        (done,) = found
        if set(done.ids) != expected or done.count != len(expected):
            raise Divergence(f"{name} of {sorted(chosen)} by {who} changed {done.ids}, expected {sorted(expected)}")
        if expected:
            self._move(name, who, done.key, expected)

    @act(weight=3)
    def act_on_all(self, rng: random.Random) -> None:
        """A sweep over all that match, done at once or left off on the way, and gone on with later."""
        from jobs_admin.failures import triage

        name, who = rng.choice(list(_BEFORE)), rng.choice(list(self.people))
        # A search that names no state leaves out what was discarded.
        query = (
            rng.choice(["", "queue:emails ", "source:web ", "task:charge,refund "]) + f"state:{','.join(_BEFORE[name])}"
        )
        sweep = triage.begin(self.people[who], name, query=query, reason="because")
        matching = {pk for pk in self._matching(query) if self._may(who, pk) and self.jobs[pk].state in _BEFORE[name]}
        if sweep.matched != len(matching):
            raise Divergence(
                f"{name} of {query!r} by {who} says {sweep.matched} jobs match; these do: {sorted(matching)}"
            )
        self._go_on(rng, name, who, sweep)

    @act(weight=2)
    def go_on(self, rng: random.Random) -> None:
        if self.sweep is not None:
            who, sweep, name = self.sweep
            self._go_on(rng, name, who, sweep)

    def _go_on(self, rng: random.Random, name: str, who: str, sweep: Any) -> None:
        from jobs_admin.failures import triage

        self.sweep = None
        within = rng.choice([0.0, float("inf")])
        highest = sweep.below
        expected = {
            pk for pk in self._matching(sweep.query) if pk < highest and self._may_be_moved(pk, name, who)
        }  # fmt: skip
        steps = []
        has_died = self.dies(rng, 40, lambda: steps.append(triage.go_on(self.people[who], sweep, within_s=within)))
        if has_died or not steps[0].is_done:
            self._note_what_was_done(name, who, expected, key=sweep.key)
            if not has_died:
                self.sweep = who, steps[0], name
            return
        done = self._events_ids(sweep.key) - {pk for one in self.acts_done if one.key == sweep.key for pk in one.jobs}
        if done != expected:
            raise Divergence(f"{name} of {sweep.query!r} by {who} changed {sorted(done)}, expected {sorted(expected)}")
        self._move(name, who, sweep.key, expected)

    @act(weight=8)
    def undo(self, rng: random.Random) -> None:
        """Properties of any act on jobs, by anyone, at once or in parts, once or again."""
        from jobs_admin.failures import triage

        if not self.acts_done:
            return
        done = rng.choice([self.acts_done[-1], rng.choice(self.acts_done)])
        who = rng.choice([done.actor, rng.choice(list(self.people))])
        expected = self._undoable(done, who)
        promised = triage.undoable(self.people[who], done.key)
        if bool(promised) != bool(expected):
            raise Divergence(
                f"Undoing {done.key} is offered to {who} for {promised} jobs; it takes back {sorted(expected)}"
            )
        before, found = self._last_event(), []

        def work() -> None:
            try:
                found.append(triage.undo(self.people[who], done.key))
            except Refused as refused:
                if refused.code != "not_found" or any(self._may(who, pk) for pk in done.jobs & self.jobs.keys()):
                    raise

        if self.dies(rng, 40, work):
            back = self._ids_since(before)
            if not back <= expected:
                raise Divergence(f"Undo of {done.key} by {who} gave back {sorted(back)}, expected {sorted(expected)}")
        else:
            back = set(found[0].ids) if found else set()
            if back != expected:
                raise Divergence(f"Undo of {done.key} by {who} gave back {sorted(back)}, expected {sorted(expected)}")
        for pk in back:
            job = self.jobs[pk]
            _, job.state, job.reason = job.standing.pop()

    @act(weight=3)
    def undo_latest(self, rng: random.Random) -> None:
        """As the palette offers it: what it offers can be done."""
        from jobs_admin.failures import triage, undoing
        from jobs_admin.groups import group_changes

        who = rng.choice(list(self.people))
        offered = undoing.latest(self.people[who])
        if not isinstance(offered, undoing.Undoable):
            return
        if offered.is_rule:
            self._withdraw(who, int(offered.handle))
        elif offered.is_of_groups:
            undone = group_changes.undo(self.people[who], offered.handle)
            if not undone.fingerprints:
                raise Divergence(f"{offered} was offered to {who}, and undid nothing")
        else:
            found = [one for one in self.acts_done if one.key == offered.handle]
            expected = self._undoable(found[0], who) if found else None
            undone = triage.undo(self.people[who], offered.handle)
            if not undone.count or (expected is not None and set(undone.ids) != expected):
                raise Divergence(f"{offered} was offered to {who}, and undid {undone.ids}, expected {expected}")
            for pk in undone.ids:
                job = self.jobs[pk]
                _, job.state, job.reason = job.standing.pop()

    # -- groups ---------------------------------------------------------------------------------------------------

    @act(weight=3)
    def change_groups(self, rng: random.Random) -> None:
        from jobs_admin.groups import group_changes
        from jobs_admin.models import Group

        names = sorted(Group.objects.exclude(fingerprint__startswith="was-").values_list("fingerprint", flat=True))
        if not names:
            return
        who = rng.choice(list(self.people))
        change = rng.choice([
            {"state": "resolved"}, {"state": "muted"}, {"state": "ongoing"}, {"note": f"note {rng.randrange(3)}"},
            {"state": "muted", "muted_until_count": 2},
        ])  # fmt: skip
        chosen = rng.sample(names, rng.randint(1, len(names)))
        before = self._groups(chosen)
        try:
            changed = group_changes.change_many(self.people[who], chosen, change, reason="seen")
        except Refused as refused:
            if refused.code != "forbidden" or who == "ann" or who == "cid":
                raise
            return
        if (set(changed.fingerprints) | set(changed.refused)) - set(chosen):
            raise Divergence(f"{chosen} were to be changed, and {changed} was")
        if changed.receipt:
            self.receipts.append((who, changed.receipt))
        if changed.receipt and rng.random() < 0.5:  # taken back at once: all is as it was
            group_changes.undo(self.people[who], changed.receipt)
            if (after := self._groups(chosen)) != before:
                raise Divergence(f"{change} was undone, and left {after}; before it was {before}")

    @act()
    def undo_change_of_groups(self, rng: random.Random) -> None:
        from jobs_admin.groups import group_changes

        if self.receipts:
            who, receipt = rng.choice(self.receipts)
            promised = group_changes.undoable(self.people[who], receipt)
            try:
                undone = group_changes.undo(self.people[who], receipt)
            except Refused:
                if promised:
                    raise
                return
            if len(undone.fingerprints) != promised:
                raise Divergence(f"{promised} groups were offered to be given back, {undone} were")

    def _groups(self, names: list[str]) -> list[tuple[Any, ...]]:
        from jobs_admin.models import Group

        columns = ("fingerprint", "state", "state_by", "muted_until", "muted_until_count", "resolved_at", "note")
        return sorted(Group.objects.filter(fingerprint__in=names).values_list(*columns))

    @act(weight=3)
    def merge_or_split(self, rng: random.Random) -> None:
        from jobs_admin.groups import group_rules
        from jobs_admin.models import Group

        names = sorted(Group.objects.exclude(fingerprint__startswith="was-").values_list("fingerprint", flat=True))
        if not names:
            return
        who = rng.choice(list(self.people))
        kind = rng.choices(["merge", "split"], [3, 1])[0]
        groups = rng.sample(names, min(len(names), rng.randint(2, 3) if kind == "merge" else 1))
        by = rng.choice(["queue", "task"]) if kind == "split" else ""

        def work() -> None:
            try:
                group_rules.save(self.people[who], kind, groups=groups, by=by)
            except Refused as refused:
                if refused.code not in ("invalid", "conflict", "forbidden"):
                    raise

        self.dies(rng, 30, work)

    @act(weight=2)
    def withdraw(self, rng: random.Random) -> None:

        if not (rules := self._rules_in_force()):
            return
        who, pk = rng.choice(["ann", "cid"]), rng.choice(rules)

        def work() -> None:
            try:
                self._withdraw(who, pk)
            except Refused as refused:
                if refused.code != "conflict":  # its group is split since, or a merge inside it is being withdrawn
                    raise

        self.dies(rng, 30, work)

    def _withdraw(self, who: str, pk: int) -> None:
        from jobs_admin.groups import group_rules
        from jobs_admin.models import GroupRule

        group_rules.withdraw(self.people[who], GroupRule.objects.get(pk=pk))

    def _rules_in_force(self) -> list[int]:
        from jobs_admin.models import GroupRule

        return list(GroupRule.objects.filter(is_withdrawn=False).order_by("pk").values_list("pk", flat=True))

    @act(weight=3)
    def regroup(self, rng: random.Random) -> None:
        from django.utils import timezone

        from jobs_admin.groups import regrouping

        found: list[bool] = []
        for _ in range(rng.choice([1, 2, 5, 20])):
            found.clear()
            if not self.dies(rng, 20, lambda: found.append(regrouping.regroup(timezone.now()))) and not found[0]:
                return  # nothing is left to do

    # -- the end --------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        rng = random.Random(1)
        self._send_all()
        for job in self.jobs.values():
            if job.is_open and job.state == "dead":
                job.change("replaying")
                job.run += 1
        self._work(rng)
        self._regroup_all()

    def _regroup_all(self) -> None:
        from django.utils import timezone

        from jobs_admin.groups import regrouping

        self.clock.step(10)
        for _ in range(2_000):
            if not regrouping.regroup(timezone.now()):
                return
        raise Divergence("Regrouping does not come to its end")

    def check(self) -> None:
        from jobs_admin.db import audit
        from jobs_admin.groups import group_rules
        from jobs_admin.models import Attempt, Group, GroupCounter, GroupRule

        self._compare_jobs()
        for pk in reversed(self._rules_in_force()):
            group_rules.withdraw(self.people["ann"], GroupRule.objects.get(pk=pk))
            self._regroup_all()  # of two merges, one inside the other, the second is withdrawn when the first is complete
        self._compare_groups()
        compare_counts(with_attempts=not self.pruned)
        if (broken := audit.verify()) is not None:
            raise Divergence(f"The audit breaks at {broken}")
        if not self.pruned:
            counted = Counter(Attempt.objects.exclude(kind="success").values_list("group", flat=True))
            for group in Group.objects.all():
                rows = GroupCounter.objects.filter(group=group, step=60).values_list("failed", "retried")
                total = sum(failed + retried for failed, retried in rows)
                if total != counted[group.pk]:
                    raise Divergence(f"{group} counts {total} attempts by the minute and has {counted[group.pk]}")
        self._undo_all()

    def _undo_all(self) -> None:
        """Act by act, the latest first: nothing that only people changed is left changed."""
        from jobs_admin.failures import triage

        for done in reversed(self.acts_done):
            expected = self._undoable(done, "ann")
            events = triage._events(self.people["ann"], done.key).exists()
            if not events:
                continue
            undone = triage.undo(self.people["ann"], done.key)
            if set(undone.ids) != expected:
                raise Divergence(f"At last, undo of {done.key} gave back {undone.ids}, expected {sorted(expected)}")
            for pk in undone.ids:
                job = self.jobs[pk]
                _, job.state, job.reason = job.standing.pop()
        left = {pk: job for pk, job in self.jobs.items() if job.standing}
        if left:
            raise Divergence(f"All acts were undone, and these are changed still: {left}")
        self._compare_jobs()

    def _compare_jobs(self) -> None:
        from jobs_admin.models import Failure

        columns = ("pk", "state", "run", "attempts", "reason")
        found = {pk: values for pk, *values in Failure.objects.values_list(*columns)}
        must = {pk: [job.state, job.run, job.attempts, job.reason] for pk, job in self.jobs.items()}
        if found != must:
            wrong = [
                f"{pk}: {found.get(pk)}, expected {must.get(pk)}"
                for pk in sorted(found.keys() | must.keys()) if found.get(pk) != must.get(pk)
            ]  # fmt: skip
            raise Divergence("Jobs differ:\n" + "\n".join(wrong))

    def _compare_groups(self) -> None:
        """Without a rule, each job is in the group of its own error, and no group is left over."""
        from jobs_admin.models import Failure, Group

        by_task: dict[str, set[int]] = {}
        for task, group in Failure.objects.values_list("task", "group_id"):
            by_task.setdefault(task, set()).add(group)
        groups = [group for found in by_task.values() for group in found]
        if len(groups) != len(set(groups)) or any(len(found) != 1 for found in by_task.values()):
            raise Divergence(f"All rules were withdrawn, and groups are still mixed: {by_task}")
        if taken := list(Group.objects.filter(fingerprint__startswith="was-").values_list("fingerprint", flat=True)):
            raise Divergence(f"These groups are still being taken in: {taken}")

    # -- the model ------------------------------------------------------------------------------------------------

    def _may(self, who: str, pk: int) -> bool:
        return who != "bob" or self.jobs[pk].source == "shop"

    def _may_be_moved(self, pk: int, name: str, who: str) -> bool:
        job = self.jobs[pk]
        return job.state in _BEFORE[name] and not job.is_open and self._may(who, pk)

    def _matching(self, query: str) -> set[int]:
        query = query.partition("state:")[0].strip()
        fits = {
            "queue:emails": lambda job: job.queue == "emails",
            "source:web": lambda job: job.source == "web",
            "task:charge,refund": lambda job: job.task in ("charge", "refund"),
            "": lambda job: True,
        }[query]
        return {pk for pk, job in self.jobs.items() if fits(job)}

    def _move(self, name: str, who: str, key: str, jobs: set[int]) -> None:
        for pk in jobs:
            job = self.jobs[pk]
            job.standing.append((key, job.state, job.reason))
            job.state, job.reason = _AFTER[name], f"{_DONE[name]} by {who}"
        known = next((one for one in self.acts_done if one.key == key), None)
        if known is None:
            self.acts_done.append(Done(key, name, who, set(jobs)))
        else:
            known.jobs |= jobs

    def _note_what_was_done(self, name: str, who: str, expected: set[int], key: str = "") -> None:
        """Note what an act did before its process died or left off: the audit records it."""
        from jobs_admin.models import AuditEvent

        known = {pk for one in self.acts_done for pk in [one.key]}
        if not key:
            event = AuditEvent.objects.filter(act=f"failure.{name}", allowed=True).order_by("-pk").first()
            if event is None or event.actor != who:
                return
            key = event.object if event.object.startswith("failures:") else f"{event.object}@{event.pk}"
            if key in known or event.object.startswith("undo:"):
                return
        before = {pk for one in self.acts_done if one.key == key for pk in one.jobs}
        done = self._events_ids(key) - before
        if not done <= expected:
            raise Divergence(
                f"{name} by {who} was broken off and changed {sorted(done)}, expected some of {sorted(expected)}"
            )
        if done:
            self._move(name, who, key, done)

    def _events_ids(self, key: str) -> set[int]:
        from jobs_admin.models import AuditEvent

        name, _, number = key.partition("@")
        events = AuditEvent.objects.filter(object=name, allowed=True)
        events = events.filter(pk=number) if number else events
        return {pk for after in events.values_list("after", flat=True) for pk in after["ids"]}

    def _last_event(self) -> int:
        from jobs_admin.models import AuditEvent

        return AuditEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0

    def _ids_since(self, event: int) -> set[int]:
        from jobs_admin.models import AuditEvent

        events = AuditEvent.objects.filter(pk__gt=event, object__startswith="undo:", allowed=True)
        return {pk for after in events.values_list("after", flat=True) for pk in after["ids"]}

    def _undoable(self, done: Done, who: str) -> set[int]:
        return {
            pk for pk in done.jobs
            if pk in self.jobs and not self.jobs[pk].is_open and self._may(who, pk)
            and self.jobs[pk].standing and self.jobs[pk].standing[-1][0] == done.key
        }  # fmt: skip
