"""From an alert over the demo's own dead jobs to the careful replay that its page drafts: one link and one button."""

from __future__ import annotations

import re

import pytest

from tests.kit.page_checks import expect, faults_at_sizes

pytestmark = [pytest.mark.server, pytest.mark.browser]

QUEUE = "payments"
# What the partner did to a charge: it is well again. Whatever else is dead in the queue fails for its own code or data.
TRANSIENT = ("HTTPStatusError", "RateLimited")


def alert_over_dead_jobs(desk):
    """The alert that the demo's own rules raise over the dead jobs of the queue."""
    found = [one for one in desk.get("alerts")["items"] if one["queue"] == QUEUE and one["metric"] == "dead"]
    return next((one for one in found if one["state"] in ("firing", "acknowledged")), None)


@pytest.mark.long("Starts a desk with a day of failures and replays them in a browser.")
def test_an_alert_over_the_mixed_day_is_replayed_by_its_link_and_one_button(desk, page):
    page.complaints = []
    alert = desk.wait_until(lambda: alert_over_dead_jobs(desk), "the dead payments are an alert", within_s=90)
    page.goto(alert["url"])
    act = page.locator(".why-act a[data-key=r]")
    number = re.search(r"[\d,]+", act.inner_text())[0]
    act.click()
    expect(page.get_by_role("radio", name="Careful")).to_be_checked()
    expect(page.locator("h1")).to_contain_text(f"Replay {number} jobs")
    listed = page.locator("input[name=group]").evaluate_all("all => all.map(one => [one.value, one.checked])")
    query = page.locator("input[name=q]").first.input_value()
    titles = {one["fingerprint"]: one["title"] for one in desk.get("groups", q=query, limit=100)["items"]}
    on = [name for name, is_on in listed if is_on]
    transient = [name for name in on if any(error in titles[name] for error in TRANSIENT)]
    permanent = [name for name, _ in listed if name not in transient]
    cured = ",".join(transient)
    curable = {one["id"] for one in desk.get("failures", q=f"{query} group:{cured}", limit=200)["items"]}
    assert transient and 20 <= len(curable) < 200 and len(permanent) >= 10 and len(permanent) < len(titles)
    assert faults_at_sizes(page, "preview") == []

    page.get_by_role("button", name=re.compile(rf"^Replay [\d,]+ jobs to {QUEUE}$")).click()
    page.wait_for_url(re.compile(r"/replays/\d+/$"))
    number = re.search(r"/replays/(\d+)/", page.url)[1]

    def ended():
        reported = desk.get(f"replays/{number}")
        return reported if reported["state"] in ("done", "held", "stopped", "cancelled") else None

    reported = desk.wait_until(
        ended, "it ends without another act", within_s=240, progress=lambda answer: answer["counts"]
    )
    page.reload()
    assert faults_at_sizes(page, "replay") == []
    assert reported["state"] == "done", reported["held_because"]
    assert reported["reason"].startswith(f"Alert #{alert['id']}: ")
    # Every job that could be cured is, perhaps after another error, so in another group. No other job is: they are dead, and
    # the groups that they had are named on the page.
    recovered = desk.get("failures", q=f"replay:{number} state:recovered", limit=200)["items"]
    assert curable <= {one["id"] for one in recovered}
    assert desk.get("failures", q=f"{query} group:{cured}")["count"] == 0
    others = [one["error_type"] for one in recovered if one["id"] not in curable]  # dead since they were counted
    assert [error for error in others if not error.endswith(TRANSIENT)] == []
    shown = page.locator("#replay").inner_html()
    assert [titles[name] for name in permanent if f"/groups/{name}/" not in shown] == []
    aside = page.locator("#aside")
    for text in ("Set aside during the replay", "Off at the start"):
        expect(aside).to_contain_text(text)
