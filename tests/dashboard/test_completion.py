"""The script of `completion`, in a real bash."""

from __future__ import annotations

import shutil
import subprocess
from io import StringIO

import pytest
from django.core.management import call_command

from dashboard.setup.command_line import OURS

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
COMPLETE = 'eval "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _redrive; printf "%s\\n" "${COMPREPLY[@]}"'


@pytest.fixture(scope="module")
def script():
    written = StringIO()
    call_command("completion", stdout=written)
    return written.getvalue()


def completions(script, *words):
    done = subprocess.run(["bash", "-c", COMPLETE, "bash", script, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_every_command_is_offered(script):
    assert completions(script, "redrive", "") == list(OURS)
    assert completions(script, "redrive", "fail") == ["failures", "failure"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["groups", "li"], ["list"]),
        (["groups", "list", "--s"], ["--sort", "--state"]),
        (["groups", "list", "--sort", ""], ["last_seen", "first_seen", "count", "dead"]),
        (["failures", "queue:emails", "error:Timeout", "--l"], ["--limit"]),
        (["depth", "history", "shop", "emails", "--po"], ["--points"]),
        (["worker-acl", "--h"], ["--help"]),
        (["test", "--"], []),
        (["nonsense", ""], []),
    ],
)
def test_acts_options_and_values_are_offered(script, words, expected):
    assert completions(script, "redrive", *words) == expected
