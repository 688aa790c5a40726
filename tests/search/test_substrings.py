"""Substrings: found in every failure, however the filters of trigrams stand. The same as a plain scan finds."""

from __future__ import annotations

import threading
from random import Random

import pytest
from django.db import connection, transaction

from jobs_admin import failures
from jobs_admin.core import trigrams
from jobs_admin.core.query import All, Any, Match, Query, Text, Value, parse
from jobs_admin.core.text import representable
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Traceback
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.models.terms import STATE
from jobs_admin.models.text_filters import BLOCK, FILTERS, LOCK, STALE, install_text_filters
from jobs_admin.search import failure_search, substrings
from jobs_admin.search.failure_search import FailureSearch
from tests.kit.endurance import times
from tests.kit.failures import forget
from tests.kit.reports import NOW as FILED_AT
from tests.kit.reports import file, report
from tests.kit.searching import NOW, bury

pytestmark = [pytest.mark.django_db, pytest.mark.databases]

PIECES = ["100%", "a_b", "O'Brien", '"quoted"', "\\", "nul\x00nul", "😀😀", "e\u0301te\u0301", "été", "GRÖSSE", "größe", "ΣΑΣ",
          "TimeOut", "timeout", "İstanbul", "->", "-->>", "::", "  ", "\n", "4711", "1d9f", "日本語", "x", "%%", "__", "[Errno -2]"]  # fmt: skip
NAMES = ["", "web-3", "WEB-33", "db%1", "日本"]
ANY_STATE = Match("state", (Value("any"),))
SOURCES = ["shop", "bank"]
ANN = Viewer("ann", {"bank": "viewer"})


def rows_of(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall()


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def filled():
    return {block for (block,) in rows_of(f"SELECT block FROM {FILTERS}")}


def fill():
    while substrings.step():
        pass


class World:
    """A desk whose failures come, change and go, and whose filters are filled between."""

    def __init__(self, seed: int) -> None:
        self.random, self.made = Random(seed), 0

    def act(self) -> None:
        self.random.choice(
            [
                self.add,
                self.add,
                self.add,
                self.change,
                self.erase,
                self.prune,
                self.fill,
                self.fill,
                self.die,
                self.forget_filters,
            ]
        )()

    def text(self) -> str:
        parts = self.random.choices(PIECES, k=self.random.randrange(0, 5))
        return representable(
            "".join(f"{part}{self.random.choice(['', ' ', str(self.random.randrange(99))])}" for part in parts)
        )

    def add(self) -> None:
        rows = []
        for _ in range(self.random.choice([1, 5, 15, 16, 17, 60])):
            self.made += 1
            job_id = self.random.choice([f"j-{self.made}", "-" * (3 + self.made % 200)])
            rows.append(
                Failure(source=self.random.choice(SOURCES), queue=self.random.choice(["a", "b"]), task="t", first_job_id=job_id,
                        job_id=job_id, state=self.random.choice(["dead", "dead", "recovered"]), kind="exception", attempts=1,
                        error_type=self.random.choice(["KeyError", "Ärger", "", "E"]), message=self.text(),
                        host=self.random.choice(NAMES), tenant=self.random.choice(NAMES), first_failed_at=NOW, failed_at=NOW, received_at=NOW)
            )  # fmt: skip
        indexing.index(Failure.objects.bulk_create(rows))

    def some(self) -> list[int]:
        ids = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
        return self.random.sample(ids, min(len(ids), self.random.choice([1, 3, 20])))

    def change(self) -> None:
        for pk in self.some():
            Failure.objects.filter(pk=pk).update(message=self.text(), host=self.random.choice(NAMES))
        indexing.index(Failure.objects.all())

    def erase(self) -> None:
        Failure.objects.filter(pk__in=self.some()).update(error_type="", message="", host="", tenant="")
        indexing.index(Failure.objects.all())

    def prune(self) -> None:
        if some := self.some():
            forget(some)

    def fill(self) -> None:
        for _ in range(self.random.choice([1, 1, 5])):
            substrings.step()

    def die(self) -> None:
        """A process that fills is killed at any point: its transaction is not committed."""
        left = [self.random.randrange(6)]
        build = trigrams.build_filter

        def build_and_die(texts):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return build(texts)

        trigrams.build_filter = build_and_die
        try:
            substrings.step()
        except KeyboardInterrupt:
            pass
        finally:
            trigrams.build_filter = build

    def forget_filters(self) -> None:
        substrings.clear()

    def part(self) -> str:
        """A text of 1 to 5 characters, mostly of a failure."""
        rows = Failure.objects.order_by("pk").values_list("error_type", "message")
        texts = [f"{type_}: {message}" for type_, message in (self.random.choices(list(rows), k=3) if rows else ())]
        text = self.random.choice([*texts, self.text(), "".join(self.random.choices("ab1%_\\'", k=5))]) or "x"
        start, length = self.random.randrange(len(text)), self.random.randrange(1, 6)
        return self.random.choice([str, str.upper, str.lower])(text[start : start + length].replace("*", "")) or "x"

    def term(self):
        part, negated = self.part(), self.random.random() < 0.15
        return self.random.choice(
            [
                Text(f"*{part}", glob=True, negated=negated),
                Text(f"*{part}*{self.part()}", glob=True),
                Match("message", (Value(f"*{part}", glob=True),), negated=negated),
                Match("message", (Value(f"*{part}", glob=True), Value(f"*{self.part()}", glob=True))),
                Match("error", (Value(f"*{part}", glob=True),)),
                Match("host", (Value(f"*{self.random.choice(NAMES)[-3:] or 'x'}", glob=True),)),
                Text("-" * self.random.randrange(3, 9)),
            ]
        )

    def query(self) -> Query:
        terms = [self.term()]
        more = self.random.choice(
            [
                None,
                None,
                ANY_STATE,
                Match("queue", (Value("a"),)),
                Text("timeout"),
                Text("timeo", negated=True),
                self.term(),
                "or",
                "or queue",
            ]
        )
        if more == "or":
            terms = [Any((*terms, self.term()))]
        elif more == "or queue":
            terms = [Any((*terms, All((Match("queue", (Value("b"),)), Text("timeout"))))), self.term()]
        elif more is not None:
            terms.append(more)
        return Query(tuple(terms), now=NOW)


def matches(query, viewer):
    """The ids that a scan of every row finds."""
    return list(failures.find_matching(viewer, query).order_by("-pk").values_list("pk", flat=True))


def compare(query, viewer, limit):
    wanted = matches(query, viewer)
    searcher = FailureSearch(viewer, query)
    found, after = [], None
    while page := FailureSearch(viewer, query).ids(after, limit):
        found, after = [*found, *page], page[-1]
    if searcher.searched is None:
        assert found == wanted, query
        assert searcher.total(10_000) == (len(wanted), False) and searcher.count(3) >= min(3, len(wanted)), query
        assert FailureSearch(viewer, query).total(0)[0] == len(wanted), query
    else:
        assert substrings.is_unfiltered(Any(query.terms)) and set(found) <= set(wanted), query


@pytest.mark.parametrize("compared", [3, 5_000])
def test_any_history_finds_what_a_scan_finds(monkeypatch, compared):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", compared)
    monkeypatch.setattr(failure_search, "_FIRST_BLOCKS", 2)
    monkeypatch.setattr(failure_search, "_COMPARED", 20)
    monkeypatch.setattr(failure_search, "_WINDOWS", 10**9)  # of every id
    for seed in range(times(1, 60)):
        Failure.objects.all().delete()
        world = World(seed)
        world.add()
        for _ in range(14):
            world.act()
            for _ in range(4):
                compare(world.query(), world.random.choice([ENGINE, ENGINE, ANN]), world.random.choice([2, 7, 500]))


def test_a_filter_lacks_no_trigram_of_its_texts_and_excludes_most_others():
    random = Random(1)
    texts = [f"{random.getrandbits(64):016x} {piece}" for piece in PIECES * 3]
    found = trigrams.build_filter(texts)
    wrong = 0
    for text in texts:
        for start in range(len(text)):
            needed = trigrams.hash_trigrams(
                [text[start : start + random.randrange(3, 9)].swapcase() if text.isascii() else text[start:]]
            )
            assert trigrams.build_test(trigrams.Required(frozenset(needed)))(found)
    for _ in range(1_000):
        needed = trigrams.hash_trigrams([f"{random.getrandbits(24):06x}zq"])
        wrong += trigrams.build_test(trigrams.Required(frozenset(needed)))(found)
    assert wrong < 30


def test_the_last_block_waits_and_what_changed_is_filled_first():
    made = bury(5 * BLOCK)
    fill()
    last = made[-1].pk // BLOCK
    assert filled() == set(range(made[0].pk // BLOCK, last)) and substrings.count_unfilled() <= BLOCK
    Failure.objects.filter(pk=made[0].pk).update(state="recovered", reason="r")
    assert rows_of(f"SELECT block FROM {STALE}") == []
    Failure.objects.filter(pk=made[0].pk).update(message="needle")
    assert rows_of(f"SELECT block FROM {STALE}") == [(made[0].pk // BLOCK,)]
    bury(5 * BLOCK)
    assert substrings.step() and rows_of(f"SELECT block FROM {STALE}") == [] and max(filled()) < last
    fill()
    assert max(filled()) >= last + 4 and not substrings.step()


def test_attempts_of_several_jobs_in_one_block_are_filed_and_found():
    jobs = [f"j{n}" for n in range(3 * BLOCK)]
    file(*(report(job, "retry", order=n) for n, job in enumerate(jobs)))
    fill()
    assert filled()
    file(*(report(job, attempt=2, message=f"needle-{job}-") for job in jobs))
    found = failures.search(ENGINE, "*edle-j7-", now=FILED_AT)
    assert [row.job_id for row in found.rows] == ["j7"] and Failure.objects.filter(
        message__contains="needle"
    ).count() == len(jobs)
    fill()
    assert rows_of(f"SELECT block FROM {STALE}") == []
    assert [row.job_id for row in failures.search(ENGINE, "*edle-j7-", now=FILED_AT).rows] == ["j7"]


def test_a_transaction_fills_what_its_time_allows_and_leaves_no_gap(monkeypatch):
    monkeypatch.setattr(substrings, "_TRANSACTION_S", 0.0)
    made = bury(4 * BLOCK)
    assert substrings.step() and len(filled()) == 1  # the latest of the older ones
    bury(4 * BLOCK)
    fill()
    first, last = made[0].pk // BLOCK, (made[-1].pk + 4 * BLOCK) // BLOCK
    assert filled() == set(range(first, last)) and substrings.count_unfilled() <= BLOCK


def test_filters_are_made_again_after_their_triggers_were_gone():
    made = bury(3 * BLOCK)
    fill()
    on = "" if connection.vendor == "sqlite" else " ON jobs_admin_failure"
    with connection.cursor() as cursor:  # as where SQLite rebuilds a table
        cursor.execute(f"DROP TRIGGER {FILTERS}_update{on}")
    Failure.objects.filter(pk=made[0].pk).update(message="needle")
    install_text_filters()
    assert filled() == set()
    fill()
    assert [row.pk for row in failures.search(ENGINE, "*eedle", now=NOW).rows] == [made[0].pk]
    assert filled()
    install_text_filters()  # nothing was missing
    assert filled()


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("message:*eedle,zzzz", "needle"),
        ("message:*eedle,pins", "needle pins"),
        ("error:=KeyErr,*eyErr", "all"),
        ("host:*eb-7,w1", "web w1"),
    ],
)
def test_a_list_of_text_inside_words_and_of_words_finds_old_failures(monkeypatch, text, matches):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 5)
    kinds = {
        "needle": {"message": "a needle"},
        "pins": {"message": "pins"},
        "web": {"host": "web-7"},
        "w1": {"host": "w1"},
    }
    made = {name: bury(1, **changed)[0].pk for name, changed in kinds.items()}
    others = [one.pk for one in bury(4 * BLOCK)]
    fill()
    wanted = [*made.values(), *others] if matches == "all" else [made[name] for name in matches.split()]
    page = failures.search(ENGINE, text, now=NOW, limit=200)
    assert sorted(row.pk for row in page.rows) == sorted(wanted) and page.count == failures.Count(len(wanted))
    assert FailureSearch(ENGINE, parse(text, NOW)).searched is None


def test_an_older_release_fills_nothing_after_the_rules_changed():
    bury(3 * BLOCK)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {STATE} SET version = version + 1 WHERE name = %s", [FILTERS])
    assert not substrings.step() and filled() == set()


def test_nothing_of_a_deleted_failure_is_left_in_a_filter():
    made = bury(3 * BLOCK, message="'foo'")
    secret = made[BLOCK]
    Failure.objects.filter(pk=secret.pk).update(message="zqxj" * 20)
    fill()
    test = trigrams.build_test(trigrams.Required(frozenset(trigrams.hash_trigrams(["zqxj"]))))
    assert sum(test(bytes(found)) for (found,) in rows_of(f"SELECT filter FROM {FILTERS}")) == 1
    forget([secret.pk])
    fill()
    assert not any(test(bytes(found)) for (found,) in rows_of(f"SELECT filter FROM {FILTERS}"))
    forget([one.pk for one in made])
    fill()
    assert filled() == set() and substrings.count_unfilled() == 0


def test_an_old_failure_is_found_among_many_without_comparing_them(monkeypatch):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 5)
    (old,) = bury(message="a needle in hay")
    bury(100 * BLOCK)
    fill()
    for text in ("*eedle", "message:*eedle queue:emails", "needle *eedle", "*eedle OR queue:none", "-message:*foo*"):
        page = failures.search(ENGINE, text, now=NOW)
        assert ([row.pk for row in page.rows], page.searched, page.count.number) == ([old.pk], None, 1), text
    searcher = FailureSearch(ENGINE, Query((Text("*eedle", glob=True),), now=NOW))
    assert searcher.ids(None, 50) == [old.pk] and searcher._matches_from_top.compared < 50 * BLOCK


def test_text_of_a_stack_is_found_however_old(monkeypatch):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 2)
    stack = Traceback.objects.create(sha256="a", text="for key, _ in {}.items(): 100% of a_b")
    (old,) = bury(traceback=stack)
    bury(5, traceback=Traceback.objects.create(sha256="b", text="for key in []: a-b"))
    for text in ("{}.", "*ey, _*0%", "%", "_"):
        searcher = FailureSearch(ENGINE, Query((Match("trace", (Value(text, glob="*" in text),)),), now=NOW))
        assert (searcher.ids(None, 9), searcher.total(9), searcher.searched) == ([old.pk], (1, False), None), text
    searcher = FailureSearch(ENGINE, Query((Match("trace", (Value("=="),)),), now=NOW))
    assert (searcher.ids(None, 9), searcher.searched) == ([], None)


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
def test_a_failure_that_is_not_committed_yet_is_not_missing_from_a_filter():
    """Ids are given before rows can be seen: a filter of such a block would lack a row."""
    bury(2 * BLOCK)
    written, goes_on = threading.Event(), threading.Event()

    def write():
        with transaction.atomic():
            (one,) = bury(message="a needle")
            ids.append(one.pk)
            written.set()
            goes_on.wait(60)
        connection.close()

    ids, writer = [], threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(60)
        assert not substrings.step()  # the writer has begun
    finally:
        goes_on.set()
        writer.join()
    bury(2 * BLOCK)
    fill()
    assert ids[0] // BLOCK in filled()
    assert FailureSearch(ENGINE, Query((Text("*eedle", glob=True),), now=NOW)).ids(None, 9) == ids

    # A writer that comes while a filter is made marks it, once it is there.
    highest = Failure.objects.order_by("-pk").first().pk
    block = (highest + 1) // BLOCK
    with transaction.atomic():
        execute(f"SELECT pg_advisory_xact_lock({LOCK})")
        writer = threading.Thread(target=lambda: (bury(), connection.close()))
        writer.start()
        while not rows_of(
            f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = {LOCK & 0xFFFFFFFF}"
        ):
            pass
        execute(f"DELETE FROM {FILTERS} WHERE block = {block}")
        execute(f"INSERT INTO {FILTERS} (block, filter) VALUES ({block}, decode('00', 'hex'))")
    writer.join()
    assert (block,) in rows_of(f"SELECT block FROM {STALE}")
