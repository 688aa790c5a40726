"""One viewer attacks, and another looks at the desk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PREPARE = """
import django, json, secrets
django.setup()
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from jobs_admin.models import Role
found = {}
for name in ("mallory", "vera", "rita", "rosa", "ruth"):
    user, _ = get_user_model().objects.get_or_create(username=name)
    Role.objects.get_or_create(user=user, source="*", defaults={"role": "viewer"})
    session = SessionStore()
    session[SESSION_KEY], session[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    session[BACKEND_SESSION_KEY] = "dashboard.web.second_step.Passwords"
    session.save()
    token = secrets.token_hex(16)
    found[name] = f"sessionid={session.session_key}; csrftoken={token}"
print(json.dumps(found))
"""


def round_of(desk, seconds: float, seed: int, attackers: tuple[str, ...] = ("mallory",)) -> dict[str, object]:
    """One attack on a filled desk (`tests.rigs.pages.Desk`), and what was seen meanwhile and after it.

    Several attackers only read an export each, slowly.
    """
    from dashboard.setup.engine import Engine
    from tests.rigs.pages import granian

    engine = Engine(desk.folder / "engine").start()
    try:
        made = desk.folder / "environment.json"
        made.write_text(json.dumps(json.loads(made.read_text()) | {"REDRIVE_REDIS_URL": engine.url}))
        desk.run("manage.py", "collectstatic", "--noinput", "--verbosity", "0")
        cookies = json.loads(desk.run("-c", PREPARE))
        with granian(desk.environment, "/healthz") as (port, process):
            before = _list_leftovers(process.pid, port)
            words = ["--seed", str(seed), "--attack", str(port), *(cookies[name] for name in attackers)]
            attacker = subprocess.Popen(
                [sys.executable, "-m", "bench.attack", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
            )
            try:
                time.sleep(1)
                seen = asyncio.run(_measure_viewer(port, cookies["vera"], seconds))
            finally:
                attacker.terminate()
                result = json.loads(attacker.communicate(timeout=20)[0])
            time.sleep(3)
            used = _processor_s(process.pid)
            time.sleep(2)
            after = _list_leftovers(process.pid, port) | {
                "processor_s_in_2_s": round(_processor_s(process.pid) - used, 2)
            }
            after["another viewer's list, ms"] = asyncio.run(_measure_viewer(port, cookies["vera"], 1))["list"]
    finally:
        engine.stop()
    return {"another viewer": seen, "attacker's answers": result, "before": before, "after": after}


async def _measure_viewer(port: int, cookie: str, seconds: float) -> dict[str, dict[str, float]]:
    ends = time.monotonic() + seconds
    took: dict[str, list[float]] = {"list": [], "healthz": []}

    async def poll(name: str, path: str) -> None:
        while time.monotonic() < ends or not took[name]:
            began = time.perf_counter()
            status = await _get(port, path, cookie)
            took[name].append((time.perf_counter() - began) * 1000)
            if status != 200:
                raise SystemExit(f"{path} answered {status}")
            await asyncio.sleep(0.05)

    await asyncio.gather(poll("list", "/failures/"), poll("healthz", "/healthz"))
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


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


def _list_leftovers(pid: int, port: int) -> dict[str, Any]:
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
