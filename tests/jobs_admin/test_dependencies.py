"""Dependencies of groups: filed, derived again, set by a person, declared by a policy, and who sees them."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest

from jobs_admin import failures
from jobs_admin.core.dependency import OTHER, SEVERAL, Dependency
from jobs_admin.core.refused import NotFound, Refused
from jobs_admin.failures import completing, exporting
from jobs_admin.groups import dependencies, group_changes, regrouping
from jobs_admin.ingest import dependencies as attributing
from jobs_admin.models import AuditEvent, Failure, Group, GroupSource, PolicyVersion
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.reports import NOW, file, report

pytestmark = [pytest.mark.django_db, pytest.mark.databases]
SHOP, BANK = Viewer("ann", {"shop": "operator"}), Viewer("bob", {"bank": "viewer"})
TRACE = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 88, in charge
    partner.post(order)
requests.exceptions.ReadTimeout: {}
"""


@pytest.fixture(autouse=True)
def _unread_policies():
    attributing.forget()
    yield
    attributing.forget()


def failed(host="partner.example", job_id="j1", **fields):
    message = f"HTTPSConnectionPool(host='{host}', port=443): Read timed out. (read timeout=5)"
    error = {"error_type": "requests.exceptions.ReadTimeout", "message": message, "trace": TRACE.format(message)}
    return report(job_id, **error | fields)


def parts() -> dict[str, str]:
    return dict(GroupSource.objects.values_list("source", "dependency"))


def find_jobs(text: str, viewer: Viewer = ENGINE) -> set[str]:
    return {row.first_job_id for row in failures.search(viewer, text, now=NOW).rows}


def test_a_report_names_the_dependency_of_its_group():
    file(failed(), report("j2"))
    named = GroupSource.objects.exclude(dependency="").get()
    assert (named.dependency, named.dependency_by) == ("partner.example", "")
    assert named.dependency_reason == "Address in the message of requests.exceptions.ReadTimeout"
    assert (
        find_jobs("dependency:partner.example") == find_jobs("dependency:part*") == find_jobs("dependency:*") == {"j1"}
    )
    assert find_jobs("-dependency:*") == {"j2"}
    page = failures.groups(ENGINE, "dependency:partner.example", now=NOW)
    assert [one.name for one in page.rows[0].dependencies] == ["partner.example"] and page.count == 1
    assert failures.count(ENGINE, failures.parse("dependency:partner.example", NOW)).number == 1


def test_errors_of_one_group_that_name_two_hosts_make_it_several():
    file(failed(), failed("partner.example", "j2"))
    assert parts() == {"shop": "partner.example"}
    file(failed("other.example", "j3"))
    part = GroupSource.objects.get()
    assert (part.dependency, part.dependency_reason) == (SEVERAL, "Errors name other.example and partner.example")
    file(failed("partner.example", "j4"))
    assert parts() == {"shop": SEVERAL} and find_jobs(f"dependency:{SEVERAL}") == {"j1", "j2", "j3", "j4"}


def test_a_kind_of_service_is_no_second_name_and_gives_way_to_a_host():
    aborted = "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"
    file(failed("x", message=aborted, trace=TRACE))
    assert parts() == {"shop": "http"}
    assert attributing.combine([Dependency("http", "a"), Dependency("partner.example", "b")]).name == "partner.example"
    assert attributing.combine([Dependency("http", "a"), Dependency("database", "b")]).name == SEVERAL


def test_each_source_of_a_group_has_its_own_and_viewers_see_only_theirs():
    file(failed(), failed("bank.example", "j2", source="bank"))
    assert Group.objects.count() == 1 and parts() == {"shop": "partner.example", "bank": "bank.example"}
    assert find_jobs("dependency:bank.example") == {"j2"} and find_jobs("dependency:bank.example", SHOP) == set()
    assert find_jobs("dependency:*", SHOP) == {"j1"} and find_jobs("dependency:*.example", BANK) == {"j2"}
    pk = Group.objects.get().pk
    assert [one.name for one in dependencies.of_groups(SHOP, [pk])[pk]] == ["partner.example"]
    assert len(dependencies.of_groups(ENGINE, [pk])[pk]) == 2
    assert [row.name for row in dependencies.listing(BANK, NOW)[0]] == ["bank.example"]
    assert set(dependencies.names(SHOP)) == {"partner.example"} == set(dict(failures.facets(SHOP, "")["dependency"]))
    assert [one.text for one in completing.values(SHOP, "dependency", "")] == ["partner.example"]
    with pytest.raises(NotFound):
        dependencies.detail(SHOP, "bank.example", NOW)
    without_role = Viewer("eve", {})
    assert dependencies.listing(without_role, NOW) == ([], 0) and dependencies.names(without_role) == {}


def test_attempts_of_groups_out_of_sight_are_left_out():
    file(failed(ago=120), failed("partner.example", "j2", source="bank", ago=120))
    row = dependencies.listing(SHOP, NOW)[0][0]
    assert (row.name, row.dead, row.per_minute, row.trend) == ("partner.example", 1, 0.0, [])
    detail = dependencies.detail(SHOP, "partner.example", NOW)
    assert detail.hidden_groups == 1 and sum(detail.failed) == 0 and detail.queues == [("shop", "emails")]
    detail = dependencies.detail(ENGINE, "partner.example", NOW)
    assert detail.hidden_groups == 0 and sum(detail.failed) == sum(detail.ended) == 2 and detail.row.per_minute > 0
    assert sum(dependencies.detail(ENGINE, "partner.example", NOW, days=True).failed) == 2


def test_the_worst_comes_first_and_names_of_many_last():
    file(
        *[failed("calm.example", f"c{n}", ago=4000, task="a", trace=TRACE.replace("charge", "calm")) for n in range(3)]
    )
    file(failed("loud.example", "l1", ago=60, trace=TRACE.replace("charge", "loud")))
    mixed = TRACE.replace("charge", "mixed")
    file(*[failed(f"h{n}.example", f"m{n}", ago=10, trace=mixed) for n in range(2)])
    file(*[failed(f"h{n}.example", f"n{n}", ago=10, trace=mixed) for n in range(2, 4)])
    assert [row.name for row in dependencies.listing(ENGINE, NOW)[0]] == ["loud.example", "calm.example", SEVERAL]
    assert dependencies.listing(ENGINE, NOW, most=1)[1] == 2


def test_names_of_a_source_are_bounded(monkeypatch):
    monkeypatch.setattr(attributing, "MOST_NAMES", 3)
    for n in range(5):
        file(failed(f"h{n}.example", f"j{n}", trace=TRACE.replace("charge", f"charge_{'abcde'[n]}")))
    file(failed("h9.example", "b1", source="bank"))
    counted = list(GroupSource.objects.filter(source="shop").values_list("dependency", flat=True))
    assert sorted(counted) == ["h0.example", "h1.example", "h2.example", OTHER, OTHER]
    assert attributing.count_names("shop") == 3 and parts()["bank"] == "h9.example"


def outdated() -> None:
    """As an upgraded desk has them: not derived yet."""
    GroupSource.objects.update(dependency="", dependency_reason="", dependency_stamp=None)


def test_known_groups_are_derived_again_in_slices(monkeypatch):
    for n in range(5):
        file(failed(f"h{n}.example", f"j{n}", trace=TRACE.replace("charge", f"charge_{'abcde'[n]}")))
    file(failed("one.example", "s1"), report("none"))
    file(failed("two.example", "s2", task="shop.other"))
    outdated()
    monkeypatch.setattr(dependencies, "_AT_ONCE", 2)
    slices = 0
    while regrouping.regroup(NOW):
        slices += 1
    assert slices == 4 and not dependencies.derive()
    counted = sorted(GroupSource.objects.values_list("dependency", flat=True))
    assert counted == ["", "h0.example", "h1.example", "h2.example", "h3.example", "h4.example", SEVERAL]


def test_a_group_of_two_sources_is_derived_for_each():
    file(failed(), failed("bank.example", "j2", source="bank"))
    outdated()
    assert dependencies.derive() and parts() == {"shop": "partner.example", "bank": "bank.example"}


def test_a_group_whose_failures_are_pruned_is_derived_from_its_title():
    file(report("j1", error_type="smtplib.SMTPServerDisconnected", message="Connection unexpectedly closed", trace=""))
    Failure.objects.all().delete()
    outdated()
    assert dependencies.derive() and parts() == {"shop": "smtp"}


def test_what_a_person_sets_stays_is_audited_and_undone():
    file(failed())
    group = Group.objects.get()
    done = group_changes.change(SHOP, group, {"dependency": "Warehouse"}, reason="known")
    part = GroupSource.objects.get()
    assert (part.dependency, part.dependency_by, part.dependency_reason) == ("warehouse", "ann", "Set by ann")
    file(failed("other.example", "j2"))
    outdated_stamp = GroupSource.objects.update(dependency_stamp=None)
    assert outdated_stamp and dependencies.derive() and parts() == {"shop": "warehouse"}
    assert find_jobs("dependency:warehouse") == {"j1", "j2"}
    event = AuditEvent.objects.get(act="group.change")
    assert (event.before, event.after, event.reason) == ({"dependency": ""}, {"dependency": "warehouse"}, "known")
    group_changes.undo(SHOP, done.receipt)
    assert parts() == {"shop": SEVERAL}  # derived again, from both
    assert GroupSource.objects.get().dependency_by == "" == Group.objects.get().dependency


def test_none_set_by_a_person_is_none():
    file(failed())
    group_changes.change(SHOP, Group.objects.get(), {"dependency": "none"})
    file(failed("other.example", "j2"))
    assert parts() == {"shop": ""} and find_jobs("dependency:*") == set()
    group_changes.change(SHOP, Group.objects.get(), {"dependency": ""})
    assert parts() == {"shop": SEVERAL}


@pytest.mark.parametrize("name", ["a b", "a/b", "<b>", "x" * 121, "several", "other", "-x"])
def test_a_name_that_is_none_is_refused(name):
    file(failed())
    with pytest.raises(Refused) as refused:
        group_changes.change(SHOP, Group.objects.get(), {"dependency": name})
    assert refused.value.field == "dependency" and parts() == {"shop": "partner.example"}


def test_only_an_operator_of_every_source_sets_it():
    file(failed(), failed("bank.example", "j2", source="bank"))
    with pytest.raises(Refused):
        group_changes.change(SHOP, Group.objects.get(), {"dependency": "warehouse"})
    with pytest.raises(Refused):
        group_changes.change(BANK, Group.objects.get(), {"dependency": "warehouse"})
    assert parts() == {"shop": "partner.example", "bank": "bank.example"}


def publish(name="charge", task="shop.send", dependency="Warehouse"):
    """A policy in force as a guard that knows breakers has it; `document` is what the database holds."""
    document = {"name": name, "mode": "observe", "match": {"source": "*", "queue": "*", "task": task}, "retries": False}
    document |= {"breaker": {"dependency": dependency} if dependency else {}}
    PolicyVersion.objects.create(document=document, version=1, published_at=NOW - timedelta(days=1), published_by="ann")
    attributing.forget()


def test_declarations_are_read_once_in_two_seconds(django_assert_num_queries, monkeypatch):
    with django_assert_num_queries(1):
        attributing.declared()
        attributing.declared()
    later = time.monotonic() + 2.1
    monkeypatch.setattr(attributing.time, "monotonic", lambda: later)
    with django_assert_num_queries(1):
        attributing.declared()


def test_a_policy_s_declaration_wins_and_follows_the_policy():
    file(failed())
    publish()
    assert dependencies.derive() and parts() == {"shop": "warehouse"}
    assert GroupSource.objects.get().dependency_reason == "Policy charge names it"
    file(failed("other.example", "j2"))
    assert parts() == {"shop": "warehouse"}
    PolicyVersion.objects.update(is_published=False, ended_at=NOW)
    attributing.forget()
    assert dependencies.derive() and parts() == {"shop": SEVERAL}


def test_a_hostile_report_is_filed_and_names_nothing_invalid():
    for n, text in enumerate(("for url: https://<script>/", "HTTPSConnectionPool(host='a'b', port=443)", "x" * 100_000,
                              "connect ECONNREFUSED \x00:443", "Cannot connect to host ../../etc:443 ssl")):  # fmt: skip
        file(failed("x", f"j{n}", message=text, trace=""))
    names = {name for name in GroupSource.objects.values_list("dependency", flat=True) if name}
    assert names <= {"http", "a", "etc"} and Failure.objects.count() == 5


def test_an_export_has_it():
    file(failed(), failed("bank.example", "j2", source="bank"), report("j3"))
    lines = [json.loads(line) for line in b"".join(exporting.stream(ENGINE, "", "jsonl")).splitlines()]
    named = {one["first_job_id"]: one["dependency"] for one in lines if "end" not in one}
    assert named == {"j1": "partner.example", "j2": "bank.example", "j3": ""}
