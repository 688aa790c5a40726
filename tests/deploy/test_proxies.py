"""A desk below a prefix behind the shipped configurations of nginx and Caddy, with TLS."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from dashboard.setup.engine import die_with_parent, free_port
from tests.kit import migrated
from tests.kit.endpoints import certified
from tests.kit.programs import DEPLOY, check, program
from tests.kit.up import ROOT, SILENT
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.extras, pytest.mark.server]

HOST = "ops.example.com"
PASSWORD = "a-long-password"


@pytest.fixture(scope="module")
def desk(engine, tmp_path_factory):
    """The environment and port of `web` below /jobs/, behind a proxy on the loopback, with the admin `ann`."""
    folder = tmp_path_factory.mktemp("desk")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SILENT)}
    environment |= {
        "SECRET_KEY": "x" * 50, "REDRIVE_PAYLOAD_KEYS": "A" * 43 + "=", "REDRIVE_REDIS_URL": engine.url,
        "REDRIVE_DATA": str(folder), "REDRIVE_URL": f"https://{HOST}", "REDRIVE_URL_PREFIX": "jobs", "ALLOWED_HOSTS": HOST,
        "CSRF_TRUSTED_ORIGINS": f"https://{HOST}", "REDRIVE_TRUSTED_PROXIES": "127.0.0.1",
        "REDRIVE_SECURITY_CONTACT": "security@example.com", "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
    }  # fmt: skip
    migrated.into(folder)
    manage = [sys.executable, str(ROOT / "manage.py")]
    check(*manage, "collectstatic", "--noinput", env=environment)
    check(*manage, "createsuperuser", "--noinput", "--username", "ann", "--email", "", env=environment)
    command = [*manage, "web", "--bind", f"127.0.0.1:{port}"]
    with running(command, folder / "web.log", environment):
        wait_until(lambda: _answers(f"http://127.0.0.1:{port}/healthz"), text=(folder / "web.log").read_text)
        yield environment, port


@contextlib.contextmanager
def running(command: list[str], log: Path, environment: dict[str, str] | None = None):
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, preexec_fn=die_with_parent)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(url, trust_env=False, verify=False).status_code < 500
    return False


@contextlib.contextmanager
def nginx(folder: Path, web: int):
    certified(folder, HOST)
    tls, plain = free_port(), free_port()
    text = (DEPLOY / "proxy/nginx.conf").read_text()
    for shipped, here in (
        ("listen 443 ssl http2", f"listen 127.0.0.1:{tls} ssl http2"),
        ("listen 80", f"listen 127.0.0.1:{plain}"),
        ("127.0.0.1:8000", f"127.0.0.1:{web}"),
        ("/etc/ssl/redrive/fullchain.pem", f"{folder}/{HOST}.pem"),
        ("/etc/ssl/redrive/privkey.pem", f"{folder}/{HOST}.key"),
    ):
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    (folder / "redrive.conf").write_text(text)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.getuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user} pid {folder}/pid; error_log {folder}/error.log; daemon off; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; {paths} include {folder}/redrive.conf; }}\n"
    )
    command = [program("nginx", "nginx-light"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    assert "test is successful" in check(*command, "-t")
    with running(command, folder / "nginx.log"):
        yield tls, plain


@contextlib.contextmanager
def caddy(folder: Path, web: int):
    binary = program("caddy", "caddy")
    environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    shipped = DEPLOY / "proxy/Caddyfile"
    check(binary, "validate", "--adapter", "caddyfile", "--config", str(shipped), env=environment)
    tls, plain = free_port(), free_port()
    text = shipped.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{web}")
    assert text.count(f"\n{HOST} {{\n") == 1
    text = text.replace(f"\n{HOST} {{\n", f"\n{HOST} {{\n\tbind 127.0.0.1\n\ttls internal\n")
    ours = f"{{\n\tadmin off\n\tskip_install_trust\n\thttp_port {plain}\n\thttps_port {tls}\n}}\n"
    (folder / "Caddyfile").write_text(ours + text)
    command = [binary, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    with running(command, folder / "caddy.log", environment):
        yield tls, plain


@pytest.fixture(params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy(request, desk, tmp_path):
    """The ports of a proxy before the desk: of TLS, and of plain HTTP."""
    with request.param(tmp_path, desk[1]) as (tls, plain):
        wait_until(lambda: _is_open(tls))
        yield tls, plain


def _is_open(port: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return client(port).get("/jobs/healthz").status_code == 200
    return False


def client(port: int, address: str = "127.0.0.1") -> httpx.Client:
    """A browser at that address of the loopback, which believes that it talks to the public host."""
    return httpx.Client(
        base_url=f"https://{HOST}",
        transport=_Detour(port, address),
        follow_redirects=True,
        timeout=60,
    )


class _Detour(httpx.HTTPTransport):
    """The transport that reaches the public host at a port of the loopback."""

    def __init__(self, port: int, address: str) -> None:
        super().__init__(verify=False, local_address=address)
        self.port = port

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        # A request of its own: the cookies of the answer belong to the public host.
        detour = httpx.Request(
            request.method,
            request.url.copy_with(host="127.0.0.1", port=self.port),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": HOST},
        )
        return super().handle_request(detour)


def post(
    browser: httpx.Client,
    path: str,
    fields: dict[str, str],
    *,
    form_on: str = "",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    form_on = form_on or path
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', browser.get(form_on).text)[1]
    headers = {"Referer": f"https://{HOST}{form_on}", "Origin": f"https://{HOST}", **(headers or {})}
    return browser.post(path, data={"csrfmiddlewaretoken": token, **fields}, headers=headers)


@pytest.mark.long("Starts a web server, and a proxy for each test.")
def test_a_person_logs_in_reads_a_page_and_acts(proxy, desk):
    tls, plain = proxy
    browser = client(tls)
    entered = post(browser, "/jobs/login/", {"username": "ann", "password": PASSWORD})
    assert (entered.status_code, entered.url.path) == (200, "/jobs/"), entered.text[:2000]
    assert entered.headers["strict-transport-security"]
    session = next(cookie for cookie in browser.cookies.jar if cookie.name == "sessionid")
    assert session.secure and session.has_nonstandard_attr("HttpOnly")
    assert browser.get("/jobs/failures/").status_code == 200
    style = re.search(r'rel="stylesheet" href="([^"]+)"', entered.text)[1]
    assert style.startswith("/jobs/static/") and browser.get(style).headers["content-type"].startswith("text/css")
    assert browser.get("/jobs").url.path == "/jobs/"
    assert "Contact: mailto:security@example.com" in browser.get("/.well-known/security.txt").text
    name = f"seen at {tls}"
    saved = post(browser, "/jobs/views/save/", {"name": name, "query": "queue:emails"}, form_on="/jobs/failures/")
    assert saved.status_code == 200 and name in browser.get("/jobs/audit/").text
    too_large = browser.post("/jobs/login/", content=b"x" * (11 * 1024 * 1024))
    assert too_large.status_code in (413, 502)  # Caddy 2.6 answers 502
    redirect = httpx.get(f"http://127.0.0.1:{plain}/jobs/", headers={"Host": HOST}, trust_env=False)
    assert redirect.status_code in (301, 308) and redirect.headers["location"].startswith(f"https://{HOST}")


def test_wrong_passwords_count_for_the_client_and_not_for_an_address_that_it_claims(proxy, desk):
    environment, _ = desk
    forged = {"X-Forwarded-For": "192.0.2.9", "X_Forwarded_For": "192.0.2.8", "X-Real-IP": "192.0.2.7"}
    refused = post(
        client(proxy[0], "127.0.0.77"), "/jobs/login/", {"username": "bob", "password": "wrong"}, headers=forged
    )
    assert refused.status_code == 200
    code = (
        "from axes.models import AccessAttempt as A; print(*A.objects.values_list('ip_address', flat=True).distinct())"
    )
    found = check(sys.executable, str(ROOT / "manage.py"), "shell", "--no-imports", "-c", code, env=environment)
    assert found.split() == ["127.0.0.77"]
