"""Makes `unseen.jsonl` again: `python tests/fingerprints/make_unseen/make.py WORK [--pythons FOLDER]`.

WORK keeps the environments. Run it with the project's own Python: the guard's own code reads
and redacts what was raised. Needs Python 3.9 and 3.13.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent.parent))
sys.path.insert(0, str(HERE))

import labels  # noqa: E402
from scenarios import SCENARIOS  # noqa: E402

from jobs_admin.core.display import shown_message, shown_trace  # noqa: E402
from jobs_admin.worker.outcome import Outcome, _message  # noqa: E402

ENVIRONMENTS = json.loads((HERE / "environments.json").read_text())


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("work", type=Path)
    asked.add_argument("--pythons", type=Path)
    given = asked.parse_args()
    work = given.work.resolve()
    seen: dict[str, dict] = {}
    pythons = {letter: _environment(work / letter, told, given.pythons) for letter, told in ENVIRONMENTS.items()}
    server = subprocess.Popen([pythons["n"], HERE / "servers.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=work)
    try:
        places = json.loads(server.stdout.readline()) | {"files": _files(work / "files")}
        for letter, told in ENVIRONMENTS.items():
            folder = _release(work, letter)
            calls = []
            for name, (target, *values) in SCENARIOS.items():
                module, function = target.split(".")
                via = "celery" if letter == "o" else "plain"
                for which, one in zip("ab", values, strict=True):
                    call = {"module": f"clinic.{module}", "function": function, "via": via, "values": _filled(one, places)}
                    calls.append({"id": f"{name} {letter} {which}", **call})
            ran = subprocess.run([pythons[letter], HERE.parent / "make" / "raising.py"], input=json.dumps({"folder": str(folder), "calls": calls}),
                capture_output=True, text=True, cwd=work, env={"PATH": os.environ["PATH"], "PYTHONWARNINGS": "ignore"}, timeout=400)
            if ran.returncode:
                sys.exit(ran.stderr[-3000:])
            for line in ran.stdout.splitlines():
                one = json.loads(line)
                if one.get("type"):
                    seen[one["id"]] = _recorded(one, work, letter)
                else:
                    print(one["id"], "did not fail" if "missing" not in one else one["missing"])
    finally:
        server.terminate()
    (work / "observations.json").write_text(json.dumps(seen, indent=1))
    rows = [{"name": f"{left} | {right}", "same": same, "why": why, "left": seen[left], "right": seen[right]} for left, right, same, why in labels.pairs()]
    (HERE.parent / "unseen.jsonl").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    print(len(rows), "pairs,", sum(row["same"] for row in rows), "of them one cause")


def _recorded(one: dict, work: Path, letter: str) -> dict:
    """As the guard records it; only the beginnings of this machine's paths change."""
    trace = one["trace"].replace(f"{work}/releases/{letter}/", "/home/deploy/clinic-4.2/" if letter == "o" else "/app/")
    packages = "/home/deploy/env/lib" if letter == "o" else "/usr/local/lib"
    trace = re.sub(rf"{re.escape(str(work))}/{letter}/lib(64)?", packages, trace)
    trace = re.sub(r"[^\s\"'<(]*/lib/(python3\.\d+)/(?!site-packages)", r"/usr/local/lib/\1/", trace)
    trace = re.sub(r"/tmp/tmp\w+", "/etc/clinic", trace.replace(str(work), "/var/clinic"))
    told = Outcome("exception", one["type"], one.get("message") or _message(one["type"], trace), trace)
    raised = one.get("raised")
    if raised and raised != told.error_type:
        before, found, after = told.trace.rpartition(f"\n{told.error_type}")
        told = Outcome(told.kind, raised, told.message, f"{before}\n{raised}{after}" if found else told.trace)
    return {"error_type": told.error_type, "message": shown_message(told.message).text, "trace": shown_trace(told.trace).text}


def _environment(folder: Path, told: dict, pythons: Path | None) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        found = sorted(pythons.glob(f"{told['python']}.*/bin/python")) if pythons else []
        subprocess.run([found[-1] if found else shutil.which(f"python{told['python']}"), "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *told["requirements"]], check=True)
    return python


def _release(work: Path, letter: str) -> Path:
    """Lines that end in `#old` or `#new` stand in one release only; in the new one every line moves."""
    folder = work / "releases" / letter
    shutil.rmtree(folder, ignore_errors=True)
    for source in HERE.glob("clinic/*.py"):
        lines = [] if letter == "o" else ["# " + "-" * 60] * 7
        for line in source.read_text().splitlines():
            text, mark, of = line.rpartition(" #")
            if mark and of in ("old", "new"):
                if of[0] != letter:
                    continue
                line = text.rstrip()
            if line.startswith("def ") and letter == "n":
                lines += ["# Looked at again.", ""]
            lines.append(line)
        target = folder / "clinic" / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")
    return folder


def _files(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    for name in ("notes.xlsx", "plan.xlsx", "notes.tgz", "plan-77.tgz"):
        (folder / name).write_text(f"this is only text: {name}\n")
    (folder / "tenants.ini").write_text("[nord]\nname = Nord\n[medisued]\nname = Medi\n")
    with tarfile.open(folder / "whole.tgz", "w:gz") as archive:
        archive.add(HERE / "scenarios.py", "scenarios.py")
        archive.add(HERE / "servers.py", "servers.py")
    whole = (folder / "whole.tgz").read_bytes()
    (folder / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (folder / "cut-2.tgz").write_bytes(whole[: len(whole) - 900])
    script = "import openpyxl, sys; book = openpyxl.Workbook(); book.active.title = 'September 2026'; book.save(sys.argv[1])"
    subprocess.run([folder.parent / "n" / "bin" / "python", "-c", script, folder / "roster.xlsx"], check=True)
    assert zipfile.is_zipfile(folder / "roster.xlsx")
    return str(folder)


def _filled(values: dict, places: dict) -> dict:
    def fill(value):
        if isinstance(value, str) and value.startswith("@"):
            first, slash, rest = value[1:].partition("/")
            return f"{places[first]}/{rest}" if slash else places[first]
        return value

    return {k: fill(v) for k, v in values.items()}


main()
