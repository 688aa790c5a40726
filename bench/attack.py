"""The wait of a viewer of the desk while another one attacks, and what the attack leaves behind.

    python -m bench.attack --failures 100000 --seconds 60 [--keep /tmp/desks] [--postgresql postgresql://user@host:port/bench] [--readers]

The attacker holds 50 connections with searches drawn at the cost limit, three bodies that arrive a byte a second without a
login, and four exports that are not read. Meanwhile another viewer asks for the list of failures and a probe for `/healthz`.
With `--readers`, three viewers read an export of all failures each, slowly, instead of the attack.
Prints JSON: milliseconds of both, and what is left three seconds after the attacker has gone.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import string
import sys
import tempfile
from collections import Counter
from pathlib import Path
from urllib.parse import quote_plus

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.rigs.attack import _get, _head, round_of  # noqa: E402

CONNECTIONS, SLOW_BODIES, UNREAD_EXPORTS = 50, 3, 4
READS_EVERY_S = 0.1  # at most 640 KiB/s of an export
EVERY_STAR = "state:* " + " ".join(f"{character}*" for character in string.ascii_lowercase + string.digits)
_PATHS = ("/failures/", "/failures/", "/failures/facets/", "/failures/complete/", "/groups/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--failures", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--postgresql", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--readers", action="store_true")
    parser.add_argument("--attack", nargs="+", metavar="PORT COOKIE", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.attack:
        port, *cookies = chosen.attack
        asyncio.run(attack(int(port), cookies, chosen.seed))
        return
    from tests.rigs.pages import Desk

    with contextlib.ExitStack() as running:
        place = chosen.keep or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="redrive-attack-")))
        place.mkdir(parents=True, exist_ok=True)
        desk = Desk(place, "postgresql" if chosen.postgresql else "sqlite", chosen.failures, chosen.postgresql)
        desk.fill()
        attackers = ("rita", "rosa", "ruth") if chosen.readers else ("mallory",)
        found = {
            "desk": str(desk),
            "load_before": os.getloadavg()[0],
            **round_of(desk, chosen.seconds, chosen.seed, attackers),
        }
    print(json.dumps(found, indent=1))


# -- the other viewer ---------------------------------------------------------------------------------------------


# -- the attacker -------------------------------------------------------------------------------------------------


async def attack(port: int, cookies: list[str], seed: int) -> None:
    """Until SIGTERM; then prints how often which status was answered, or 0 where the connection was closed."""
    answers: Counter[str] = Counter()
    source = random.Random(seed)
    if len(cookies) > 1:
        tasks = [asyncio.ensure_future(_export(port, cookie, answers, every_s=READS_EVERY_S)) for cookie in cookies]
    else:
        (cookie,) = cookies
        tasks = [asyncio.ensure_future(_search(port, cookie, source, answers)) for _ in range(CONNECTIONS)]
        tasks += [asyncio.ensure_future(_send_slowly(port, answers)) for _ in range(SLOW_BODIES)]
        tasks += [asyncio.ensure_future(_export(port, cookie, answers)) for _ in range(UNREAD_EXPORTS)]
    stop = asyncio.Event()
    import signal

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps(dict(sorted(answers.items()))))


async def _search(port: int, cookie: str, source: random.Random, answers: Counter[str]) -> None:
    while True:
        path = f"{source.choice(_PATHS)}?q={quote_plus(draw_search(source))}"
        with contextlib.suppress(OSError):
            answers[f"search {await _get(port, path, cookie)}"] += 1


def draw_search(source: random.Random) -> str:
    """A search at or near the cost limit."""
    alphabet = string.ascii_lowercase + string.digits
    prefixes = " ".join(f"{''.join(source.choices(alphabet, k=source.choice((1, 1, 2, 3))))}*" for _ in range(60))
    values = " ".join(f"kwargs.k{n}:v{n}" for n in range(200))
    scans = " ".join(f"*{''.join(source.choices(alphabet, k=3))}*" for _ in range(20))
    return source.choice((EVERY_STAR, f"state:* {prefixes}", values, f"state:* {scans}", f"state:* {prefixes} {scans}"))


async def _send_slowly(port: int, answers: Counter[str]) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_head("POST", "/login/", "", "Content-Type: text/plain", "Content-Length: 1000"))
            answer = asyncio.ensure_future(reader.read(100))
            while not answer.done():
                writer.write(b"a")
                await asyncio.wait({answer}, timeout=1)
            words = answer.result().split(b" ", 2)
            answers[f"slow body {int(words[1]) if len(words) > 1 else 0}"] += 1
            writer.close()


async def _export(port: int, cookie: str, answers: Counter[str], *, every_s: float | None = None) -> None:
    """Exports one after another, each read 64 KiB at a time; without `every_s` one that is not read."""
    token = re.search("csrftoken=(.*)", cookie)[1]  # type: ignore[index]
    body = b"q=state%3A*"
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            form = ("Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}")
            writer.write(_head("POST", "/failures/export/jsonl/", cookie, f"X-CSRFToken: {token}", *form) + body)
            words = (await reader.read(20)).split(b" ", 2)
            answers[f"export {int(words[1]) if len(words) > 1 else 0}"] += 1
            if every_s is None:
                await asyncio.sleep(3600)
            while part := await reader.read(64 * 1024):
                answers["export, bytes read"] += len(part)
                await asyncio.sleep(every_s or 0)
            writer.close()


# -- what is left -------------------------------------------------------------------------------------------------


if __name__ == "__main__":
    main()
