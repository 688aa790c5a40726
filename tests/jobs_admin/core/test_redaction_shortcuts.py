"""Most texts hold no secret, and that is found out cheaply. What is found out so is what every pattern, tried in full, finds."""

from __future__ import annotations

import random
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core import named_secrets
from jobs_admin.core import secret_patterns as patterns
from jobs_admin.core.redaction import redact, redact_text
from tests.canaries.jobs import read_set
from tests.kit import canaries, clean_values, known_secrets
from tests.kit.endurance import times

KNOWN = [secret.text for secret in known_secrets.SECRETS] + list(canaries.TEXT.values())
KNOWN += [
    canary["text"] for name in ("first_set", "second_set") for canary in read_set(name) if canary["place"] == "message"
]
CLEAN = [*clean_values.TEXTS, *clean_values.errors()]
_PIECES = [
    "password", "token", "api_key", "Cookie", "pin", "sk_live_", "ghp_", "eyJ", "AKIA", "key-", "https://", "user:", "@", "=", ":", "--",
    " ", "\n", '"', "'", "<", ">", "%3D", "Bearer ", "a1b2c3d4e5f6a7b8c9", "4111 1111 1111 1111", "378282246310005", "x" * 17, "Zoë",
    "ſ", "K", "ı", "x.y-z_", "?code=", "hooks.slack.com/services/", "&sig=", "[", "]", "{", "}", ",", "0", "::", "\\", "/webhooks/",
    "login(", "'bob', 'x1-yz'", "GB82 WEST 1234 5698 7654 32", "GB82WEST12345698765432", "mnemonic ", "otter maple " * 6,
]  # fmt: skip


def in_full(text: str) -> tuple[str, int]:
    """Every pattern tried on the whole text, whatever that holds."""
    text, keys = patterns.without_private_keys(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(named_secrets, "_MAY_NAME", re.compile(""))
        text, named = named_secrets.without_named(text)
    for _, pattern, replacement in patterns._SENTENCES:
        text, count = pattern.subn(replacement, text)
        named += count
    text, found = patterns.replace_counted(patterns._URL, patterns._hide_userinfo, text)
    for _, pattern, replacement in patterns._PATTERNS:
        text, count = pattern.subn(replacement, text)
        found += count
    text, tokens = patterns.replace_counted(patterns._RUN, lambda run: patterns._shown_token(run[0]), text)
    text, cards = patterns.replace_counted(patterns._CARD, patterns._hide_card, text)
    text, accounts = patterns.replace_counted(patterns._IBAN, patterns._hide_iban, text)
    return text, keys + named + found + tokens + cards + accounts


@pytest.mark.parametrize("around", ["{}", "it failed with {}\nand goes on", "Zoë: {}, twice: {}", "x" * 3_000 + " {} "])
def test_what_is_known_is_hidden_as_every_pattern_would(around):
    for text in KNOWN[:: times(6, 1) if len(around) > 3_000 else 1]:
        full = around.replace("{}", text)
        assert redact_text(full) == in_full(full)


@pytest.mark.parametrize(
    "text",
    ["password=hunter22", "password: hunter22", "password：hunter22", "password＝hunter22", "password%3Dhunter22", "--password hunter22",
     '("password", "hunter22xx")', "('password', 'hunter22xx')", 'api_key "a1b2c3d4e5f6a7b8c9"', "<password>hunter22</password>"],
)  # fmt: skip
def test_whatever_is_between_a_name_and_its_value(text):
    assert redact_text(text) == in_full(text)
    assert redact_text(text)[1] == 1


@pytest.mark.long("Reads every text by each pattern apart.")
def test_ordinary_texts_are_left_as_every_pattern_would():
    for text in CLEAN[:: times(8, 1)]:
        assert redact_text(text) == in_full(text)


@pytest.mark.long("Reads every text by each pattern apart.")
def test_any_mixture_too():
    pick = random.Random(5)
    pieces = _PIECES + KNOWN + CLEAN
    for _ in range(times(60, 1_500)):
        text = "".join(pick.choice(pieces) for _ in range(pick.randrange(2, 9)))
        assert redact_text(text) == in_full(text)


@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=20))).map("".join))
def test_whatever_it_holds(text):
    assert redact_text(text) == in_full(text)


def test_no_message_that_a_pattern_takes_for_another_passes_by():
    any_case = re.compile("(?i)[a-z]")
    odd = [chr(code) for code in range(sys.maxunicode + 1) if any_case.match(chr(code)) and not chr(code).isascii()]
    assert len(odd) >= 3
    assert all(set(patterns.folded(char)) & set("abcdefghijklmnopqrstuvwxyz") for char in odd)


@pytest.mark.parametrize("name", ["password", "name", "Zoë", "x" * 300, "sk_live_" + "a1" * 12, "value"])
def test_a_name_is_judged_alike_each_time(name):
    value = {name: "hunter2", "value": "correct horse"}
    assert redact(value) == redact(value) == redact({**value})
