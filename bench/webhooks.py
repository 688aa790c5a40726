"""The promises of channels, measured: no forbidden connection, no wait for a hostile endpoint, nothing lost by a kill.

    python -m bench.webhooks [--tries 10000] [--kills 100] [--seconds 40] [--frozen 40]

A desk of its own on SQLite and a Valkey of its own; the deliveries are made by real `manage.py watch --only deliver`
processes, the endpoints are real sockets on the loopback. Prints figures as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.machine import machine
from tests.rigs.empty_desk import desk
from tests.rigs.figures import spread

ROOT = Path(__file__).resolve().parent.parent
HANGING = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tries", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--seconds", type=int, default=40, help="How long the healthy channel is watched beside others."
    )
    parser.add_argument(
        "--frozen", type=int, default=40, help="Until when two of three watches stand still, in seconds."
    )
    wanted = parser.parse_args()
    from dashboard.setup.engine import Engine

    with tempfile.TemporaryDirectory() as folder:
        (data := Path(folder) / "data").mkdir()
        engine = Engine(Path(folder)).start()
        try:
            desk(data, REDRIVE_WEBHOOK_ALLOW="127.0.0.0/8", REDRIVE_REDIS_URL=engine.url)
            print(
                json.dumps(
                    {
                        "machine": machine(),
                        "forbidden": forbidden(wanted.tries),
                        "hostile": hostile(wanted.seconds),
                        "kills": kills(wanted.kills),
                        "frozen": frozen(wanted.frozen),
                        "load_average_at_the_end": round(os.getloadavg()[0], 1),
                    },
                    indent=2,
                )
            )
        finally:
            engine.stop()


# -- no forbidden connection --------------------------------------------------------------------------------------


def forbidden(tries: int) -> dict[str, Any]:
    """Spellings of forbidden addresses, names that lead to one, names that lead elsewhere each time, and redirects."""
    from jobs_admin.core.web_address import Allowed, BadAddress, parse, parse_allowed
    from jobs_admin.notices import posting
    from tests.kit.addresses import ANSWERS, URLS
    from tests.kit.endpoints import Listener, answering, opened

    listener = Listener()
    came = Counter()
    kinds = Counter()
    redirects = [
        answering(status, Location=f"http://127.0.0.2:{listener.port}/") for status in (301, 302, 303, 307, 308)
    ]
    with opened(*redirects) as pointing:

        def request(n: int) -> None:
            draw = random.Random(n)
            kind = ("spelling", "name", "rebinding", "redirect")[n % 4]
            url, resolve, may = f"http://hooks.example:{listener.port}/", None, Allowed()
            if kind == "spelling":
                url = URLS[n // 4 % len(URLS)].format(port=listener.port)
            elif kind == "name":
                answers = ANSWERS[n // 4 % len(ANSWERS)]
                resolve = lambda host, port: answers  # noqa: E731
            elif kind == "rebinding":
                turns = itertools.cycle(draw.sample(ANSWERS, 4))
                resolve = lambda host, port: next(turns)  # noqa: E731
            else:
                one = pointing[n // 4 % len(pointing)]
                url, may = one.url, parse_allowed([f"127.0.0.1:{one.port}"])
            try:
                answer = posting.send(posting.Request(parse(url), {}, b"{}"), may, resolve)
                outcome = "redirect, not followed" if answer.status else "refused at the socket"
            except BadAddress:
                outcome = "not read"
            kinds[kind] += 1
            came[outcome] += 1

        began = time.monotonic()
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(request, range(tries)))
        took = time.monotonic() - began
    time.sleep(0.5)
    connections = listener.count
    listener.close()
    return {
        "tries": tries, "spellings": len(set(URLS)), "by": dict(kinds), "came_to": dict(came),
        "forbidden_connections": connections, "took_s": round(took, 1),
    }  # fmt: skip


# -- a healthy channel beside hostile ones ------------------------------------------------------------------------


def hostile(seconds: int) -> dict[str, Any]:
    """Notices to a healthy channel while every hostile endpoint, and a hundred that hang, are notified as well."""
    from standardwebhooks import Webhook

    from jobs_admin.models import Delivery
    from jobs_admin.notices import posting
    from tests.kit.endpoints import HOSTILE, answering, hang, opened

    with opened(*HOSTILE.values(), hang, answering(204)) as (*bad, hanging, healthy):
        channels = [_channel(name, one.url)[0] for name, one in zip(HOSTILE, bad, strict=True)]
        channels += [_channel(f"hangs {n}", hanging.url)[0] for n in range(HANGING)]
        channel, secret = _channel("healthy", healthy.url)
        written: dict[str, float] = {}
        with _watch():
            _notice("first", channel)
            _until(lambda: healthy.seen, 60)  # it runs
            ends, n = time.monotonic() + seconds, 0
            while time.monotonic() < ends:
                n += 1
                if n % 10 == 1:  # the others have something to do all the time
                    _notice(f"all-{n}", *channels)
                key = f"healthy-{n}"
                _notice(key, channel)
                written[key] = time.monotonic()
                time.sleep(0.5)
            _until(lambda: len({one.headers["webhook-id"] for one in healthy.seen}) == n + 1, 30)
            # Again and again, and in the end nothing is left that still waits.
            for _ in range(3):
                _until(lambda: not Delivery.objects.filter(state="sending").exists(), 60)
                Delivery.objects.filter(state="waiting").update(
                    tries=posting.MOST_TRIES - 1, next_try_at="2026-01-01T00:00Z"
                )
            _until(lambda: not Delivery.objects.filter(state__in=("sending", "waiting")).exists(), 600)
        first: dict[str, float] = {}
        for one in healthy.seen:
            Webhook(secret).verify(one.body, one.headers)
            first.setdefault(one.headers["webhook-id"], one.at)
        delays = [first[key] - at for key, at in written.items()]
        ids = defaultdict(set)
        for one in bad[0].seen:
            ids[one.body].add(one.headers["webhook-id"])
        rows = Delivery.objects.all()
        return {
            "endpoints": len(bad) + HANGING, "behaviours": list(HOSTILE), "notices_to_the_healthy": len(delays),
            "delay_s": spread(delays), "deliveries": rows.count(),
            "by_state": dict(Counter(rows.values_list("state", flat=True))),
            "longest_try_s": round(max(rows.exclude(took_ms=None).values_list("took_ms", flat=True)) / 1000, 1),
            "largest_answer_bytes": max(len(text.encode()) for text in rows.values_list("answer", flat=True)),
            "ids_per_body_at_an_endpoint_that_fails": max(map(len, ids.values())),
            "bit_flips_refused_of_1000": _flips(secret, healthy.seen[0]),
        }  # fmt: skip


def _flips(secret: str, seen: Any) -> int:
    from standardwebhooks import Webhook, WebhookVerificationError

    draw, refused = random.Random(1), 0
    for _ in range(1_000):
        body = bytearray(seen.body)
        body[draw.randrange(len(body))] ^= 1 << draw.randrange(8)
        try:
            Webhook(secret).verify(bytes(body), seen.headers)
        except (WebhookVerificationError, UnicodeDecodeError):
            refused += 1
    return refused


# -- kills --------------------------------------------------------------------------------------------------------


def kills(count: int) -> dict[str, Any]:
    """A watch killed again and again in the middle of it: every notice has to arrive, whenever it was, with one id."""
    from standardwebhooks import Webhook

    from jobs_admin.models import Delivery
    from tests.kit.endpoints import opened

    def slow(client: Any) -> None:
        time.sleep(random.uniform(0, 0.3))
        client.sendall(b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n")

    with opened(*[slow] * 5) as there:
        channels = [_channel(f"slow {n}", one.url) for n, one in enumerate(there)]
        mine = Delivery.objects.filter(notice__key__startswith="kill-")
        done, draw = 0, random.Random(1)
        for n in range(count):
            for m in range(3):
                _notice(f"kill-{n}-{m}", *(channel for channel, _ in channels))
            requests = sum(len(one.seen) for one in there)
            with _watch() as running:
                _until(lambda requests=requests: sum(len(one.seen) for one in there) > requests, 20, 0.01)
                time.sleep(draw.uniform(0, 0.5))
                done += _kill(running.pid)
            # What it had claimed is free as if half a minute had passed.
            mine.filter(state="sending").update(next_try_at="2026-01-01T00:00Z")
        with _watch():
            _until(lambda: mine.exists() and not mine.exclude(state="delivered").exists(), 300)
        sent = Counter((n, one.headers["webhook-id"]) for n, one_there in enumerate(there) for one in one_there.seen)
        for (_, secret), one_there in zip(channels, there, strict=True):
            Webhook(secret).verify(one_there.seen[-1].body, one_there.seen[-1].headers)
        ids = defaultdict(set)
        for one_there in there:
            for one in one_there.seen:
                ids[one.body].add(one.headers["webhook-id"])
        return {
            "kills": done, "deliveries": mine.count(), "arrived": len(sent), "missed": count * 3 * len(there) - len(sent),
            "requests": sum(sent.values()), "sent_more_than_once": sum(n > 1 for n in sent.values()),
            "most_ids_of_a_notice": max(map(len, ids.values())),
        }  # fmt: skip


def frozen(seconds: int) -> dict[str, Any]:
    """Three watches, of which two stand still for longer than their claims, in the middle of it, and go on."""
    from jobs_admin import config
    from jobs_admin.core import keys
    from jobs_admin.models import Delivery
    from tests.kit.endpoints import opened

    def slow(client: Any) -> None:
        time.sleep(random.uniform(0, 0.3))
        client.sendall(b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n")

    others = {json.loads(config.store().hget(keys.steps(), "deliver") or b"{}").get("pid")}  # of a watch that has ended
    with opened(*[slow] * 10) as there:
        channels = [_channel(f"beside {n}", one.url)[0] for n, one in enumerate(there)]
        mine = Delivery.objects.filter(notice__key__startswith="freeze-")
        n = 0
        with _watch() as one_still, _watch() as another, _watch():
            _notice("freeze-0", *channels)
            pids: set[int] = set()

            def all_three_live() -> bool:
                word = json.loads(config.store().hget(keys.steps(), "deliver") or b"{}")
                pids.update([word["pid"]] if "pid" in word else [])
                return len(pids - others) == 3

            _until(all_three_live, 90, 0.05)
            began = time.monotonic()
            is_frozen = False
            while time.monotonic() - began < seconds + 10:
                n += 1
                _notice(f"freeze-{n}", *channels)
                is_still = 2 < time.monotonic() - began < seconds
                if is_still != is_frozen:
                    for still in (one_still, another):
                        os.killpg(still.pid, signal.SIGSTOP if is_still else signal.SIGCONT)
                    is_frozen = is_still
                time.sleep(0.2)
            _until(lambda: not mine.exclude(state="delivered").exists(), 120)
        sent = Counter((k, one.headers["webhook-id"]) for k, one_there in enumerate(there) for one in one_there.seen)
        ids = defaultdict(set)
        for one_there in there:
            for one in one_there.seen:
                ids[one.body].add(one.headers["webhook-id"])
        return {
            "watches": 3, "two_stood_still_s": seconds - 2, "deliveries": mine.count(), "missed": mine.count() - len(sent),
            "requests": sum(sent.values()), "sent_more_than_once": sum(k > 1 for k in sent.values()),
            "most_ids_of_a_notice": max(map(len, ids.values())),
        }  # fmt: skip


# -- the desk -----------------------------------------------------------------------------------------------------


class _watch:
    """`manage.py watch --only deliver`; killed at the end, if it still runs."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(ROOT / "manage.py"), "watch", "--only", "deliver"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        return self.process

    def __exit__(self, *_: object) -> None:
        _kill(self.process.pid)
        self.process.wait()


def _kill(pid: int) -> bool:
    """The whole session: the parent, and its child in the middle of what it does."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _channel(name: str, url: str) -> tuple[Any, str]:
    from jobs_admin import notices
    from jobs_admin.models import Channel
    from jobs_admin.models.access import ENGINE

    saved = notices.save_channel(ENGINE, {"name": name, "kind": "webhook", "url": url})
    return Channel.objects.get(pk=saved.channel.pk), saved.secret or ""


def _notice(key: str, *channels: Any) -> None:
    from django.db import transaction

    from jobs_admin.models import Notice

    with transaction.atomic():
        body = {
            "title": "Dead Letter Queue Growing",
            "message": f"emails has 1,243 dead jobs ({key})",
            "queue": "emails",
        }
        made = Notice.objects.create(
            key=key, type="alert.firing", severity="warning", source="shop", body=body, is_routed_by_event=False
        )
        made.channels.set(channels)


def _until(is_true: Any, within_s: float, every_s: float = 0.2) -> None:
    ends = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > ends:
            return
        time.sleep(every_s)


if __name__ == "__main__":
    main()
