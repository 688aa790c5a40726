"""One table of searches, and what they find: the same on SQLite and on PostgreSQL, and as Python decides it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from jobs_admin import failures
from jobs_admin.core.query import format, parse
from jobs_admin.core.search_terms import phrases
from jobs_admin.ingest import indexing
from jobs_admin.models import Attempt, Failure, Replay, ReplayItem, Traceback
from jobs_admin.models.access import ENGINE, Viewer
from jobs_admin.search import failure_search
from jobs_admin.search.failure_search import FailureSearch
from tests.kit.endurance import times
from tests.kit.searching import NOW, bury
from tests.search import world

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
NAMED = {
    "timeout": {"error_type": "requests.exceptions.ReadTimeout", "message": "api.example.com: Read timed out. (5 s)"},
    "upload": {"error_type": "S3UploadFailedError", "message": "Failed to upload x.csv: ReadTimeoutError", "host": "web-3"},
    "dns": {"error_type": "socket.gaierror", "message": "[Errno -2] Name or service not known", "queue": "webhooks"},
    "key": {"error_type": "KeyError", "message": "'order-4711'", "kwargs": '{"customer": {"id": 42}, "email": "Ann@x.org"}'},
    "args": {"error_type": "ValueError", "message": "100% of a_b", "args": '[{"customer": {"id": 42}}, "x y"]'},
    "hidden": {"error_type": "E", "message": "token=[redacted]", "kwargs": '{"password": "[redacted]"}'},
    "uni": {"error_type": "Ärger", "message": "Größe unbekannt: ½ €", "state": "recovered"},
}  # fmt: skip
TABLE = [
    ("timeout", "timeout upload"),
    ("TIMEOUT", "timeout upload"),
    ("readtimeout", "timeout upload"),
    ("ReadTimeoutError", "upload"),
    ("timeouterror", "upload"),
    ("time", ""),
    ("time*", "timeout upload"),
    ("timeo*", "timeout upload"),
    ("*imeou", "timeout upload"),
    ("Read*5", "timeout"),
    ("Read*Error", "upload"),
    ('"timed out"', "timeout"),
    ('"out timed"', ""),
    ('"ReadTimeout: api.example.com"', "timeout"),
    ('"readtimeout api"', ""),
    ('"read timeout api"', "timeout"),
    ("error:timeout", "timeout upload"),
    ("message:timeout", "upload"),
    ("message:ReadTimeout", "upload"),
    ("-message:timeout error:timeout", "timeout"),
    ("error:=KeyError", "key"),
    ("error:=keyerror", ""),
    ("error:s3", "upload"),
    ("error:=S3UploadFailedError,=KeyError", "upload key"),
    ("[Errno -2] Name or service not known", "dns"),
    ("-2", "dns"),
    ("errno 2", ""),
    ("order-4711", "key"),
    ("4711", "key"),
    ('-"order 4711" -"timeout"', "dns args hidden"),
    ("a_b", "args"),
    ('"%"', "args"),
    ('"_"', "args"),
    ("größe", ""),
    ("größe state:*", "uni"),
    ("GRÖSSE state:*", "uni"),
    ("ÄRGER state:recovered", "uni"),
    ("queue:webhooks", "dns"),
    ("queue:web*", "dns"),
    ("-queue:emails", "dns"),
    ("host:web-3", "upload"),
    ("host:WEB-3", ""),
    ("host:web-*", "upload"),
    ("host:*-3", "upload"),
    ("-host:web-3 -queue:webhooks", "timeout key args hidden"),
    ("kwargs.customer.id:42", "key"),
    ("args.customer.id:42", "args"),
    ("args.0.customer.id:42", "args"),
    ("args.1.customer.id:42", ""),
    ('args.1:"x y"', "args"),
    ("args.1:x*", "args"),
    ("kwargs.customer.id:4", ""),
    ("kwargs.customer.id:4*", "key"),
    ("kwargs.email:ann@x.org", "key"),
    ("kwargs.email:ANN@*", "key"),
    ("kwargs.email:*", "key"),
    ("-kwargs.customer.id:42 error:KeyError,ValueError", "args"),
    ("kwargs.customer.id:42 OR args.customer.id:42", "key args"),
    ("kwargs.password:secret", ""),
    ("trace:billing.py", "timeout"),
    ('trace:"in charge"', "timeout"),
    ("trace:charge,send", "timeout key"),
    ("trace:bill*", "timeout"),
    ("-trace:billing.py timeout", "upload"),
    ("trace:mail.py OR timeout", "timeout upload key"),
    ("timeout OR queue:webhooks", "timeout upload dns"),
    ("timeout OR attempts:>=9", "timeout upload"),
    ("(error:timeout host:web-3) OR error:KeyError", "upload key"),
    ("timeout queue:webhooks", ""),
    ("timeout state:recovered", ""),
    ("(queue:webhooks -error:timeout) OR host:web-3", "upload dns"),
    ("j-key", "key"),
    ("j-key OR j-dns", "dns key"),
    ("J-KEY", ""),
    ("again-dns", "dns"),
    ("tenat:x", ""),
    ("", "timeout upload dns key args hidden"),
]


@pytest.fixture
def desk():
    made = {}
    for name, changes in NAMED.items():
        (one,) = bury(args="", **{k: v for k, v in changes.items() if k != "args"})
        job_id = "again-dns" if name == "dns" else f"j-{name}"
        Failure.objects.filter(pk=one.pk).update(first_job_id=f"j-{name}", job_id=job_id, args=changes.get("args", ""))
        made[name] = one
    for name, text in (("timeout", world.STACKS[0]), ("key", world.STACKS[1])):
        stack = Traceback.objects.create(sha256=name, text=text)
        Failure.objects.filter(pk=made[name].pk).update(traceback=stack)
    indexing.index(made.values())
    return {one.pk: name for name, one in made.items()}


@pytest.mark.parametrize(("text", "names"), TABLE)
def test_a_search_finds(desk, text, names):
    page = failures.search(ENGINE, text, now=NOW)
    assert {desk[row.pk] for row in page.rows} == set(names.split()), page.reading
    assert page.count.number == len(page.rows)
    assert {desk[f.pk] for f in failures.find_matching(ENGINE, parse(text, NOW))} == set(names.split())


@pytest.fixture
def failures_of_world():
    return world.make()


FIELDS = {
    "queue": ["emails", "web hooks", "emails.low", "em*", "*"],
    "task": ["mail.send", "shop.Charge", "shop.*", "*.send"],
    "source": ["shop", "bank", "b*"],
    "tenant": ["Acme", "A, B", "A*", "*B"],
    "host": ["web-3", "db%1", "db*", "*1"],
    "worker": ["celery@web-3", "celery@WEB-3", "celery@*"],
    "release": ["2026.11", "2026*"],
    "kind": ["exception", "hard_limit", "*l*"],
    "state": ["dead", "recovered", "re*", "any"],
    "group": ["v1-0", "v1-2", "v1-*"],
    "dependency": ["api.example.com", "Postgresql", "10.0.0.5:5432", "aws", "a*", "*:*", "nothing", "*"],
    "error": ["timeout", "ReadTimeoutError", "Error", "Mem*", "=KeyError", "x"],
    "message": ["timeout", "failed", "errno -2", "=", "Read*out", "%", world.EVENT],
    "trace": ["billing.py", "in charge", "sendmail", "nothing", "mail*", world.TRACE, world.EVENT.upper()],
    "kwargs.customer.id": ["42", "4*", "43"],
    "kwargs.email": ["ann@example.org", "ann*", "BOB@example.org", "*"],
    "kwargs.password": ["secret", "*"],
    "args.tenant": ["acme"],
    "args.0": ["x y", "true", "x*"],
    "kwargs.cut.id": ["42"],
}
WORDS = ["timeout", "read", "timeouterror", "READTIMEOUT", "-2", "errno", "order-4711", "10.0.0.5", "9s6XKzkNRiz", "ärger",
         "Read*", "s3*", "Read*ut", "*imed", "job-7", "again-3", "a_b", "econnrefused", "FATAL", "nothing",
         world.TRACE, world.EVENT, f"00-{world.TRACE}-00f067aa0ba902b7-01", "10*", f"{world.EVENT[:8]}*"]  # fmt: skip


def value(text: str) -> str:
    return f'"{text}"' if " " in text or "," in text else text


MATCHES = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda field: st.builds(
        lambda sign, values: f"{sign}{field}:{','.join(map(value, values))}",
        st.sampled_from(["", "", "-"]),
        st.lists(st.sampled_from(FIELDS[field]), min_size=1, max_size=2),
    )
)
QUOTES = st.sampled_from(
    ['"timed out"', '-"timed out"', '"ReadTimeout: HTTPSConnectionPool"', '"Name or"', '-"x"', '"&"']
)
NUMBERS = st.sampled_from(
    [
        "attempts:>=3",
        "attempts:1,5",
        "-attempts:2",
        "priority:5",
        "-priority:0",
        "priority:high,low",
        "-priority:critical",
        "replay:1",
    ]
)
TIMES = st.sampled_from(["age:<2d", "-age:<2d", "since:2026-11-19", "until:90h", "age:<1m"])
LEAVES = MATCHES | st.sampled_from(WORDS) | QUOTES | NUMBERS | TIMES
GROUPS = st.lists(MATCHES | NUMBERS, min_size=1, max_size=3).map(lambda parts: f"({' '.join(parts)})")
SEARCHES = st.lists(LEAVES | GROUPS | st.just("OR"), max_size=5).map(" ".join)


@settings(max_examples=times(50, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=SEARCHES)
@example(text=f"state:any {world.TRACE} {world.EVENT.upper()}")
@example(text=f"state:any -trace:{world.TRACE}")
@example(text=f"state:any trace:{world.EVENT},billing.py")
@example(text=f"state:any 00-{world.TRACE}-00f067aa0ba902b7-01 OR 10*")
def test_any_search_finds_what_python_decides(failures_of_world, monkeypatch, text):
    monkeypatch.setattr(failure_search, "_WINDOWS", 10**9)  # of every id
    query = parse(text, NOW)
    wanted = world.expected(query, failures_of_world)
    page = failures.search(ENGINE, text, now=NOW, limit=500)
    assert [row.pk for row in page.rows] == wanted, (text, page.reading)
    assert page.count == failures.Count(len(wanted))
    if not query.is_bounded:
        assert FailureSearch(ENGINE, query).total(0) == FailureSearch(ENGINE, query).total(2) == (len(wanted), False)
    assert set(failures.find_matching(ENGINE, query).values_list("pk", flat=True)) == set(wanted)
    assert parse(format(query), NOW) == query


@settings(max_examples=times(20, 50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=SEARCHES)
def test_pages_meet_and_a_viewer_sees_only_the_own_sources(failures_of_world, text):
    viewer = Viewer("ann", {"bank": "viewer"})
    wanted = world.expected(parse(text, NOW), [f for f in failures_of_world if f.source == "bank"])
    pages, after = [], None
    while True:
        page = failures.search(viewer, text, now=NOW, limit=3, after=after)
        pages += [row.pk for row in page.rows]
        if (after := page.next) is None:
            break
    assert pages == wanted and page.count.number == len(wanted), text


@pytest.mark.parametrize("text", ["a*", "t*", "err*", "kw*", "que*", "job*", "s*", "args*", "message:m*", "error:t*"])
def test_the_beginning_of_a_word_is_not_that_of_a_name(failures_of_world, text):
    wanted = world.expected(parse(text, NOW), failures_of_world)
    assert [row.pk for row in failures.search(ENGINE, text, now=NOW, limit=500).rows] == wanted


@pytest.mark.parametrize("most_ids", [-1, 200_000])
@pytest.mark.parametrize("few", [0, 3])
def test_every_way_to_a_page_gives_the_same(failures_of_world, monkeypatch, few, most_ids):
    monkeypatch.setattr(failure_search, "_FEW", few)
    monkeypatch.setattr(failure_search, "_SOME", most_ids)
    for text in ("timeout state:gone", "error:timeout age:<2d", "age:<3d", "read state:recovered queue:emails", "-read",
                 "timeout tenant:Acme state:*", "host:web-3 since:1h", "kind:lost", "-kind:lost,exception timeout",
                 "attempts:>=3", "attempts:1,5 state:*", "-attempts:2", "-attempts:0..1,3,5.. read", "-attempts:>=2 OR kind:lost", "priority:0..9", "-priority:5 kind:hard_*",
                 "until:2d", "until:2d state:* kind:lost", "since:5d until:2d", "read until:3d", "-since:2d read",
                 "tenant:Acme queue:emails", "read OR kind:lost", "(read state:gone) OR attempts:1 queue:emails",
                 "e* OR (kind:lost state:*) OR priority:5", "-age:>3d OR read", "*ead OR kind:lost", "group:none tenant:Acme", "read priority:high,low", "priority:low queue:emails",
                 "dependency:api.example.com", "dependency:a* queue:emails", "-dependency:*", "dependency:postgresql state:*", "read -dependency:aws",
                 "dependency:aws,postgresql OR tenant:Acme", "dependency:127.0.0.1:6379 state:* kind:lost", "dependency:none state:*",
                 "queue:emails group:none state:*", "(read OR kind:lost) (t* OR attempts:1) (e* OR queue:emails)"):  # fmt: skip
        wanted = world.expected(parse(text, NOW), failures_of_world)
        assert [row.pk for row in failures.search(ENGINE, text, now=NOW, limit=500).rows] == wanted, text


@pytest.mark.parametrize("most_others", [0, 2, 5_000])
@pytest.mark.parametrize("spread", [timedelta(minutes=7), timedelta(hours=3)])
def test_a_time_is_found_by_when_failures_arrived(failures_of_world, monkeypatch, most_others, spread):
    """Some failed long before they arrived, and some again long after: those match, too."""
    monkeypatch.setattr(failure_search, "_FEW", 0)
    monkeypatch.setattr(failure_search, "_MOST_OTHERS", most_others)
    for n, one in enumerate(sorted(failures_of_world, key=lambda one: -one.pk)):
        Failure.objects.filter(pk=one.pk).update(received_at=NOW - n * spread)
    times = ("", "since:1d", "until:1d", "age:<3d", "age:>2d", "since:5d until:2d", "since:1h until:2d", "until:9w")
    for text in (f"{words} {time}" for words in ("", "timeout", "-read", "state:dead", "e*") for time in times):
        wanted = world.expected(parse(text, NOW), failures_of_world)
        page = failures.search(ENGINE, text, now=NOW)
        assert ([row.pk for row in page.rows], page.count) == (wanted[: len(page.rows)], failures.Count(len(wanted))), (
            text
        )


@pytest.mark.parametrize("few", [0, 3, 100])
def test_failures_of_a_policy_or_a_replay_are_found_by_these(monkeypatch, few):
    monkeypatch.setattr(failure_search, "_FEW", few)
    made = bury(6)
    for one, policy in zip(made, ["slow@1", "slow@2", "slower@1", "", "slow", "Fast"], strict=True):
        for run in (1, 2):
            Attempt.objects.create(
                failure=one, run=run, attempt=1, kind="exception", policy=policy, ended_at=NOW, received_at=NOW
            )
    replay = Replay.objects.create(actor="ann", scope_max_id=made[-1].pk)
    for n, one in enumerate(made[2:4]):
        ReplayItem.objects.create(replay=replay, n=n + 1, failure=one, run=2)
    for text, places in (("policy:slow", (4, 1, 0)), ("policy:slow@2", (1,)), ("policy:slo*", (4, 2, 1, 0)),
                         ("policy:fast", ()), ("-policy:slow", (5, 3, 2)), ("policy:slow KeyError", (4, 1, 0)),
                         (f"replay:{replay.pk}", (3, 2)), (f"replay:{replay.pk} policy:*", (2,)),
                         (f"-replay:{replay.pk} policy:slow,Fast", (5, 4, 1, 0))):  # fmt: skip
        page = failures.search(ENGINE, text, now=NOW)
        assert [row.pk for row in page.rows] == [made[at].pk for at in places], text
        assert page.count.number == len(places)


def test_text_of_two_characters_is_searched_for_in_the_latest(monkeypatch):
    monkeypatch.setattr(failure_search, "LATEST_COMPARED", 5)
    (old,), _, _ = bury(message="a needle"), bury(4), bury(3, state="recovered")
    page = failures.search(ENGINE, "*le", now=NOW)
    assert [row.pk for row in page.rows] == [old.pk] and page.searched is None and not page.count.is_capped
    bury()
    page = failures.search(ENGINE, "*le", now=NOW)
    assert (page.rows, page.searched, page.count.is_capped) == ([], 5, True)
    page = failures.search(ENGINE, "*eedle", now=NOW)  # of three characters and more every failure is searched
    assert [row.pk for row in page.rows] == [old.pk] and page.searched is None and not page.count.is_capped
    assert list(failures.find_matching(ENGINE, parse("*eedle", NOW))) and not failures.find_matching(
        ENGINE, parse("*eedle", NOW), role="operator"
    )


def test_a_search_inside_a_redacted_value_reports_it(desk):
    hints = failures.search(ENGINE, "kwargs.password:hunter2", now=NOW).hints
    assert any("1 of these jobs has kwargs.password redacted" in hint for hint in hints)
    hints = failures.search(ENGINE, "kwargs.api_key:x queue:webhooks", now=NOW).hints
    assert any("Values of kwargs.api_key are redacted" in hint for hint in hints)
    hints = failures.search(ENGINE, "hunter2", now=NOW).hints
    assert any("1 message is partly redacted" in hint for hint in hints)
    assert failures.search(ENGINE, "timeout kwargs.email:x", now=NOW).hints == ()


def test_what_is_deleted_is_not_found_and_a_rollback_takes_its_terms_along(desk):
    with transaction.atomic():
        bury(message="rolledback")
        transaction.set_rollback(True)
    assert failures.count(ENGINE, parse("rolledback")).number == 0
    Failure.objects.filter(error_type="KeyError").delete()
    assert failures.count(ENGINE, parse("order")).number == 0


def test_the_index_is_made_again_step_by_step_from_where_it_was(desk, monkeypatch):
    monkeypatch.setitem(indexing.AT_ONCE, indexing.FAILURES, 3)
    Failure.objects.filter(error_type="KeyError").update(message="'order-0815'")
    assert failures.count(ENGINE, parse("0815")).number == 0 and not indexing.step()
    indexing.mark_all_outdated()
    steps = 0
    while indexing.step():
        steps += 1
    assert failures.count(ENGINE, parse("0815")).number == 1 and failures.count(ENGINE, parse("4711")).number == 0
    assert steps >= 4 and indexing.count_outdated() == 0


def test_what_is_required_beside_an_or_is_required_of_each_side(desk):
    searcher = FailureSearch(ENGINE, parse("timeout OR kind:lost,exception state:any", NOW))
    assert searcher.branches and searcher.count(100) > 1
    required = FailureSearch(ENGINE, parse("timeout OR kind:lost,exception state:any", NOW))
    required.require(phrases("nothinghasthis")[0])
    assert required.count(100) == 0 and required.ids(None, 100) == []


def test_the_sides_of_a_second_or_are_no_searches_of_their_own():
    searcher = FailureSearch(ENGINE, parse("(timeout OR kind:lost) (read OR kind:exception) (key OR attempts:1)", NOW))
    assert len(searcher.branches) == 2 and not any(side.branches for side in searcher.branches)
