"""One client must not stop the desk for the others: a real desk behind its web server, attacked."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import quote

import pytest
from django.db import connection
from django.db.utils import OperationalError

from dashboard.setup import checkup, environment
from dashboard.web import limits
from jobs_admin.models import Replay
from tests.kit.waiting import wait_until
from tests.rigs.attack import PREPARE, _list_leftovers, round_of
from tests.rigs.pages import Desk, granian

# Of the gateway before `tests.rigs.short_gateway`'s pages, in seconds.
BOUNDS = {"anonymous_body_s": 1.0, "body_s": 4.0, "write_s": 8.0, "known_s": 1.0}
EXPORT = "/failures/export/endless/"
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
@pytest.mark.long("An attacker sends all that it can for eleven seconds.")
def test_an_attacker_stops_no_one_and_leaves_nothing_running(desk):
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

        def send_request(method, path, body=None, **headers):
            requested = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            requested.request(method, path, body, headers)
            answer = requested.getresponse()
            return answer, answer.read()

        token = cookies["vera"].rpartition("=")[2]
        vera = {"Cookie": cookies["vera"], "X-CSRFToken": token}
        assert send_request("GET", "/failures/?q=queue:emails", **vera)[0].status == 200
        head, nothing = send_request("HEAD", "/failures/", **vera)
        assert head.status == 200 and nothing == b"" and int(head.headers["Content-Length"]) > 1_000
        assert send_request("GET", "/failures/", If_None="x")[0].status == 302
        # A body that anybody sends is small; whoever is logged in may send more.
        assert send_request("POST", "/login/", b"x" * 100_000)[0].status == 413
        assert send_request("POST", "/failures/bulk/", b"x" * 100_000, **vera)[0].status in (200, 400, 403)
        # The export comes whole.
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer, export = send_request("POST", "/failures/export/jsonl/", b"q=state%3A*", **vera, **form)
        assert answer.status == 200 and json.loads(export.splitlines()[-1]) == {"end": True, "failures": 1_000}
        # Names and values as they were sent, and both cookies of an answer.
        assert send_request("GET", "/queues/shop/no%2Fsuch%20queue/", **vera)[0].status in (200, 404)
        # Without a proxy that buffers, doctor says so.
        assert checkup.forwards_unread_bodies(f"http://127.0.0.1:{port}")
        logged_out, _ = send_request("POST", "/logout/", b"", **vera)
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

        def send_request(path, **headers):
            sender = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            sender.request("POST", path, b"x" * 100_000, {"X-CSRFToken": cookies["vera"].rpartition("=")[2], **headers})
            return sender.getresponse().status

        assert [line.recv(12) for line in lines] == [b"HTTP/1.1 413"] * 8
        # A viewer may not act: the desk read the body and says so.
        assert send_request("/failures/bulk/", Cookie=cookies["vera"]) == 403
        # The login of a proxy, beside which a browser shows its session.
        assert send_request("/failures/bulk/", Cookie=cookies["vera"], Authorization="Basic cHJveHk6eA==") == 403


@pytest.mark.server
def test_a_session_is_known_by_the_cookie_of_its_own_desk(desk, monkeypatch):
    cookie = json.loads(desk.run("-c", PREPARE))["vera"]
    token = cookie.rpartition("=")[2]
    monkeypatch.setenv(environment.IN_RUN, "1")
    suffix = environment.cookie_suffix(desk.environment["SECRET_KEY"])
    own = "sessionid=other; " + re.sub("(sessionid|csrftoken)=", rf"\g<1>{suffix}=", cookie)
    with granian({**desk.environment, environment.IN_RUN: "1"}, "/healthz") as (port, _):
        for shown, status in ((own, 403), (cookie, 413)):  # a large body is read from viewers only
            sender = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            head = {"X-CSRFToken": token, "Cookie": shown}
            sender.request("POST", "/failures/bulk/", b"x" * 100_000, head)
            assert sender.getresponse().status == status


@pytest.fixture(scope="module")
def cookies(desk):
    return json.loads(desk.run("-c", PREPARE))


@pytest.fixture(scope="module")
def gateway(desk, cookies):
    """The port and the process of a gateway with short deadlines (`tests.rigs.short_gateway`)."""
    environment = {**desk.environment, "GATEWAY_BOUNDS": json.dumps(BOUNDS)}
    with granian(environment, "/healthz", gateway="tests.rigs.short_gateway:application") as (port, process):
        yield port, process


def send(port, path, *, cookie="made=up", body=None, length=None, source="127.0.0.1", buffer=None):
    """An open connection on which this was sent; `length` says that more of the body follows."""
    line = socket.socket()
    line.settimeout(60)
    if buffer:  # bytes that the client's kernel reads ahead
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    line.bind((source, 0))
    line.connect(("127.0.0.1", port))
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\nConnection: close\r\n"
    head += "" if body is None else f"Content-Length: {length or len(body)}\r\n"
    with contextlib.suppress(OSError):  # refused before all of it was sent
        line.sendall(f"{head}\r\n".encode() + (body or b""))
    return line


def read(line):
    """All that the desk sends, to the end; the connection may be cut."""
    parts = []
    with line, contextlib.suppress(ConnectionError):
        while part := line.recv(2**20):
            parts.append(part)
    return b"".join(parts)


def status(line):
    return int(line.recv(12).split()[1])


def timed(work, *words, **named):
    began = time.monotonic()
    return work(*words, **named), time.monotonic() - began


@pytest.mark.server
def test_exports_of_several_viewers_go_on_side_by_side_and_a_second_of_one_does_not_begin(gateway, cookies):
    port, _ = gateway
    with contextlib.ExitStack() as opened:

        def export(cookie):
            return opened.enter_context(send(port, "/failures/export/slow/", cookie=cookie))

        lines = [export(cookies["vera"]), export(cookies["mallory"])]
        assert [status(line) for line in lines] == [200, 200]
        second = export(cookies["vera"])  # though a thread is free
        second.settimeout(1)
        with pytest.raises(TimeoutError):
            second.recv(1)
        lines.append(export("made=up"))
        assert timed(status, lines[2])[1] < 10
        # While all three are made, pages are.
        times = [timed(read, send(port, "/failures/", cookie=cookies[name])) for name in ("vera", "mallory") * 3]
        assert all(answer.startswith(b"HTTP/1.1 200") and took < 10 for answer, took in times)
        lines[0].close()
        second.settimeout(20)
        assert status(second) == 200


@pytest.mark.server
def test_an_unread_export_ends_after_its_time_with_its_thread_its_file_and_its_turn(gateway, desk, cookies):
    port, process = gateway

    def spools():
        return [name for name in _list_leftovers(process.pid, port)["spools"] if name.startswith(str(desk.folder))]

    wait_until(lambda: not spools())
    with send(port, EXPORT, cookie=cookies["vera"], buffer=2**16) as unread:
        assert status(unread) == 200
        assert spools()
        # The turn of its viewer is free only when its thread is.
        with send(port, EXPORT, cookie=cookies["vera"]) as second:
            assert timed(status, second)[1] < BOUNDS["write_s"] + 10
    wait_until(lambda: not spools())
    assert not list(desk.folder.glob("response-*"))  # pipes


@pytest.mark.server
def test_a_large_page_that_is_not_read_is_broken_off_and_its_viewer_has_the_next_meanwhile(gateway, cookies):
    port, _ = gateway
    with send(port, "/large/", cookie=cookies["vera"], buffer=2**16) as unread:
        assert status(unread) == 200
        answer, took = timed(read, send(port, "/length/", cookie=cookies["vera"]))
        assert answer.startswith(b"HTTP/1.1 200") and took < BOUNDS["write_s"] - 1
        time.sleep(BOUNDS["write_s"] + 2)
        broken_off = read(unread)
    body = read(send(port, "/large/")).partition(b"\r\n\r\n")[2]
    assert len(broken_off) < len(body) == 32 * 2**20


@pytest.mark.server
def test_a_slow_body_is_refused_after_its_time_and_a_viewer_has_more_of_it(gateway, cookies):
    port, _ = gateway
    for cookie, within_s in (("made=up", BOUNDS["anonymous_body_s"]), (cookies["vera"], BOUNDS["body_s"])):
        answer, took = timed(read, send(port, "/length/", cookie=cookie, body=b"x", length=1_000))
        assert answer.startswith(b"HTTP/1.1 408") and f"within {within_s:g} s".encode() in answer
        assert within_s - 0.1 < took < within_s + 10


@pytest.mark.server
def test_made_up_sessions_from_many_addresses_delay_no_probe(gateway):
    port, _ = gateway
    with contextlib.ExitStack() as opened:
        for n in range(20):
            cookie = f"sessionid=slow-made-up-{n}"
            opened.enter_context(send(port, "/length/", cookie=cookie, source=f"127.0.0.{2 + n}"))
        for cookie in ("made=up", "sessionid=slow-as-well"):
            answer, took = timed(read, send(port, "/readyz", cookie=cookie))
            assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 503")) and b'"ready"' in answer
            assert took < 8  # one of their look-ups takes 0.5 s, all of them 10 s


@pytest.mark.server
def test_a_viewers_large_body_is_accepted_beside_many_of_made_up_sessions(gateway, cookies):
    port, _ = gateway
    with contextlib.ExitStack() as opened:
        made_up = []
        for n in range(16):  # each within what one request may have, and more than all may have together
            body = b"x" * (9_000_000 if n < 8 else 60_000)
            cookie = f"sessionid=made-up-{n}"
            made_up.append(opened.enter_context(send(port, "/length/", cookie=cookie, body=body, length=10_000_000)))
        answer = read(send(port, "/length/", cookie=cookies["vera"], body=b"x" * 9_000_000))
        assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"9000000")
        assert {status(line) for line in made_up[8:]} == {408}


BEGIN = """
import django, json
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
"""
MAKE_SESSIONS = """
found = {}
for name in ("logged out", "deactivated", "of another password", "valid"):
    user, _ = User.objects.update_or_create(username=name, defaults={"is_active": True})
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "dashboard.web.second_step.Passwords"
    session.save()
    found[name] = session.session_key
print(json.dumps(found))
"""
END_SESSIONS = """
Session.objects.filter(session_key="{}").delete()
User.objects.filter(username="deactivated").update(is_active=False)
user = User.objects.get(username="of another password")
user.set_password("another")
user.save()
"""


@pytest.mark.server
def test_a_session_that_ended_sends_no_large_body_soon_after(gateway, desk):
    port, _ = gateway
    sessions = json.loads(desk.run("-c", BEGIN + MAKE_SESSIONS))

    def statuses():
        cookies = {name: f"sessionid={key}" for name, key in sessions.items()}
        sent = {name: send(port, "/length/", cookie=cookie, body=b"x" * 100_000) for name, cookie in cookies.items()}
        return {name: int(read(line).split()[1]) for name, line in sent.items()}

    assert statuses() == dict.fromkeys(sessions, 200)
    desk.run("-c", BEGIN + END_SESSIONS.format(sessions["logged out"]))
    wait_until(lambda: statuses() == {**dict.fromkeys(sessions, 413), "valid": 200}, text=statuses, within_s=30)


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
def test_a_statement_ends_after_its_time_and_the_viewer_is_shown_what_to_do(watched):
    began = time.monotonic()
    with limits.Work(0.3, 60).bound_thread():
        with pytest.raises(OperationalError) as ended:
            run_endless()
        text = limits.sentence(ended.value)
    assert time.monotonic() - began < 20
    assert text.startswith("The request took longer than 0.3 s and was stopped. Nothing was changed. Narrow the search")


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
@pytest.mark.parametrize("leaves", [True, False])
def test_a_request_whose_client_left_is_not_logged_as_an_error_of_the_desk(watched, ann, caplog, leaves):
    replay = Replay.objects.create(state="done", scope_max_id=0, actor="ann")
    work = limits.Work(60, 60)

    def end_at_replays(execute, sql, params, many, context):
        if Replay._meta.db_table in sql:
            if leaves:
                work.stop()
            else:
                work._ends_at = 0.0  # its time is over
        return execute(sql, params, many, context)

    with work.bound_thread(), connection.execute_wrapper(end_at_replays):
        answer = ann.get(f"/replays/{replay.pk}/")
    assert answer.status_code == 503
    assert bool([one for one in caplog.records if one.name == "django.request"]) is not leaves


@pytest.mark.django_db(transaction=True)
def test_an_error_that_is_not_the_limits_is_shown_as_one(watched):
    with limits.Work(60, 60).bound_thread(), connection.cursor() as cursor:
        with pytest.raises(Exception, match="no_such_table") as error:
            cursor.execute("SELECT * FROM no_such_table")
        assert limits.sentence(error.value) == ""
