"""One viewer attacks, and another looks at the desk: what that one waits, and whether anything stays behind.

    python -m bench.attack --failures 100000 --seconds 60 [--keep /tmp/desks] [--postgresql postgresql://user@host:port/bench]

The attacker holds 50 connections with searches drawn at the cost limit, three bodies that arrive a byte a second without a
login, and four exports that nobody reads. Meanwhile another viewer asks for the list of failures and a probe for `/healthz`.
Prints JSON: milliseconds of both, and what is left three seconds after the attacker has gone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
CONNECTIONS, SLOW_BODIES, UNREAD_EXPORTS = 50, 3, 4
EVERY_STAR = "state:* " + " ".join(f"{letter}*" for letter in string.ascii_lowercase + string.digits)
_PATHS = ("/failures/", "/failures/", "/failures/facets/", "/failures/complete/", "/groups/")
PREPARE = """
import django, json, secrets
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from jobs_admin.models import Role
found = {}
for name in ("mallory", "vera"):
    user, _ = get_user_model().objects.get_or_create(username=name)
    Role.objects.get_or_create(user=user, source="*", defaults={"role": "viewer"})
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session.save()
    token = secrets.token_hex(16)
    found[name] = f"sessionid={session.session_key}; csrftoken={token}"
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--postgresql", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--attack", nargs=2, metavar=("PORT", "COOKIE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        asyncio.run(attack(int(chosen.attack[0]), chosen.attack[1], chosen.seed))
        return
    from bench.pages import Desk

    with contextlib.ExitStack() as running:
        place = chosen.keep or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="redrive-attack-")))
        place.mkdir(parents=True, exist_ok=True)
        desk = Desk(place, "postgresql" if chosen.postgresql else "sqlite", chosen.failures, chosen.postgresql)
        desk.fill()
        found = {"desk": str(desk), "load_before": os.getloadavg()[0], **round_of(desk, chosen.seconds, chosen.seed)}
    print(json.dumps(found, indent=1))


def round_of(desk, seconds: float, seed: int) -> dict[str, object]:
    """One attack on a filled desk (`bench.pages.Desk`), and what was seen meanwhile and after it."""
    from bench.pages import granian
    from dashboard.setup.engine import Engine

    engine = Engine(desk.folder / "engine").start()
    try:
        made = desk.folder / "environment.json"
        made.write_text(json.dumps(json.loads(made.read_text()) | {"REDRIVE_REDIS_URL": engine.url}))
        desk.run("manage.py", "collectstatic", "--noinput", "--verbosity", "0")
        cookies = json.loads(desk.run("-c", PREPARE))
        with granian(desk.environment, "/healthz") as (port, process):
            before = _left(process.pid, port)
            words = ["-m", "bench.attack", "--seed", str(seed), "--attack", str(port), cookies["mallory"]]
            attacker = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            try:
                time.sleep(1)
                seen = asyncio.run(_look(port, cookies["vera"], seconds))
            finally:
                attacker.terminate()
                told = json.loads(attacker.communicate(timeout=20)[0])
            time.sleep(3)
            used = _processor_s(process.pid)
            time.sleep(2)
            after = _left(process.pid, port) | {"processor_s_in_2_s": round(_processor_s(process.pid) - used, 2)}
            after["another viewer's list, ms"] = asyncio.run(_look(port, cookies["vera"], 1))["list"]
    finally:
        engine.stop()
    return {"another viewer": seen, "attacker's answers": told, "before": before, "after": after}


# -- the other viewer ---------------------------------------------------------------------------------------------


async def _look(port: int, cookie: str, seconds: float) -> dict[str, dict[str, float]]:
    ends = time.monotonic() + seconds
    took: dict[str, list[float]] = {"list": [], "healthz": []}

    async def ask(name: str, path: str) -> None:
        while time.monotonic() < ends or not took[name]:
            began = time.perf_counter()
            status = await _get(port, path, cookie)
            took[name].append((time.perf_counter() - began) * 1000)
            if status != 200:
                raise SystemExit(f"{path} answered {status}")
            await asyncio.sleep(0.05)

    await asyncio.gather(ask("list", "/failures/"), ask("healthz", "/healthz"))
    return {name: _figures(times) for name, times in took.items()}


def _figures(times: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
    found = {"p50": cuts[49], "p99": min(cuts[98], max(times)), "most": max(times)}
    return {name: round(value, 1) for name, value in found.items()} | {"asked": len(times)}


async def _get(port: int, path: str, cookie: str) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_head("GET", path, cookie))
        answer = await reader.read()
        return int(answer.split(b" ", 2)[1]) if answer else 0
    finally:
        writer.close()


def _head(method: str, path: str, cookie: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {cookie}", "Connection: close", *more, "", ""]
    return "\r\n".join(lines).encode()


# -- the attacker -------------------------------------------------------------------------------------------------


async def attack(port: int, cookie: str, seed: int) -> None:
    """Until SIGTERM; then prints how often which status was answered, or 0 where the connection was closed."""
    answers: Counter[str] = Counter()
    source = random.Random(seed)
    tasks = [asyncio.ensure_future(_search(port, cookie, source, answers)) for _ in range(CONNECTIONS)]
    tasks += [asyncio.ensure_future(_send_slowly(port, answers)) for _ in range(SLOW_BODIES)]
    tasks += [asyncio.ensure_future(_leave_unread(port, cookie, answers)) for _ in range(UNREAD_EXPORTS)]
    stop = asyncio.Event()
    import signal

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(dict(sorted(answers.items()))))


async def _search(port: int, cookie: str, source: random.Random, answers: Counter[str]) -> None:
    while True:
        path = f"{source.choice(_PATHS)}?q={quote_plus(drawn(source))}"
        with contextlib.suppress(OSError):
            answers[f"search {await _get(port, path, cookie)}"] += 1


def drawn(source: random.Random) -> str:
    """A search at or near the cost limit."""
    letters = string.ascii_lowercase + string.digits
    prefixes = " ".join(f"{''.join(source.choices(letters, k=source.choice((1, 1, 2, 3))))}*" for _ in range(60))
    values = " ".join(f"kwargs.k{n}:v{n}" for n in range(200))
    scans = " ".join(f"*{''.join(source.choices(letters, k=3))}*" for _ in range(20))
    return source.choice((EVERY_STAR, f"state:* {prefixes}", values, f"state:* {scans}", f"state:* {prefixes} {scans}"))


async def _send_slowly(port: int, answers: Counter[str]) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_head("POST", "/login/", "", "Content-Type: text/plain", "Content-Length: 1000"))
            answer = asyncio.ensure_future(reader.read(100))
            while not answer.done():
                writer.write(b"a")
                await asyncio.wait({answer}, timeout=1)
            words = answer.result().split(b" ", 2)
            answers[f"slow body {int(words[1]) if len(words) > 1 else 0}"] += 1
            writer.close()


async def _leave_unread(port: int, cookie: str, answers: Counter[str]) -> None:
    token = re.search("csrftoken=(.*)", cookie)[1]  # type: ignore[index]
    body = b"q=state%3A*"
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            form = ("Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}")
            writer.write(_head("POST", "/failures/export/jsonl/", cookie, f"X-CSRFToken: {token}", *form) + body)
            words = (await reader.read(20)).split(b" ", 2)
            answers[f"export {int(words[1]) if len(words) > 1 else 0}"] += 1
            await asyncio.sleep(3600)


# -- what is left -------------------------------------------------------------------------------------------------


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _left(pid: int, port: int) -> dict[str, Any]:
    """Connections of clients, and deleted files that the web processes hold open."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    open_states = {"01", "04", "05", "08"}  # established, closing on our side, or left by the client
    clients = sum(int(row[1].rpartition(":")[2], 16) == port and row[3] in open_states for row in rows)
    spools = []
    for one in _family(pid):
        for link in Path(f"/proc/{one}/fd").iterdir():
            with contextlib.suppress(OSError):
                name = os.readlink(link)
                if name.endswith("(deleted)") and "/etilqs_" not in name:  # SQLite's own, for sorting
                    spools.append(name)
    return {"connections": clients, "spools": spools}


def _processor_s(pid: int) -> float:
    ticks = 0
    for one in _family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
