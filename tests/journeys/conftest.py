"""A whole desk, as `up` starts it, and a browser to look at it with. One desk for all journeys of a test process."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import redis
from celery import Celery

from dashboard.setup.engine import free_port
from demo import control, history
from tests.kit import migrated
from tests.kit.browser import NEEDS_PLAYWRIGHT, ROOT, WITHIN_S, complaints_of
from tests.kit.sources import shop, watched
from tests.kit.waiting import wait_until

READY_WITHIN_S = 100
# Without it httpx loads the system's certificates for each request, in 35 ms.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
STOPS_WITHIN_S = 20
PLAYED = len(history.day(Random(history.LABEL)))  # each of these jobs failed, told in the order of time
LOAD = 1.0  # jobs/s of the demo, once the day is in: at its own five a second a desk takes twice as much processor
# Whatever a page asks for elsewhere, the browser of a test finds nobody there.
ONLY_HERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1"


@dataclass
class Desk:
    """A running `up`. `get` asks its API as an admin."""

    url: str
    password: str
    token: str
    folder: Path
    process: subprocess.Popen[str]
    output: list[str] = field(default_factory=list)
    login: Any = None  # as a browser keeps it
    latest: Any = None  # the latest answer of the API

    def get(self, path: str, **query: object) -> Any:
        """Return the API's answer, e.g. of `get("failures", q="queue:webhooks")`; any status but 200 is an error."""
        answer = httpx.get(
            f"{self.url}/api/{path}",
            params=query,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=WITHIN_S,
            trust_env=False,
            verify=NO_TLS,
        )
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"
        self.latest = answer.json()
        return self.latest

    def send(self, task: str, queue: str, **kwargs: object) -> None:
        """Put a job on the shop's queue, as its customers do."""
        made = json.loads((self.folder / "up.json").read_text())
        with Celery(broker=made["REDRIVE_DEMO_BROKER_URL"], set_as_current=False) as app:
            app.send_task(task, kwargs=kwargs, queue=queue)

    def demo_broker(self) -> redis.Redis:
        """The demo's broker, where its load and its story are."""
        return redis.Redis.from_url(json.loads((self.folder / "up.json").read_text())["REDRIVE_DEMO_BROKER_URL"])

    def log(self, name: str) -> str:
        path = self.folder / "log" / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def wait_until(
        self, truth: Callable[[], Any], what: str, within_s: float, progress: Callable[[Any], object] = lambda _: None
    ) -> Any:
        """The first true answer; fails when it does not come in time, and at once when the desk has died.

        `within_s` counts from the latest change of `progress`, which is called with the API's latest answer.
        """
        lines, began = self.output, time.monotonic()

        def pause() -> None:  # a request costs the desk some work: the longer it takes, the fewer are sent
            time.sleep(min(1.0, max(0.1, (time.monotonic() - began) / 20)))

        return wait_until(
            truth, what, progress=lambda: (len(lines), progress(self.latest)), within_s=within_s, meanwhile=pause,
            process=self.process, text=lambda: "".join(lines),
        )  # fmt: skip


class TheDesk:
    """`manage.py up` with its demo, on a free port and a folder of its own: started when it is asked for and not running."""

    def __init__(self) -> None:
        self._running: Desk | None = None

    def running(self, folder: Callable[[], Path]) -> Desk:
        """Ready, and the whole day that the demo plays is in: no journey finds another desk for being the first."""
        if self._running is None:
            made = folder()
            migrated.into(made)
            self._running = _up(made)
            try:
                message = self._running.wait_until(
                    lambda: re.search(r"Redrive is ready: (http\S+)", "".join(self._running.output)),
                    "the desk is ready",
                    READY_WITHIN_S,
                )
                self._running.url = message[1].rstrip("/")
                self._running.wait_until(
                    lambda: self._running.get("failures", q="state:any")["count"] >= PLAYED,
                    "the day is in",
                    READY_WITHIN_S,
                    progress=lambda answer: answer["count"],
                )
                control.set_rate(self._running.demo_broker(), LOAD)
            except BaseException:
                self.stop()
                raise
        return self._running

    def stop(self) -> None:
        running, self._running = self._running, None
        if running is None or running.process.poll() is not None:
            return
        running.process.send_signal(signal.SIGTERM)
        try:
            running.process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            running.process.kill()  # its reaper ends what it started
            running.process.wait()


_the_desk = TheDesk()


def _up(folder: Path) -> Desk:
    password, token = secrets.token_urlsafe(12), secrets.token_urlsafe(24)
    ours = (
        "SECRET_KEY",
        "DATABASE_URL",
        "DJANGO_SETTINGS_MODULE",
        "DJANGO_ALLOW_ASYNC_UNSAFE",
        "PYTEST_CURRENT_TEST",
        "CELERY_BROKER_URL",
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REDRIVE_") and k not in ours}
    environment |= {
        "REDRIVE_ADMIN_PASSWORD": password,
        "REDRIVE_API_TOKEN": token,
        "REDRIVE_WEBHOOK_ALLOW": "127.0.0.1",  # where tests listen
    }
    command = [sys.executable, "manage.py", "up", "--port", str(free_port()), "--data", str(folder)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    running = Desk("", password, token, folder, process)
    reader = threading.Thread(target=lambda: running.output.extend(process.stdout), daemon=True)
    reader.start()
    return running


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    return _the_desk.running(lambda: tmp_path_factory.mktemp("desk"))


class TheBrowser:
    """Chromium, for all journeys of a test process. Playwright runs a loop in this thread, in which Django would refuse its database."""

    def __init__(self) -> None:
        self._running: ExitStack | None = None
        self._chromium: Any = None

    def running(self) -> Any:
        if self._chromium is not None and not self._chromium.is_connected():
            self.stop()  # it crashed: the next module has another
        if self._running is None:
            try:
                from playwright.sync_api import expect, sync_playwright
            except ImportError:
                pytest.skip(NEEDS_PLAYWRIGHT)
            expect.set_options(
                timeout=WITHIN_S * 1000
            )  # of itself 5 s: no longer than a live part takes to be asked anew
            with ExitStack() as started:
                play = started.enter_context(sync_playwright())
                # The shell draws no window and no frame around the page: the tests cost a quarter less processor time.
                programs = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
                path = next(filter(None, map(shutil.which, programs)), None)
                path = path or play.chromium.executable_path
                if not Path(path).exists():
                    pytest.skip("needs a browser: apt-get install chromium-headless-shell")
                self._chromium = play.chromium.launch(executable_path=path, args=["--no-sandbox", ONLY_HERE])
                started.callback(self._chromium.close)
                os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
                started.callback(os.environ.pop, "DJANGO_ALLOW_ASYNC_UNSAFE")
                self._running = started.pop_all()
        return self._chromium

    def stop(self) -> None:
        running, self._running, self._chromium = self._running, None, None
        if running is not None:
            running.close()


_the_browser = TheBrowser()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Stop both when this process goes on to other tests: an idle desk takes a sixteenth of a processor."""
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        _the_browser.stop()
        _the_desk.stop()


def pytest_sessionfinish():
    _the_browser.stop()
    _the_desk.stop()


@pytest.fixture(scope="module")
def browser():
    """The browser. What a module opened, it closes."""
    chromium = _the_browser.running()
    yield chromium
    for context in chromium.contexts:
        context.close()


@pytest.fixture
def live_server(live_server, browser, transactional_db):
    """Django's server in this process. Before the tables are emptied, its pages are closed and its requests are answered."""
    # Its limits are a Python callback on each connection. Threads share one here, and would wait for one another without end.
    assert "dashboard.gateway" not in sys.modules
    yield live_server
    for context in browser.contexts:
        context.close()
    # Connections are accepted in turn: with this answer, no request of a closed page is still to be accepted.
    httpx.get(f"{live_server.url}/healthz", timeout=WITHIN_S, trust_env=False)
    server = live_server.thread.httpd
    for thread in threading.enumerate():
        if getattr(getattr(thread, "_target", None), "__self__", None) is server:
            thread.join(WITHIN_S)
            assert not thread.is_alive(), "a request of the test is not answered"


@pytest.fixture(scope="module")
def logged_in(desk, browser):
    """The storage state of a browser that is logged in as admin: one login a desk, because none of its tests logs out."""
    if desk.login is None:
        context = browser.new_context(base_url=desk.url)
        context.set_default_timeout(WITHIN_S * 1000)
        page = context.new_page()
        page.goto("/login/")
        page.get_by_label("Name").fill("admin")
        page.get_by_label("Password").fill(desk.password)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url(lambda url: "/login" not in url)
        desk.login = context.storage_state()
        context.close()
    return desk.login


@pytest.fixture
def page(desk, browser, logged_in):
    """A page of an admin who is logged in. Fails at the end if the browser complained."""
    context = browser.new_context(base_url=desk.url, storage_state=logged_in, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(WITHIN_S * 1000)
    opened = context.new_page()
    complaints = complaints_of(opened)
    yield opened
    context.close()
    assert not complaints, "\n".join(complaints)
