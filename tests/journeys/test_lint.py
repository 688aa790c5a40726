"""Lint on the demo's shop: what its workers really have, and what was seen of it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.server]

# They are tried for seconds, by design: somebody waits for them (demo/hooks.py, demo/mailer.py, demo/billing.py).
BRIEF = {
    "shop.mailer.send_newsletter", "shop.mailer.send_receipt", "shop.billing.book", "shop.billing.charge",
    "shop.hooks.order_pickup", "shop.hooks.reserve_stock", "shop.hooks.update_stock",
}  # fmt: skip
AUTORETRY = BRIEF - {"shop.mailer.send_receipt", "shop.billing.charge"}
# A policy in force takes the place of what its own code says: then that is what is found (demo/first_start.py).
REPLACED = {"shop.mailer.send_newsletter": "newsletters"}


def test_the_shops_short_retries_are_found_and_nothing_is_invented(desk):
    answer = desk.wait_until(
        lambda: (message := desk.get("policies/lint"))["workers"] and message, "a worker tells what it has", within_s=60
    )
    of_shop = [one for one in answer["findings"] if one["at"]["source"] == "shop" and not one["at"]["policy"]]
    assert {one["at"]["task"] for one in of_shop if one["id"] == "gives-up-before-outage"} == BRIEF - set(REPLACED)
    brief = {one["at"]["policy"] for one in answer["findings"] if one["id"] == "gives-up-before-outage"}
    assert brief >= set(REPLACED.values())
    # The incident's partner limits rates: then it is found of those that cannot heed what it asks for, and of no other.
    others = [one for one in of_shop if one["id"] != "gives-up-before-outage"]
    assert {one["id"] for one in others} <= {"ignores-retry-after"}
    assert {one["at"]["task"] for one in others} <= AUTORETRY
    live = [one for one in answer["check"]["verdicts"] if one["by"] != "policy"]
    assert {one["at"]["task"] for one in live if one["verdict"] == "pass"} == BRIEF - set(REPLACED)
    assert not [one for one in live if one["verdict"] in ("fail", "cannot tell")]
    requested = [one["quoted"] for one in live if one["kind"] == "as asked"]
    assert requested.count("self.retry(exc=error, countdown=error.retry_after), max_retries=5") == 1
