"""A process that `up` forks reads its own environment, and keeps nothing of its parent but what it is given.

Nor do unreachable objects of the parent close files that the process opens under their numbers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import gc
import os
import django
django.setup()
from django.conf import settings
from django.db import connection
from dashboard.setup import forks
from dashboard.web.htmx import engine

kept, secret = os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY)
gc.disable()  # what is unreachable stays until the process is forked
ring = {"file": open(os.devnull)}
ring["ring"] = ring
lost = ring["file"].fileno()
del ring

def report():
    os.dup2(kept, lost)
    gc.collect()
    print(os.path.exists(f"/proc/self/fd/{lost}"))
    print([os.path.exists(f"/proc/self/fd/{number}") for number in (kept, secret)] == [True, False])
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA cache_size")
        print(cursor.fetchone()[0], os.path.basename(connection.settings_dict["NAME"]))
    engine().get_template("redrive/failures/list.html#results")

with connection.cursor() as cursor:
    cursor.execute("SELECT 1")
changed = {"REDRIVE_SQLITE_CACHE_KB": "1234", "DATABASE_URL": os.environ["DATABASE_URL"].replace("desk", "other")}
child = forks.Fork("test", report, changed, keep=(kept,))
code = child.wait(60)
print(child.stdout.read().decode(), code)
"""


def test_a_fork_has_the_database_of_its_own_environment_and_only_the_files_that_it_is_given(tmp_path):
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "dashboard.settings",
        "DATABASE_URL": f"sqlite:///{tmp_path}/desk.sqlite3",
        "REDRIVE_DATA": str(tmp_path),
    }
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stdout.split() == ["True", "True", "-1234", "other.sqlite3", "0"], ran.stdout + ran.stderr
