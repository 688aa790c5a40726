"""Four operators at once, in processes of their own; and a death of who creates."""

from __future__ import annotations

import signal

import pytest

from tests.kit.desks import Desk
from tests.kit.endurance import times

pytestmark = [
    pytest.mark.server,
    pytest.mark.django_db(transaction=True),
    pytest.mark.databases,
    pytest.mark.long("Starts a process for each who overlaps, or is killed."),
]


@pytest.fixture
def desk(tmp_path, engine):
    return Desk(tmp_path, engine.url)


ROUNDS = """
from django.db import connections
from jobs_admin.models.replay import OPEN_ITEM
bury(520)
every = list(Failure.objects.order_by("pk").values_list("pk", flat=True))
told = []
for n in range(20):
    ReplayItem.objects.all().delete(); FrozenBatch.objects.all().delete(); Replay.objects.all().delete()
    # The same for all in every other round, overlapping in the others.
    scopes = [every if n % 2 else every[130 * i : 130 * i + 260] for i in range(4)]
    drafts = []
    for i, scope in enumerate(scopes):
        who = Viewer(f"operator{i}", {"*": OPERATOR})
        drafts.append((who, replays.draft(who, selection=scope, pace={"style": "at_once"}, reason="race")))
    connections.close_all()
    go, children = time.time() + 0.1, []
    for who, draft in drafts:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                time.sleep(max(0, go - time.time()))
                try:
                    replays.start(who, draft)
                except Refused as refused:
                    assert refused.code == "nothing_to_replay", refused.code
                while replays.create_items(): pass
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    while replays.create_items(): pass
    rows = []
    for (who, draft), scope in zip(drafts, scopes):
        draft.refresh_from_db()
        blocked = sum(row["count"] for row in draft.blocked if row.get("code") == "taken")
        rows.append([draft.state, len(scope), draft.total, draft.taken, draft.planned, draft.items.count(), blocked])
    opened = ReplayItem.objects.filter(state__in=OPEN_ITEM)
    told.append([ended, rows, opened.count(), opened.values("failure").distinct().count(), len({pk for s in scopes for pk in s})])
say(told)
"""


def test_of_four_operators_at_once_each_job_is_one_ones_and_each_is_informed_how_many(desk):
    for ended, rows, opened, failures, wanted in desk.run(ROUNDS):
        assert ended == [0, 0, 0, 0]
        assert opened == failures == wanted
        for state, scope, total, taken, planned, items, blocked in rows:
            if state != "draft":  # all of it was gone: refused with a sentence
                assert total == planned == items and total + taken == scope and blocked == taken
        assert sum(row[2] for row in rows) == wanted


LAYER = "say(1)\nwhile True:\n    replays.create_items() or time.sleep(0.01)\n"
COUNT_CREATED = "say([ReplayItem.objects.count(), FrozenBatch.objects.count()])"
COUNTS = """
r = Replay.objects.get()
say([r.total, r.planned, r.taken, r.items.count(), r.items.values("failure").distinct().count(), r.items.values("n").distinct().count()])
"""


def test_who_lays_out_is_killed_and_the_next_goes_on_where_it_was(desk):
    desk.run("bury(6000)\nreplays.start(ANN, replays.draft(ANN, query='queue:emails', pace={'rate': 1}, reason='x'))")
    left = desk.run(COUNT_CREATED)[1]
    kills = 0
    while left and kills < times(4, 8):
        layers = [desk.start(LAYER) for _ in range(2)]
        for layer in layers:
            layer.stdout.readline()
            layer.send_signal(signal.SIGKILL)
            layer.wait(10)
            layer.stdout.close()
        kills += 1
        items, left = desk.run(COUNT_CREATED)
        assert items <= 6000
    desk.run("while replays.create_items(): pass")
    assert desk.run(COUNTS) == [6000, 6000, 0, 6000, 6000, 6000]
    assert kills
