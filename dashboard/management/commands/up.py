"""`manage.py up`: the whole desk on one command, from nothing to a page that shows failures."""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import secrets
import select
import shlex
import socket
import sys
import time
import webbrowser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import redis
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import Max

from dashboard.setup import connections as reachable
from dashboard.setup import environment, forks
from dashboard.setup.engine import Engine, EngineFailed, free_port, is_free
from dashboard.setup.environment import Misconfigured
from dashboard.setup.supervisor import Child, StartFailed, Stopping, Supervisor
from dashboard.web import server as web
from demo import first_start, pager
from jobs_admin import config, failures, watch
from jobs_admin.core import keys, service_url
from jobs_admin.db import audit
from jobs_admin.installation import COMMAND
from jobs_admin.models import ApiToken, Failure
from jobs_admin.models.access import ADMIN, ENGINE, Viewer
from jobs_admin.trust import source_keys
from jobs_admin.worker.redis_clients import from_url

UP = Viewer("up")  # its name in the audit


class Command(BaseCommand):
    help = (
        "Start Redrive: engine, database, watch, web, and a demo shop with real failures. Ctrl-C stops all processes."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--port", type=int, default=8000, help="port of the web pages; the next free port if it is busy"
        )
        parser.add_argument("--data", help="folder of database, secrets and logs (default: var)")
        parser.add_argument("--no-demo", action="store_true", help="start without the demo shop")
        parser.add_argument(
            "--watch",
            metavar="URL",
            help="a Celery broker to watch in guest mode: read-only, no guard in its workers; without the demo shop",
        )
        parser.add_argument("--open", action="store_true", help="open the overview in a browser")

    def handle(self, *, port: int, no_demo: bool, open: bool, watch: str | None = None, **options: object) -> None:
        if not 1 <= port <= 65535:
            raise Misconfigured(f"--port must be from 1 to 65535, not {port}. Nothing was started.")
        desk = Desk(environment.data_folder(), wanted_port=port, has_demo=not no_demo and watch is None)
        try:
            desk.take_lock()
            desk.start()
            if watch:
                print_line(
                    f"Watching {service_url.display_url(watch)} in guest mode: read-only. "
                    "Failures appear within seconds where workers send events; the page Queues shows which do."
                )
            if open:
                webbrowser.open(desk.url)
            desk.run()
        except Stopping:
            print_line("Stopping …")
        except (StartFailed, EngineFailed) as error:
            print_line(f"{error}\nRedrive did not start; its processes were stopped.")
            raise SystemExit(1) from error
        finally:
            desk.stop()
        print_line("Stopped. No processes left running.")


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


class Desk:
    """The processes of one data folder."""

    def __init__(self, folder: Path, *, wanted_port: int, has_demo: bool) -> None:
        self.folder = folder
        self.wanted_port = wanted_port
        self.has_demo = has_demo
        self.made = environment.read_made(folder)
        self.is_first = "run" not in self.made
        self.engine: Engine | None = None
        self.engine_due_at: float | None = None
        self.engine_failures = 0
        self.supervisor: Supervisor | None = None
        self.lock: int | None = None
        self.socket: socket.socket | None = None  # held open from the start, also while the web process restarts
        self.url = ""
        self._page = Page()

    # Start --------------------------------------------------------------------------------------------------------

    def take_lock(self) -> None:
        """Take the lock of the folder, one per desk. Reaper and engine hold it too, until all processes have ended."""
        path = self.folder / "up.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        ends = time.monotonic() + 15
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                text = path.read_text() or "{}"
                holder = json.loads(text)
                # Just after a kill its processes are still being terminated; otherwise another `up` is running.
                if _is_alive(holder.get("pid")) or time.monotonic() > ends:
                    where = holder.get("url") or "it is still starting"
                    raise Misconfigured(
                        f"Redrive already runs on {self.folder}: {where} (process {holder.get('pid')}). "
                        "Nothing was started. For a second desk, choose another folder with --data."
                    ) from None
                time.sleep(0.1)
        self.lock = lock
        self._note_in_lock()

    def _note_in_lock(self) -> None:
        assert self.lock is not None
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, json.dumps({"pid": os.getpid(), "url": self.url}).encode(), 0)

    def start(self) -> None:
        """Start everything in order; return when the page answers and, with the demo, a failure is visible."""
        assert self.lock is not None
        for away in reachable.check_given():
            print_line(away)
        supervisor = self.supervisor = Supervisor(self.folder / "log", print_line, keep_open=(self.lock,))
        supervisor.heed_signals()
        self._choose_addresses()
        forks.read_settings()
        watch.preload()
        forks.freeze()  # objects shared with the forks of this process
        self._announce("Starting the store …")
        self._start_engine()
        supervisor.turn(0)
        shop: list[Child] = []
        if self.has_demo:
            shop.append(supervisor.start(self._of_the_shop("partner", "demo.partner", "--port", self.partner_port)))
        self._announce("Creating the database …")
        self._migrate()
        supervisor.turn(0)
        self._announce("Collecting styles and scripts …")
        steps = supervisor.start(self._child("watch", run_watch))
        if self.has_demo:
            shop.append(supervisor.start(self._worker()))
        self._collect_static()
        supervisor.turn(0)
        if self.has_demo:
            shop.append(supervisor.start(self._of_the_shop("load", "demo.load")))
            shop.append(supervisor.start(self._child("play", python("-m", "demo.play"))))
        pages = supervisor.start(self._web())
        needed = [*shop, steps, pages]
        self._announce("Starting the web pages …")
        supervisor.wait_until(self._page_answers, "the page answers", lambda: supervisor.processor_s(pages), needed)
        if self.has_demo:
            history = self._play_history()
            self._announce("Waiting for the first job of the demo to fail …")
            supervisor.wait_until(
                _a_failure_is_visible,
                "a failure is visible",
                lambda: (_reports_so_far(), supervisor.processor_s(history) if history else 0),
                needed,
                every_s=0.2,
            )
        _set_token()
        has_users = _has_users()
        password = _make_admin()
        self._note_in_lock()
        if password:
            print_line(f"Log in as admin with the password {password} (shown only once).")
        elif has_users and not environment.get("REDRIVE_ADMIN_PASSWORD"):
            elsewhere = (
                ""
                if self.folder == environment.default_data_folder()
                else f"REDRIVE_DATA={shlex.quote(str(self.folder))} "
            )
            print_line(
                "Log in as admin; the password was shown at the first run. "
                f"To change it: {elsewhere}{COMMAND} changepassword admin"
            )
        print_line(f"Redrive is ready: {self.url}")

    def _announce(self, what: str) -> None:
        """Report what a first start does next: it takes half a minute, a later one some seconds."""
        if self.is_first:
            print_line(what)

    def _choose_addresses(self) -> None:
        port = self.wanted_port
        while (listener := web.hold(port)) is None:
            port += 1
            if port > min(self.wanted_port + 100, 65535):
                raise StartFailed(f"Ports {self.wanted_port} to {port - 1} are all busy. Choose another with --port.")
        if port != self.wanted_port:
            print_line(f"Port {self.wanted_port} is busy: using {port}.")
        self.socket = listener
        self.url = f"http://127.0.0.1:{port}{settings.FORCE_SCRIPT_NAME or ''}"
        self.given_store = environment.is_given("REDRIVE_REDIS_URL") or environment.is_given("REDIS_URL")
        self.needs_engine = self.has_demo or not self.given_store
        engine = self.made["engine"]
        if not engine.get("port") or not is_free(engine["port"]):
            engine["port"] = free_port()
        partner = self.made.get("REDRIVE_DEMO_PARTNER_PORT", "")
        self.partner_port = partner if partner and is_free(int(partner)) else str(free_port())
        engine_url = f"redis://:{engine['password']}@127.0.0.1:{engine['port']}"
        # Redrive's store is the engine's database 0, the demo's broker its database 1.
        ours = {"REDRIVE_URL": f"http://127.0.0.1:{port}"}
        if not self.given_store:
            ours["REDRIVE_REDIS_URL"] = f"{engine_url}/0"
        if self.has_demo:
            ours["REDRIVE_DEMO_BROKER_URL"] = f"{engine_url}/1"
            ours["REDRIVE_DEMO_PARTNER_PORT"] = self.partner_port
            ours["REDRIVE_DEMO_PARTNER_URL"] = f"http://127.0.0.1:{self.partner_port}"
            # Reused, because the channel in the database signs with it.
            ours["REDRIVE_DEMO_PAGER_SECRET"] = self.made.get("REDRIVE_DEMO_PAGER_SECRET") or pager.new_secret()
        for name in ("REDRIVE_URL", "REDRIVE_REDIS_URL", *_DEMO):
            self.made.pop(name, None)
        self.made.update(ours, run=environment.run_settings())
        environment.write_made(self.folder, self.made)

    def _environment(self) -> dict[str, str]:
        """Return the variables of every process, in addition to those of this process."""
        names = ("SECRET_KEY", "REDRIVE_PAYLOAD_KEYS", "REDRIVE_URL", "CELERY_BROKER_URL", *_DEMO)
        variables = {name: environment.get(name) for name in names if environment.get(name)}
        variables["REDRIVE_REDIS_URL"] = environment.get("REDRIVE_REDIS_URL") or environment.get("REDIS_URL")
        variables["PYTHONUNBUFFERED"] = "1"
        # A value from a file is passed on as the value: passing both could become contradictory.
        return variables

    def _child(self, name: str, command: list[str] | Callable[[], object], **more: object) -> Child:
        return Child(name, command, self.folder / "log" / f"{name}.log", self._environment(), **more)  # type: ignore[arg-type]

    def _worker(self) -> Child:
        # It is the only worker of its broker, so it need not wait a second for others.
        alone = ("--without-mingle", "--without-gossip")
        return self._of_the_shop("worker", "celery", "-A", "demo.shop", "worker", "-c", "4", "-l", "INFO", *alone)

    def _of_the_shop(self, name: str, *module: str) -> Child:
        """Return a process of the demo, `python -m module`, with the demo's broker.

        It fails on purpose, so its errors are not printed here.
        """
        child = self._child(name, python("-m", *module), speaks=False)
        of_its_own = {"CELERY_BROKER_URL": environment.get("REDRIVE_DEMO_BROKER_URL")}
        if key := self.made.get(_DEMO_KEY):  # the partner starts before there is one
            of_its_own[source_keys.VARIABLE] = key
        child.environment = {**child.environment, **of_its_own}
        return child

    def _web(self) -> Child:
        assert self.socket is not None
        listener = self.socket.fileno()
        child = self._child("web", partial(serve, listener), pass_fds=(listener,), patience_s=2.0)
        child.environment = {**web.ENVIRONMENT, **child.environment}
        return child

    def _play_history(self) -> Child | None:
        """Start playing the demo's history of the previous day; None if this data folder already has it."""
        done = self.folder / "demo-history"
        if done.exists():
            return None
        assert self.supervisor is not None
        history = self._of_the_shop("history", "demo.history")
        history.is_once, history.done = True, done
        return self.supervisor.start(history)

    def _start_engine(self) -> None:
        if not self.needs_engine:
            return
        assert self.lock is not None
        assert self.supervisor is not None
        engine = self.made["engine"]
        self.engine = Engine(self.folder / "engine", engine["port"], engine["password"], keep_open=(self.lock,))
        self.engine.start()
        assert self.engine.process is not None
        self.supervisor.mind(self.engine.process.pid)

    def _migrate(self) -> None:
        call_command("migrate", interactive=False, verbosity=0)
        if self.has_demo:
            first_start.publish_policies()
            first_start.create_automation()
            self._make_source_key()
            # The settings were read before the port was selected; a private address may be called only if it is listed
            # there.
            settings.REDRIVE = settings.REDRIVE | {"DEMO_PARTNER_URL": environment.get("REDRIVE_DEMO_PARTNER_URL")}
            first_start.create_alerts(config.setting("DEMO_PARTNER_URL"), environment.get("REDRIVE_DEMO_PAGER_SECRET"))
        # A fork would share an open connection.
        connections.close_all()

    def _make_source_key(self) -> None:
        """Create the key with which the demo's workers sign, once per data folder."""
        if not source_keys.is_in_force(self.made.get(_DEMO_KEY, "")):
            self.made[_DEMO_KEY] = str(source_keys.create(UP, first_start.SOURCE))
            environment.write_made(self.folder, self.made)

    def _collect_static(self) -> None:
        """Collect static files if one has changed, determined by names, sizes and times."""
        seen = hashlib.sha256()
        for finder in get_finders():
            for path, storage in finder.list([]):
                about = Path(storage.path(path)).stat()
                seen.update(f"{path} {about.st_size} {about.st_mtime_ns}\n".encode())
        target = Path(settings.STATIC_ROOT)
        stamp = target / ".collected"
        if stamp.exists() and stamp.read_text() == seen.hexdigest():
            return
        call_command("collectstatic", interactive=False, verbosity=0, clear=target.exists())
        stamp.write_text(seen.hexdigest())

    def _page_answers(self) -> bool:
        """Return whether the first page, or the login that it redirects to, answers with a page."""
        assert self.socket is not None
        status = self._page.status(self.socket.getsockname()[1])
        if status is None:
            return False
        if status >= 400:
            assert self.supervisor is not None
            self.supervisor.turn(0.2)
            raise StartFailed(
                f"The page answers with HTTP status {status} at {self._page.path}. Its log: {self.folder}/log/web.log"
            )
        return True

    # Run and stop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Keep everything running until Stopping is raised."""
        assert self.supervisor is not None
        self.supervisor.keep_running()
        while True:
            self.supervisor.turn(0.5)
            self._keep_engine()

    def _keep_engine(self) -> None:
        if self.engine is None or self.engine.process is None or self.engine.process.poll() is None:
            return
        assert self.supervisor is not None
        now = time.monotonic()
        if self.engine_due_at is None:
            self.engine_failures += 1
            delay = min(2.0 ** (self.engine_failures - 1), 30.0)
            self.engine_due_at = now + delay
            self.supervisor.forget(self.engine.process.pid)
            print_line(
                f"The engine exited (exit {self.engine.process.returncode}); starting it again in {delay:.0f} s."
            )
        elif now >= self.engine_due_at:
            self.engine_due_at = None
            try:
                self.engine.start()
            except EngineFailed as error:
                print_line(str(error))
                return
            self.supervisor.mind(self.engine.process.pid)

    def stop(self) -> None:
        """End everything: web, play, load, worker, watch, partner, then the engine they all use."""
        if self.supervisor is not None:
            self.supervisor.stop_all()
        if self.engine is not None:
            self.engine.stop()
        if self.supervisor is not None:
            self.supervisor.release()
        if self.socket is not None:
            self.socket.close()
        if self.lock is not None:
            os.ftruncate(self.lock, 0)
            os.close(self.lock)
            self.lock = None


class Page:
    """The first page, requested until it answers, without blocking: the socket listens before the server accepts."""

    def __init__(self) -> None:
        self.path = (settings.FORCE_SCRIPT_NAME or "") + "/"
        self.redirects = 0
        self.pending: http.client.HTTPConnection | None = None

    def status(self, port: int) -> int | None:
        """Return the HTTP status after redirects; None while there is no answer."""
        try:
            if self.pending is None:
                self.pending = self._request(port)
            if not select.select([self.pending.sock], [], [], 0)[0]:
                return None
            answer = self.pending.getresponse()
            answer.read()
        except (OSError, http.client.HTTPException):
            self._forget()
            return None
        self._forget()
        if answer.status in {301, 302} and self.redirects < 3:
            self.redirects += 1
            self.path = urlsplit(answer.headers["Location"]).path
            return None
        return answer.status

    def _request(self, port: int) -> http.client.HTTPConnection:
        host = settings.ALLOWED_HOSTS[0].lstrip(".") if settings.ALLOWED_HOSTS else "127.0.0.1"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", self.path, headers={"Host": "127.0.0.1" if host == "*" else host})
        return connection

    def _forget(self) -> None:
        if self.pending is not None:
            self.pending.close()
        self.pending = None


_DEMO = (
    "REDRIVE_DEMO_BROKER_URL", "REDRIVE_DEMO_PARTNER_PORT", "REDRIVE_DEMO_PARTNER_URL", "REDRIVE_DEMO_PAGER_SECRET",
)  # fmt: skip

_DEMO_KEY = "REDRIVE_DEMO_SOURCE_KEY"  # only in `up.json`: only the shop's processes need it


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def serve(listener: int) -> None:
    web.serve(socket.socket(fileno=listener), in_this_process=True)


def run_watch() -> None:
    call_command("watch")


def _is_alive(pid: int | None) -> bool:
    if not pid:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _a_failure_is_visible() -> bool:
    """Return whether the default list of failures has a row."""
    try:
        return bool(failures.search(ENGINE, limit=1).rows)
    except OperationalError:  # SQLite, locked by a long write: try again
        return False
    finally:
        connections.close_all()


def _reports_so_far() -> tuple[object, ...]:
    """Return counters that change while reports of failures are sent and filed."""
    try:
        sent = from_url(environment.get("REDRIVE_REDIS_URL")).xinfo_stream(keys.failures(first_start.SOURCE))
        last = sent["last-generated-id"]
    except redis.RedisError:  # nothing was sent yet, or the store is busy
        last = None
    try:
        return last, Failure.objects.aggregate(last=Max("pk"))["last"]
    except OperationalError:
        return (last,)
    finally:
        connections.close_all()


def _has_users() -> bool:
    try:
        return get_user_model().objects.filter(username="admin").exists()
    finally:
        connections.close_all()


def _make_admin() -> str:
    """Create the user `admin`, or set its given password; return a generated password, otherwise ""."""
    users = get_user_model().objects
    given = environment.get("REDRIVE_ADMIN_PASSWORD")
    try:
        admin = users.filter(username="admin").first()
        if admin is None and users.filter(is_superuser=True).exists():
            return ""
        if admin is None:
            password = given or secrets.token_urlsafe(12)
            with transaction.atomic():
                users.create_superuser("admin", password=password)
                audit.record(UP, "user.create", "user:admin", after={"superuser": True})
            return "" if given else password
        if given and not admin.check_password(given):
            admin.set_password(given)
            with transaction.atomic():
                admin.save(update_fields=["password"])
                audit.record(UP, "user.password", "user:admin", reason="REDRIVE_ADMIN_PASSWORD")
        return ""
    finally:
        connections.close_all()


def _set_token() -> None:
    """Put the token of REDRIVE_API_TOKEN in force, under the name `up`."""
    token = environment.get("REDRIVE_API_TOKEN")
    if not token:
        return
    wanted = {"sha256": hashlib.sha256(token.encode()).hexdigest(), "role": ADMIN, "revoked_at": None}
    wanted |= {"expires_at": None, "networks": ""}
    try:
        with transaction.atomic():
            current = ApiToken.objects.filter(name="up").values(*wanted).first()
            if current != wanted:
                ApiToken.objects.update_or_create(name="up", defaults=wanted)
                act = "token.change" if current else "token.create"
                audit.record(UP, act, "token:up", reason="REDRIVE_API_TOKEN", after={"role": ADMIN})
    except IntegrityError as error:
        raise StartFailed("REDRIVE_API_TOKEN is the key of another token. Set a separate key for `up`.") from error
    finally:
        connections.close_all()
