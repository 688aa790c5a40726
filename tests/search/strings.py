"""Strings that a person might type or paste into a search: operators, errors, halves of both, and noise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

PASTED = [json.loads(line) for line in (Path(__file__).parent / "pasted.jsonl").read_text("utf-8").splitlines()]

_PIECES = [
    "queue:", "error:", "-error:", "message:", "kwargs.customer.id:", "-args.0:", "trace:", "attempts:", "age:", "since:",
    "until:", "state:", "tenant:", "host:", "group:v1-", "dependency:", "replay:", "priority:", "policy:", "kind:", "source:", "task:",
    "OR", " OR ", "(", ")", '"', "\\", '\\"', "-", '-"', "*", ",", " ", "  ", "a", "b.c", "x y", ":", "=", ">=", "<2d", "3",
    "2..5", "foo:", "'", "dead", "*", "any", "2026-11-20T10:00Z", "\n", "\t", "é", "\u2028", "[", "]", "timeout", "Read*",
    "ReadTimeoutError", "%", "_", "&", "|", "!", "->", "<->", ":*", "NEAR", "NOT", "AND", "\0", "\ud800", "😀", "t.read",
    "e\u0301", "٣", "½", "\u202e", "'; DROP TABLE x; --", "${x}", "{{x}}", "<script>", "999999999999", "-2",
]  # fmt: skip


def strings(n: int, seed: int = 1) -> Iterator[str]:
    """`n` strings; the same seed gives the same."""
    rand = random.Random(seed)
    for _ in range(n):
        kind = rand.random()
        if kind < 0.55:
            yield "".join(rand.choice(_PIECES) for _ in range(rand.randrange(1, 14)))
        elif kind < 0.75:
            yield " ".join(_part(rand) for _ in range(rand.randrange(1, 4)))
        elif kind < 0.9:
            text = list(_part(rand))
            for _ in range(rand.randrange(1, 6)):
                text.insert(rand.randrange(len(text) + 1), rand.choice(_PIECES))
            yield "".join(text)
        else:
            yield "".join(chr(rand.choice([rand.randrange(128), rand.randrange(0x3000), rand.randrange(0x11000)])) for _ in range(rand.randrange(1, 40)))  # fmt: skip


def _part(rand: random.Random) -> str:
    """Some of a pasted line."""
    text = rand.choice(PASTED)["pasted"]
    start = rand.randrange(len(text))
    return text[start : start + rand.randrange(1, 80)] or text
