"""A trace whose frames were seen before shows exactly what it would show if they had not been."""

from __future__ import annotations

import random
import traceback

import pytest

from jobs_admin.core import display
from jobs_admin.core.display import redact_trace
from jobs_admin.core.redaction import PLACEHOLDER, redact_text
from tests.kit import canaries, clean_values, known_secrets
from tests.kit.endurance import times

CODE = [
    "return self.pool.urlopen(method, url)",
    "password = password",
    "login",
    "password=",
    "self.connect(token=token, tokens=[",
    '"api_key":',
    "key = '-----BEGIN RSA PRIVATE KEY-----'",
    "xml = '<password>'",
    "secret: |",
    "curl -u",
    "Bearer",
    "x = f'{a}' ]",
]
MESSAGES = (
    [secret.text for secret in known_secrets.SECRETS] + list(canaries.TEXT.values()) + list(clean_values.errors()[:40])
)
MESSAGES += [
    "password:",
    "</password>",
    "-----END RSA PRIVATE KEY-----",
    "tokens: ['a1b2c3d4',",
    "  indented: 'x'",
    "bob password hunter22",
    "|",
]


def a_trace(pick: random.Random) -> str:
    parts = []
    for _ in range(pick.randrange(1, 4)):
        parts.append(pick.choice(["Traceback (most recent call last):\n", f"{pick.choice(MESSAGES)}\n", ""]))
        for _ in range(pick.randrange(1, 6)):
            parts.append(
                f'  File "/srv/shop/{pick.choice("abc")}.py", line {pick.randrange(9)}, in {pick.choice(["run", "<module>"])}\n'
            )
            parts += [f"    {pick.choice(CODE)}\n"] * (pick.random() < 0.9)
            parts += ["    ~~~~^^^^^^^\n"] * (pick.random() < 0.4)
        parts.append(f"{pick.choice(['ValueError', 'shop.Down'])}: {pick.choice(MESSAGES)}\n")
        parts.append(pick.choice(["", "\nThe above exception was the direct cause of the following exception:\n\n"]))
    return "".join(parts)


@pytest.mark.long("Searches traces for secrets in many orders.")
def test_a_trace_hides_the_same_whatever_was_remembered_of_its_frames():
    pick = random.Random(3)
    for _ in range(times(500, 3_000)):
        text = a_trace(pick)
        assert redact_trace(text) == redact_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no trace",
        '  File "x", line 1, in f\n',
        "a\x00b",
        '  File "\x00"\n',
        '  File "x", line 1, in f\n    y\n\x00"\n',
    ],
)
def test_what_is_no_trace_is_redacted_as_a_text(text):
    assert redact_trace(text) == redact_text(text)


def test_the_frames_of_a_real_error_are_searched_once(monkeypatch):
    def fails(message):
        try:
            random.choice([])
        except IndexError as error:
            raise ValueError(message) from error

    searched, secret = [], "hunter2" * 2
    monkeypatch.setattr(display, "redact_text", lambda text: searched.append(len(text)) or redact_text(text))
    for number in range(3):
        try:
            fails(f"order {number}: password={secret}")
        except ValueError:
            text = traceback.format_exc()
        shown, hidden = redact_trace(text)
        assert shown == text.replace(secret, PLACEHOLDER) and hidden == 1
        assert (sum(searched) > len(text)) is (number == 0)
        searched.clear()


def test_what_only_one_of_many_frames_reports_is_hidden_too():
    text = "".join(f'  File "/srv/a.py", line {n}, in f\n    go()\n' for n in range(50))
    secret = text + '  File "/srv/b.py", line 1, in f\n    connect(password="hunter2hunter2")\n' + text + "E: x\n"
    for _ in range(2):
        assert "hunter2" not in redact_trace(secret)[0]


def test_what_begins_in_the_last_line_of_the_frames_and_ends_behind_them_is_found():
    text = '  File "/srv/a.py", line 1, in f\n    go()\n  File "/srv/b.py", line 2, in g\n    login\nValueError: password hunter22x\n'
    assert redact_trace(text) == redact_text(text) and "hunter22x" not in redact_trace(text)[0]
