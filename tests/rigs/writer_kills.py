"""Failures that are filed, pruned and filtered at once by processes that get SIGKILL at any moment, against a model.

    python -m tests.rigs.writer_kills FOLDER --seed 1      # in the environment of an empty, migrated desk

Two writers file reports in batches, and after each batch count it in a journal, as a stream's entries are acknowledged: a
killed one files its last batch again. Beside them one process prunes and one fills trigram filters. Time moves in phases of
50 days: a phase files its reports, and what expired by then goes while reports of the same jobs, groups and stacks arrive.

At checkpoints everything is killed, and the rows are compared with a recount and searches with a scan. After each phase
prune and filters run to their end, and every row is compared with the model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import django

django.setup()

from django.db import connection, connections  # noqa: E402

from dashboard.setup.engine import die_with_parent  # noqa: E402
from jobs_admin import failures, ingest  # noqa: E402
from jobs_admin.core import trigrams  # noqa: E402
from jobs_admin.core.query import Match, Query, Text, Value  # noqa: E402
from jobs_admin.desk import retention  # noqa: E402
from jobs_admin.models import (  # noqa: E402
    Attempt,
    Comeback,
    Failure,
    Group,
    GroupCounter,
    Payload,
    QueueCounter,
    ReplayItem,
    Traceback,
    Unfiled,
)
from jobs_admin.models.access import ENGINE  # noqa: E402
from jobs_admin.models.counter import HOUR  # noqa: E402
from jobs_admin.models.text_filters import BLOCK, COLUMNS, FILTERS, STALE  # noqa: E402
from jobs_admin.search import failure_search, substrings  # noqa: E402
from tests.kit.counts import list_counts, recount  # noqa: E402
from tests.kit.reports import NOW, entries, misindexed, report  # noqa: E402

PHASE = timedelta(days=50)
DAYS = {"dead": 90, "recovered": 7}  # the defaults of REDRIVE_KEEP; `retrying` is not over
STATES = {"retry": "retrying", "exception": "dead", "success": "recovered"}
WRITERS = ("write0", "write1")
# Around a block of filters, and around the blocks that one transaction fills.
SIZES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1)
LARGE = tuple(substrings._AT_ONCE * BLOCK + n for n in (-1, 0, 1))
WORDS = ("100%", "a_b", "O'Brien", "TimeOut", "İstanbul", "日本語", "[Errno -2]", "-->", "été", "nul\\x00")

Name = tuple[str, str, str]  # source, queue and job id


@dataclass(frozen=True, slots=True)
class Sent:
    name: Name
    attempt: int
    kind: str
    phase: int
    ago: float
    text: dict[str, str]  # what a worker reports of the failure

    def encode(self, now: float) -> object:
        source, queue, job_id = self.name
        return report(job_id, self.kind, self.attempt, source=source, queue=queue, at=now - self.ago,
                      due_at=now + 60 if self.kind == "retry" else None, **self.text)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kill:
    after: int  # batches of this phase
    role: str
    pause_s: float


def now_of(phase: int):
    return NOW + phase * PHASE


@dataclass
class Plan:
    """The reports, batches and kills of a seed."""

    seed: int
    phases: int
    large: int  # phases whose batches include one of LARGE
    batches: int  # of each writer in each phase
    random: random.Random = field(init=False)
    known: list[Name] = field(default_factory=list)
    attempts: Counter[Name] = field(default_factory=Counter)
    succeeded: set[Name] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        large = set(self.random.sample(range(self.phases), min(self.large, self.phases)))
        self.sent = [self._draw_phase(phase, phase in large) for phase in range(self.phases)]

    def _draw_phase(self, phase: int, is_large: bool) -> dict[str, list[list[Sent]]]:
        earlier = list(self.known)
        found = {}
        for writer in WRITERS:
            sizes = self.random.choices(SIZES, k=self.batches)
            if is_large and writer == WRITERS[0]:
                sizes.insert(self.random.randrange(len(sizes)), self.random.choice(LARGE))
            found[writer] = [[self._draw(phase, earlier) for _ in range(size)] for size in sizes]
        # Attempts of a job arrive in any order, from both writers.
        every = [one for batches in found.values() for batch in batches for one in batch]
        self.random.shuffle(every)
        return {
            writer: [[every.pop() for _ in batch] for batch in batches] for writer, batches in found.items()
        }  # fmt: skip

    def _draw(self, phase: int, earlier: list[Name]) -> Sent:
        draw = self.random
        chance = draw.random()
        name = (
            draw.choice(earlier)
            if chance < 0.35 and earlier
            else self.known[-1]
            if chance < 0.45 and self.known
            else None
        )
        if name is None or name in self.succeeded:
            n = len(self.known) + 1
            job_id = "-" * (2 + n // 97) if n % 97 == 0 else f"j-{n}"
            name = draw.choice(["shop", "bank"]), draw.choice(["a", "b", "c"]), job_id
            self.known.append(name)
        self.attempts[name] += 1
        attempt = self.attempts[name]
        kind = draw.choice(["exception", "exception", "retry"] if attempt == 1 else ["exception", "retry", "success"])
        text = {"host": draw.choice(["", "web-3", "db%1"]), "tenant": draw.choice(["acme", "日本", ""])}
        if kind == "success":
            self.succeeded.add(name)
        else:
            # Every second phase has types and stacks of its own: of those prune removes the last, while they come again.
            rare = f"shop.Rare{phase % 2}" if draw.random() < 0.3 else draw.choice(["KeyError", "shop.Refused"])
            token = f"{draw.getrandbits(40):010x}"
            text |= {"error_type": rare, "message": f"{draw.choice(WORDS)} {token} {draw.choice(WORDS)}"}
            text["trace"] = (
                f'Traceback (most recent call last):\n  File "/srv/{rare}.py", line {draw.randrange(6)}, in f\n    f()\n{rare}: x'
            )
        return Sent(name, attempt, kind, phase, draw.uniform(1, 3000), text)

    def draw_kills(self, phase: int, count: int) -> list[Kill]:
        batches = sum(map(len, self.sent[phase].values()))
        early = [Kill(0, "prune", self.random.uniform(0, 0.25)) for _ in range(count // 3)]
        roles = ("fill", "fill", "prune", *WRITERS)
        rest = [
            Kill(self.random.randrange(batches), self.random.choice(roles), self.random.uniform(0, 0.12))
            for _ in range(count - len(early))
        ]
        return early + sorted(rest, key=lambda kill: kill.after)


# -- the processes ----------------------------------------------------------------------------------------------


class Processes:
    """One for each role, forked from here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kills = folder, Counter[str]()
        self._pids: dict[str, int] = {}

    def start(self, role: str, act: Callable[[], None]) -> None:
        connections.close_all()
        pid = os.fork()
        if pid:
            self._pids[role] = pid
            return
        status = 1
        try:
            die_with_parent()
            act()
            status = 0
        except BaseException:
            (self.folder / f"{role}.error").write_text(traceback.format_exc())
        finally:
            os._exit(status)

    def kill(self, role: str) -> bool:
        """Return whether the process was running."""
        pid = self._pids.pop(role, None)
        if pid is None:
            return False
        os.kill(pid, signal.SIGKILL)  # not reaped yet: it is still ours
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._assert_sound(role, status)
        self.kills[role] += status == -signal.SIGKILL
        return status == -signal.SIGKILL

    def is_running(self, role: str) -> bool:
        pid = self._pids.get(role)
        if pid is None:
            return False
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            del self._pids[role]
            self._assert_sound(role, os.waitstatus_to_exitcode(status))
        return not ended

    def wait(self, role: str, within_s: float = 300) -> None:
        ends = time.monotonic() + within_s
        while self.is_running(role):
            assert time.monotonic() < ends, f"{role} does not end"
            time.sleep(0.005)

    def kill_all(self) -> None:
        for role in list(self._pids):
            self.kill(role)

    def _assert_sound(self, role: str, status: int) -> None:
        error = self.folder / f"{role}.error"
        assert status in (0, -signal.SIGKILL), error.read_text() if error.exists() else f"{role} ended with {status}"


class Rig:
    def __init__(self, folder: Path, plan: Plan, kills: int) -> None:
        self.folder, self.plan, self.kills_of_phase = folder, plan, kills
        self.processes = Processes(folder)
        self.filed: dict[Name, dict[int, Sent]] = {}  # the model: attempts that are on the desk
        self.searches, self.pruned, self.raced = 0, 0, 0
        # So that few failures are enough for a search to use the filters.
        failure_search.LATEST_COMPARED, failure_search._FIRST_BLOCKS = 3, 2
        failure_search._COMPARED, failure_search._WINDOWS = 20, 10**9

    def run(self) -> None:
        try:
            for phase in range(self.plan.phases):
                self._run_phase(phase)
        finally:
            self.processes.kill_all()

    def _run_phase(self, phase: int) -> None:
        self._encoded = {
            writer: [entries(*(one.encode(now_of(phase).timestamp()) for one in batch)) for batch in batches]
            for writer, batches in self.plan.sent[phase].items()
        }
        roles = {writer: self._write(writer, phase) for writer in WRITERS}
        roles |= {"prune": self._prune(phase), "fill": self._fill}

        def start(role: str) -> None:
            if role not in WRITERS or self._position(role, phase) < len(self._encoded[role]):
                self.processes.start(role, roles[role])

        for role in roles:
            start(role)
        kills = self.plan.draw_kills(phase, self.kills_of_phase)
        checkpoint = len(kills) * 2 // 3
        for number, kill in enumerate(kills):
            while sum(self._position(writer, phase) for writer in WRITERS) < kill.after:
                for role in roles:
                    self.processes.is_running(role)  # raises where one ended with an error
                time.sleep(0.002)
            time.sleep(kill.pause_s)
            if self.processes.kill(kill.role):
                start(kill.role)
            if number == checkpoint:
                self.processes.kill_all()
                self._compare_at_any_moment(phase)
                for role in roles:
                    start(role)
        for writer in WRITERS:
            self.processes.wait(writer)
            assert self._position(writer, phase) == len(self._encoded[writer])
        self.processes.kill_all()
        self._compare_at_any_moment(phase)
        self.processes.start("fill", self._fill)
        self.processes.start("prune", self._prune(phase, until_done=True))
        self.processes.wait("prune")
        self.processes.kill("fill")
        self.processes.start("fill", self._fill_all)
        self.processes.wait("fill")
        self._compare_at_any_moment(phase)
        self._compare_filled()
        self._compare_with_model(phase)

    # -- what they do ---------------------------------------------------------------------------------------------

    def _journal(self, writer: str, phase: int) -> Path:
        return self.folder / f"{writer}.{phase}"

    def _position(self, writer: str, phase: int) -> int:
        """Number of batches that a writer has filed and counted."""
        journal = self._journal(writer, phase)
        return journal.stat().st_size if journal.exists() else 0

    def _write(self, writer: str, phase: int) -> Callable[[], None]:
        def act() -> None:
            for batch in self._encoded[writer][self._position(writer, phase) :]:
                ingest.file(batch, now_of(phase), is_trusted=True)  # signatures have an age of their own
                with self._journal(writer, phase).open("ab") as journal:
                    journal.write(b".")

        return act

    def _prune(self, phase: int, *, until_done: bool = False) -> Callable[[], None]:
        def act() -> None:
            retention._MOST = retention._FEWEST = 10  # many transactions, between which and in which it is killed
            retention._Run.__init__.__defaults__ = tuple(
                10 if value == 100 else value for value in retention._Run.__init__.__defaults__
            )
            while True:
                found = retention.prune(now_of(phase))
                if until_done and found.is_done:
                    return
                time.sleep(0.05)

        return act

    def _fill(self) -> None:
        while True:
            if not substrings.step():
                time.sleep(0.005)

    def _fill_all(self) -> None:
        while not substrings.is_complete():
            substrings.step()

    # -- what must be so while all are stopped ----------------------------------------------------------------------

    def _compare_at_any_moment(self, phase: int) -> None:
        assert not Unfiled.objects.exists(), f"not filed: {Unfiled.objects.values_list('why', flat=True)[0]}"
        assert list_counts() == recount(), "counters differ from a recount"
        assert misindexed() == [], "the index of terms differs"
        self._compare_belongings()
        stale = {block for (block,) in fetch(f"SELECT block FROM {STALE}")}
        texts = texts_by_block()
        for block, found in fetch(f"SELECT block, filter FROM {FILTERS}"):
            assert block in stale or block in texts, f"block {block} has a filter and no failure"
            wanted = trigrams.build_filter(texts.get(block, ()))
            assert block in stale or bytes(found) == wanted, f"the filter of block {block} is of other texts"
        draw = self.plan.random
        for _ in range(8):
            query = Query((self._draw_term(draw),), now=now_of(phase))
            wanted = list(failures.find_matching(ENGINE, query).order_by("-pk").values_list("pk", flat=True))
            searched = failure_search.FailureSearch(ENGINE, query)
            found = searched.ids(None, 10_000)
            assert searched.searched is None and found == wanted, f"{query}: {len(found)} found, of {len(wanted)}"
            self.searches += 1

    def _compare_belongings(self) -> None:
        known = set(Failure.objects.values_list("pk", flat=True))
        for model in (Attempt, Payload, Comeback, ReplayItem):
            dangling = set(model.objects.values_list("failure_id", flat=True)) - known
            assert not dangling, f"{model.__name__} of no failure: {sorted(dangling)[:5]}"
        if connection.vendor == "sqlite":
            assert fetch("PRAGMA foreign_key_check") == []
        tried = set(Attempt.objects.values_list("failure_id", flat=True))
        assert tried == known, f"failures without an attempt: {sorted(known - tried)[:5]}"
        with_raw = set(Attempt.objects.exclude(kind="success").values_list("failure_id", flat=True))
        assert sorted(Payload.objects.values_list("failure_id", flat=True)) == sorted(with_raw)

    def _draw_term(self, draw: random.Random) -> Text | Match:
        """Draw a term of a text that was sent, now on the desk or not."""
        phase = draw.randrange(self.plan.phases)
        sent = draw.choice(draw.choice(self.plan.sent[phase][draw.choice(WRITERS)]))
        text = sent.text.get("message") or draw.choice(WORDS)
        start = draw.randrange(max(1, len(text) - 6))
        part = draw.choice([str, str.upper])(text[start : start + draw.randrange(3, 8)])
        host = Match("host", (Value("*b%1", glob=True),))
        message = Match("message", (Value(f"*{part}", glob=True),))
        return draw.choice([Text(f"*{part}", glob=True), Text(f"*{part}", glob=True), message, Text("-" * 5), host])

    # -- what must be so when all have ended ------------------------------------------------------------------------

    def _compare_filled(self) -> None:
        assert fetch(f"SELECT block FROM {STALE}") == []
        blocks = set(texts_by_block())
        last = max(Failure.objects.values_list("pk", flat=True)) // BLOCK
        filled = {block for (block,) in fetch(f"SELECT block FROM {FILTERS}")}
        assert filled - {last} == blocks - {last}, "a block has no filter"

    def _compare_with_model(self, phase: int) -> None:
        came: dict[Name, dict[int, Sent]] = {}
        for batches in self.plan.sent[phase].values():
            for one in (one for batch in batches for one in batch):
                came.setdefault(one.name, {})[one.attempt] = one
        found: dict[Name, set[int]] = {}
        rows = Attempt.objects.values_list("failure__source", "failure__queue", "failure__first_job_id", "attempt")
        for source, queue, job_id, attempt in rows:
            found.setdefault((source, queue, job_id), set()).add(attempt)
        assert len(rows) == sum(map(len, found.values())), "an attempt is there twice"
        for name in self.filed.keys() | came.keys():
            before, new = self.filed.get(name, {}), came.get(name, {})
            here = found.get(name, set())
            if not is_over(before, phase):
                wanted = [before | new]
            elif new:  # it went before they came, or they came first
                wanted = [new, before | new]
                self.raced += 1
            else:
                wanted = [{}]
                self.pruned += bool(before)
            chosen = next((one for one in wanted if one.keys() == here), None)
            assert chosen is not None, f"{name}: attempts {sorted(here)}, not {[sorted(one) for one in wanted]}"
            self.filed[name] = chosen
        self.filed = {name: attempts for name, attempts in self.filed.items() if attempts}
        assert found.keys() == self.filed.keys()
        self._compare_rows()
        self._compare_counts(phase)

    def _compare_rows(self) -> None:
        columns = ("state", "attempts", "error_type", "message", "host", "tenant")
        rows = list(Failure.objects.values_list("source", "queue", "first_job_id", *columns))
        assert len(rows) == len(self.filed), "a failure is there twice"
        for source, queue, job_id, *values in rows:
            attempts = self.filed[source, queue, job_id]
            top = attempts[max(attempts)]
            shown = attempts[max((n for n in attempts if attempts[n].kind != "success"), default=top.attempt)]
            wanted = [STATES[top.kind], top.attempt, *(shown.text.get(column, "") for column in columns[2:])]
            assert values == wanted, f"{source}/{queue}/{job_id}: {values}, not {wanted}"
        stacks = set(Traceback.objects.values_list("pk", flat=True))
        used = {pk for model in (Failure, Attempt) for pk in model.objects.values_list("traceback_id", flat=True)}
        assert stacks == used - {None}, f"{len(stacks - used)} stacks of no failure"

    def _compare_counts(self, phase: int) -> None:
        """Counters outlive what they counted: each report that was sent counts once, however often it was filed."""
        wanted: dict[tuple[str, str], list[int]] = {}
        since = max(0, phase - 1)
        for batches in (batches for sent in self.plan.sent[since : phase + 1] for batches in sent.values()):
            for one in (one for batch in batches for one in batch):
                place = {"exception": 0, "retry": 1, "success": 2}[one.kind]
                wanted.setdefault(one.name[:2], [0, 0, 0])[place] += 1
        start = now_of(since) - timedelta(days=1)
        counted: dict[tuple[str, str], list[int]] = {}
        rows = QueueCounter.objects.filter(step=HOUR, at__gte=start)
        for source, queue, *numbers in rows.values_list("source", "queue", "failed", "retried", "recovered"):
            before = counted.get((source, queue), [0, 0, 0])
            counted[source, queue] = [a + b for a, b in zip(before, numbers, strict=True)]
        assert counted == wanted, f"queues count {counted}, not {wanted}"
        groups = Counter[str]()
        for failed, retried in GroupCounter.objects.filter(step=HOUR, at__gte=start).values_list("failed", "retried"):
            groups.update(failed=failed, retried=retried)
        assert [groups["failed"], groups["retried"]] == [sum(n[place] for n in wanted.values()) for place in (0, 1)]
        tried = set(Attempt.objects.values_list("group_id", "failure_id"))
        represented = set(Group.objects.exclude(representative=None).values_list("pk", "representative_id"))
        assert represented <= tried, "a group is represented by a failure that never was in it"


def is_over(attempts: dict[int, Sent], phase: int) -> bool:
    """Return whether prune removes a failure with these attempts in this phase."""
    if not attempts:
        return False
    age = min(phase - one.phase for one in attempts.values()) * PHASE
    days = DAYS.get(STATES[attempts[max(attempts)].kind])
    return days is not None and age > timedelta(days=days)


def texts_by_block() -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for pk, *values in Failure.objects.values_list("pk", *COLUMNS):
        found.setdefault(pk // BLOCK, set()).update(substrings._texts(*values))
    return found


def fetch(sql: str) -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--phases", type=int, default=4)
    parser.add_argument("--batches", type=int, default=8, help="of each of two writers in each phase")
    parser.add_argument("--large", type=int, default=1, help="phases with a batch of about 512 reports")
    parser.add_argument("--kills", type=int, default=9, help="of each phase, beside its checkpoints")
    options = parser.parse_args()
    rig = Rig(options.folder, Plan(options.seed, options.phases, options.large, options.batches), options.kills)
    rig.run()
    print(json.dumps({"kills": rig.processes.kills, "pruned": rig.pruned, "raced": rig.raced, "searches": rig.searches,
                      "left": len(rig.filed)}))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
