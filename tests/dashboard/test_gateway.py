"""One client must not stop the desk for the others: a real desk behind its web server, attacked."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from urllib.parse import quote

import pytest
from django.db import connection
from django.db.utils import OperationalError

from dashboard.setup import checkup
from dashboard.web import limits
from tests.rigs.attack import PREPARE, round_of
from tests.rigs.pages import Desk, granian

_ENDLESS = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "postgresql": "SELECT pg_sleep(60)",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A desk of 1,000 failures, on the database that these tests run on."""
    server = ""
    if connection.vendor == "postgresql":
        at = connection.settings_dict
        login = f"{quote(at['USER'], safe='')}:{quote(at['PASSWORD'], safe='')}"
        server = f"postgresql://{login}@{at['HOST']}:{at['PORT']}/gateway"
    made = Desk(tmp_path_factory.mktemp("gateway"), connection.vendor, 1_000, server)
    made.fill()
    made.run("manage.py", "collectstatic", "--noinput", "--verbosity", "0")
    return made


@pytest.mark.server
def test_an_attacker_stops_nobody_and_leaves_nothing_running(desk):
    seen = round_of(desk, 11, 1)
    # A busy machine is slow: what must not be is that anybody waits for the attacker's ten seconds.
    assert seen["another viewer"]["list"]["most"] < 8_000
    assert seen["another viewer"]["healthz"]["most"] < 4_000
    assert seen["attacker's answers"]["slow body 408"] >= 3
    assert seen["after"]["connections"] <= seen["before"]["connections"]
    assert sorted(seen["after"]["spools"]) == sorted(seen["before"]["spools"])  # pytest's own output is one
    assert seen["after"]["processor_s_in_2_s"] < 0.5


@pytest.mark.skipif("connection.vendor != 'sqlite'", reason="PostgreSQL has statement_timeout")
def test_a_busy_machine_ends_no_search_early_but_a_long_one_is_ended():
    work = limits.Work(0.2, 0.4)
    with work.bound_thread():
        time.sleep(0.5)  # as if other programs had the processor
        work.begin_statement(connection)
        assert not work.is_over
        while not work.is_over:  # it computes, as a long statement does
            pass


@pytest.mark.server
def test_what_reaches_the_pages_through_the_gateway(desk):
    cookies = json.loads(desk.run("-c", PREPARE))
    with granian(desk.environment, "/healthz") as (port, _):

        def ask(method, path, body=None, **headers):
            requested = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            requested.request(method, path, body, headers)
            answer = requested.getresponse()
            return answer, answer.read()

        token = cookies["vera"].rpartition("=")[2]
        vera = {"Cookie": cookies["vera"], "X-CSRFToken": token}
        assert ask("GET", "/failures/?q=queue:emails", **vera)[0].status == 200
        head, nothing = ask("HEAD", "/failures/", **vera)
        assert head.status == 200 and nothing == b"" and int(head.headers["Content-Length"]) > 1_000
        assert ask("GET", "/failures/", If_None="x")[0].status == 302
        # A body that anybody sends is small; whoever is logged in may send more.
        assert ask("POST", "/login/", b"x" * 100_000)[0].status == 413
        assert ask("POST", "/failures/bulk/", b"x" * 100_000, **vera)[0].status in (200, 400, 403)
        # The export comes whole.
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer, export = ask("POST", "/failures/export/jsonl/", b"q=state%3A*", **vera, **form)
        assert answer.status == 200 and json.loads(export.splitlines()[-1]) == {"end": True, "failures": 1_000}
        # Names and values as they were sent, and both cookies of an answer.
        assert ask("GET", "/queues/shop/no%2Fsuch%20queue/", **vera)[0].status in (200, 404)
        # Without a proxy that buffers, doctor says so.
        assert checkup.forwards_unread_bodies(f"http://127.0.0.1:{port}")
        logged_out, _ = ask("POST", "/logout/", b"", **vera)
        assert logged_out.status == 302 and "sessionid" in " ".join(logged_out.headers.get_all("Set-Cookie"))


@pytest.mark.server
def test_a_made_up_credential_gets_no_more_than_none(desk):
    cookies = json.loads(desk.run("-c", PREPARE))
    with granian(desk.environment, "/healthz") as (port, _), contextlib.ExitStack() as opened:
        lines = [opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(8)]
        for n, line in enumerate(lines):
            shown = f"Authorization: Bearer {n}" if n % 2 else f"Cookie: sessionid=made-up-{n}"
            head = f"POST /login/ HTTP/1.1\r\nHost: a\r\n{shown}\r\nContent-Length: 9000000\r\n\r\n"
            line.sendall(head.encode() + b"x" * 70_000)

        def ask(path, **headers):
            sender = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            sender.request("POST", path, b"x" * 100_000, {"X-CSRFToken": cookies["vera"].rpartition("=")[2], **headers})
            return sender.getresponse().status

        assert [line.recv(12) for line in lines] == [b"HTTP/1.1 413"] * 8
        assert ask("/failures/bulk/", Cookie=cookies["vera"]) in (200, 400, 403)
        # The login of a proxy, beside which a browser shows its session.
        assert ask("/failures/bulk/", Cookie=cookies["vera"], Authorization="Basic cHJveHk6eA==") != 413


def test_what_waits_for_the_body_is_taken_for_a_proxy_that_buffers(monkeypatch):
    monkeypatch.setattr(checkup, "_BODY_WAIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not checkup.forwards_unread_bodies(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert silent.accept()[0].recv(1_000).startswith(b"POST /healthz")


@pytest.fixture
def watched(db):
    """The tests' own connection, bounded as the gateway bounds its."""
    connection.ensure_connection()
    limits._watch(connection)
    yield
    connection.execute_wrappers.remove(limits._before_each)
    if connection.vendor == "sqlite":
        connection.connection.set_progress_handler(None, 0)


def run_endless():
    with connection.cursor() as cursor:
        cursor.execute(_ENDLESS[connection.vendor])
        cursor.fetchall()


@pytest.mark.django_db(transaction=True)
def test_a_statement_ends_after_its_time_and_the_viewer_is_told_what_to_do(watched):
    began = time.monotonic()
    with limits.Work(0.3, 60).bound_thread():
        with pytest.raises(OperationalError) as ended:
            run_endless()
        text = limits.sentence(ended.value)
    assert time.monotonic() - began < 20
    assert text.startswith("This took longer than 0.3 s and was stopped; nothing was changed. Narrow the search")


@pytest.mark.django_db(transaction=True)
def test_a_client_that_left_ends_its_statement(watched):
    work = limits.Work(60, 60)
    threading.Timer(0.3, work.stop).start()
    began = time.monotonic()
    with work.bound_thread(), pytest.raises(OperationalError):
        run_endless()
    assert time.monotonic() - began < 20
    with work.bound_thread(), pytest.raises(limits.TimeIsUp):
        run_endless()


@pytest.mark.django_db(transaction=True)
def test_an_error_that_is_not_the_limits_is_told_as_one(watched):
    with limits.Work(60, 60).bound_thread(), connection.cursor() as cursor:
        with pytest.raises(Exception, match="no_such_table") as error:
            cursor.execute("SELECT * FROM no_such_table")
        assert limits.sentence(error.value) == ""
