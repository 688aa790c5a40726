"""Node as the tests use it: packages at locked versions (tests/node), and scripts that are run, waited for and stopped.

    packages = node.packages()                        # raises OutOfReach: skip with its text
    script = node.Script(packages / "worker.mjs", '{"bullmq": 6, …}').start()
    script.wait_for(lambda line: '"ready"' in line)   # the line
    script.stop()                                     # or kill(), as `kill -9` does

    with node.Bullmq(6, engine.url, work=["emails"]) as bull:     # a real producer and worker, tests/node/worker.mjs
        job_id = bull.add("emails", "welcome", {"fails": 1}, attempts=3)
        bull.wait_for_event("failed", id=job_id)

TypeScript too: `Script("seed.ts", …, typescript=True)`. A folder in which `import … from 'bullmq'` is one of the majors is made by `project`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs_admin.core.child_process import die_with_parent

HOME = Path(__file__).parents[1] / "node"
MAJORS = (4, 5, 6)
BULL = ("bull3", "bull4")  # in place of a major: Bull (tests/node/bull.mjs)
_OLDEST = 18
_HOW_TO_GET_IT = (
    "no Node.js {oldest} or newer with npm on this machine: install them (Debian and Ubuntu: apt install nodejs npm)"
)
# What npm says where nobody answers, as opposed to where what it was given is not what was locked.
_OUT_OF_REACH = re.compile(
    r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|ECONNRESET|EAI_AGAIN|ENETUNREACH|E40[134]|E50\d|network", re.IGNORECASE
)
_DEADLINE_S = 60.0


class OutOfReach(Exception):
    """There is no Node, or the package registry did not answer: how to get it."""


def packages() -> Path:
    """The folder with the installed packages and the scripts of tests/node. Installed once, and again when the lock changes."""
    if shutil.which("npm") is None or _version() < _OLDEST:
        raise OutOfReach(_HOW_TO_GET_IT.format(oldest=_OLDEST))
    with (HOME / "package-lock.json").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several test processes one installs, and the others wait for it
        wanted = hashlib.sha256(lock.read() + (HOME / "package.json").read_bytes()).hexdigest()
        stamp = HOME / "node_modules/.of-lock"
        if not stamp.exists() or stamp.read_text() != wanted:
            _install()
            stamp.write_text(wanted)
    return HOME


def _version() -> int:
    try:
        output = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
        return int(output.strip().lstrip("v").partition(".")[0])
    except (OSError, subprocess.CalledProcessError, ValueError):
        return 0


def _install() -> None:
    done = subprocess.run(["npm", "ci", "--ignore-scripts"], cwd=HOME, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr).strip()
    if done.returncode and _OUT_OF_REACH.search(output):
        raise OutOfReach(
            "the packages of tests/node could not be installed, because the registry was not reached. Run the tests where npm "
            f"reaches one (`npm view bullmq version` shows whether it does). It said: {output[-300:]}"
        )
    assert done.returncode == 0, f"The packages of tests/node could not be installed:\n{output[-2000:]}"


def project(folder: Path, bullmq: int) -> Path:
    """`folder` as a Node project that has all packages of tests/node, and BullMQ of this major under its own name."""
    modules = folder / "node_modules"
    modules.mkdir(parents=True)
    installed = packages() / "node_modules"
    for entry in installed.iterdir():
        if not entry.name.startswith("."):
            (modules / entry.name).symlink_to(entry)
    (modules / "bullmq").symlink_to(installed / f"bullmq{bullmq}")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    return folder


class Script:
    """A running Node script; what it writes is read line by line, whoever waits or not."""

    def __init__(
        self, script: Path, *arguments: str, typescript: bool = False, environment: dict[str, str] | None = None
    ) -> None:
        tsx = ["--import", (HOME / "node_modules/tsx/dist/loader.mjs").as_uri()] if typescript else []
        self._command = ["node", *tsx, str(script), *arguments]
        self._folder = script.parent
        self._environment = environment or {}
        self.lines: list[str] = []  # what it wrote, also to its standard error
        self._heard = threading.Condition()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Script:
        self.process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=die_with_parent,
        )
        self._ear = threading.Thread(target=self._listen, args=(self.process,), daemon=True)
        self._ear.start()
        return self

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._heard:
                self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def write(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def wait_for(self, wanted: Callable[[str], Any] | str, after: int = 0, deadline_s: float = _DEADLINE_S) -> str:
        """The first line from number `after` on that is wanted: one that holds this text, or for which this answers yes."""
        matches = (lambda line: wanted in line) if isinstance(wanted, str) else wanted
        ends = time.monotonic() + deadline_s
        with self._heard:
            seen = after
            while True:
                while seen < len(self.lines):
                    if matches(self.lines[seen]):
                        return self.lines[seen]
                    seen += 1
                left = ends - time.monotonic()
                # Who has ended may have said more than was heard until now.
                may_print_more = self.is_running or self._ear.is_alive()
                assert (left > 0 and may_print_more) or seen < len(self.lines), self._explain(f"no such line: {wanted}")
                self._heard.wait(min(left, 1))

    def _explain(self, what: str) -> str:
        return f"{what}. It is {'running' if self.is_running else 'over'}, and said:\n" + "\n".join(self.lines[-40:])

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self) -> int | None:
        """The exit code. The process may end when its input does; SIGTERM after that, and SIGKILL where it does not hear."""
        if self.process is None:
            return None
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        for end in (lambda: None, self.process.terminate, self.process.kill):
            end()
            try:
                return self.process.wait(3)
            except subprocess.TimeoutExpired:
                continue
        return self.process.wait()

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Script:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Bullmq:
    """A producer and worker of one major (tests/node/worker.mjs). `work`: the queues that it works on from the beginning."""

    def __init__(
        self,
        major: int | str,
        url: str,
        *,
        work: list[str] | tuple[str, ...] = (),
        prefix: str = "bull",
        broken: list[str] | tuple[str, ...] = (),
        options: dict[str, Any] | None = None,
        guard: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        sandbox: bool = False,
    ) -> None:
        """`broken`: what jobs with {"needs": …} fail for, until it is fixed. `options`: of every Worker. `guard`: options of clients/node."""
        request = {
            "bullmq": major,
            "url": url,
            "prefix": prefix,
            "work": list(work),
            "broken": list(broken),
            "options": options or {},
            "guard": guard,
            "sandbox": sandbox,
        }
        self.major = major
        self.script = Script(packages() / "worker.mjs", json.dumps(request), environment=environment)
        self._asked = 0

    def start(self) -> Bullmq:
        self.script.start()
        # A worker whose first job ends it may have started the job before it prints that it is ready.
        self.script.wait_for(lambda line: '"ready"' in line or '"say":"start"' in line)
        return self

    def stop(self) -> None:
        self.script.stop()

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    def request(self, do: str, **more: Any) -> Any:
        """The answer. Raises AssertionError with what it said."""
        self._asked += 1
        n, after = self._asked, len(self.script.lines)
        self.script.write(json.dumps({"n": n, "do": do, **more}))
        line = self.script.wait_for(
            lambda text: f'"n":{n},' in text and text.startswith(('{"say":"done"', '{"say":"error"')), after
        )
        answer = json.loads(line)
        assert answer["say"] == "done", answer
        return answer["answer"]

    def queue(self, queue: str, call: str, *given: Any) -> Any:
        """Calls a method of this Queue: its answer; jobs as their ids."""
        return self.request("queue", queue=queue, call=call, **{"with": given})

    def add(self, queue: str, name: str = "job", data: Any = None, **options: Any) -> str:
        """The id of the new job. `options`: BullMQ's own (`attempts`, `jobId`, `priority` …)."""
        return str(self.queue(queue, "add", name, {} if data is None else data, options))

    def job(self, queue: str, job_id: str, call: str, *given: Any) -> Any:
        """Calls a method of this job: its answer; None where there is no such job."""
        return self.request("job", queue=queue, id=job_id, call=call, **{"with": given})

    def flow(self, tree: dict[str, Any]) -> Any:
        return self.request("flow", **{"with": [tree]})

    def work(self, queue: str, **options: Any) -> None:
        self.request("work", queue=queue, options=options)

    def rest(self, queue: str) -> None:
        self.request("rest", queue=queue)

    def fix(self, what: str) -> None:
        self.request("mend", what=what)

    def break_(self, what: str) -> None:
        self.request("break", what=what)

    def wait_for_event(self, kind: str, after: int = 0, deadline_s: float = _DEADLINE_S, **of: Any) -> dict[str, Any]:
        """A line about a job, waited for: `wait_for_event("failed", queue="emails", id="1")`. `after`: a number of `place()`."""

        def is_it(line: str) -> bool:
            if not line.startswith(f'{{"say":"{kind}"'):
                return False
            line_ = json.loads(line)
            return all(line_.get(name) == value for name, value in of.items())

        answer: dict[str, Any] = json.loads(self.script.wait_for(is_it, after, deadline_s))
        return answer

    def list_events(self, kind: str, **of: Any) -> list[dict[str, Any]]:
        """All that it has reported until now."""
        lines = [json.loads(line) for line in list(self.script.lines) if line.startswith(f'{{"say":"{kind}"')]
        return [line for line in lines if all(line.get(name) == value for name, value in of.items())]

    def place(self) -> int:
        """The number of lines so far: for `after`."""
        return len(self.script.lines)
