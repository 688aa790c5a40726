"""Acts of `rq_shop.py` and `dramatiq_shop.py`: on standard input, a line of JSON each; answers on standard output.

An act is a list, `["requeue", "j1"]`: the name of a method that begins with `do_`, and its arguments.
"""

from __future__ import annotations

import json
import logging
import sys
import time

import redis


class PlannedShop:
    """Jobs whose plans say how each execution ends."""

    def __init__(self, url):
        self.url = url
        self.client = redis.Redis.from_url(url)

    def do_plan(self, job_id, plan):
        self.client.delete(f"plan:{job_id}")
        if plan:
            self.client.rpush(f"plan:{job_id}", *plan)


def take_end(client, job_id):
    """Return the outcome of this execution: from its plan, else by whether the partner is broken."""
    end = (client.lpop(f"plan:{job_id}") or client.get("broken") or b"ok").decode()
    client.rpush("ran", job_id)
    if end == "hang":
        time.sleep(60)
    return end


def run_acts(shop):
    logging.disable(logging.CRITICAL)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        done = [getattr(shop, f"do_{name}")(*arguments) for name, *arguments in json.loads(line)]
        answers.write(json.dumps(done) + "\n")
        answers.flush()
