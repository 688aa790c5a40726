"""The origin, the effects and the likes of a job."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from jobs_admin import failures
from jobs_admin.core.query import parse
from jobs_admin.failures.related_jobs import find_related, identifying_arguments
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure
from jobs_admin.models.access import ENGINE, VIEWER, Viewer
from tests.kit.failures import bury
from tests.kit.groups import group
from tests.kit.people import log_in

pytestmark = pytest.mark.django_db


def job(job_id: str, **changes) -> Failure:
    headers = changes.pop("headers", {})
    bury(headers=json.dumps({"id": job_id, **headers}), **changes)
    failure = Failure.objects.latest("pk")
    Failure.objects.filter(pk=failure.pk).update(first_job_id=job_id, job_id=job_id)
    return Failure.objects.select_related("group").get(pk=failure.pk)


def related(failure: Failure, viewer: Viewer = ENGINE) -> list[tuple[str, str, bool]]:
    return [(one.how, one.job_id, one.failure is not None) for one in find_related(viewer, failure).relatives]


def test_a_chain_is_followed_up_and_down():
    first = job("a", headers={"root_id": "a"})
    second = job("b", headers={"root_id": "a", "parent_id": "a"})
    third = job("c", headers={"root_id": "a", "parent_id": "b"})
    assert related(first) == [("started", "b", True), ("same root", "c", True)]
    assert related(second) == [("parent", "a", True), ("started", "c", True)]
    assert related(third) == [("parent", "b", True), ("root", "a", True)]


def test_a_parent_that_never_failed_is_reported_by_its_id():
    assert related(job("b", headers={"root_id": "a", "parent_id": "a"})) == [("parent", "a", False)]


def test_a_parent_that_was_replayed_is_found_by_the_id_it_had_then():
    parent = job("a")
    Failure.objects.filter(pk=parent.pk).update(job_id="a-2", run=2)
    assert related(job("b", headers={"parent_id": "a"})) == [("parent", "a", True)]
    assert related(job("c", headers={"parent_id": "a-2"})) == [("parent", "a-2", True)]


def test_relatives_on_a_source_out_of_sight_are_not_shown():
    job("a", source="bank")
    child = job("b", headers={"parent_id": "a"})
    assert related(child, Viewer("vera", {"shop": VIEWER})) == [("parent", "a", False)]


def test_a_flow_is_followed_by_queue_and_id_because_ids_alone_are_those_of_many():
    other = job("1", queue="reports")
    children = {
        "failed for good": {"count": 2, "some": ["parts:1", "parts:2"]},
        "hostile": [7],
        "more": {"some": [7, "x"]},
    }
    order = job("1", queue="orders", headers={"children": children})
    part = job("1", queue="parts", headers={"parent": {"queue": "orders", "id": "1"}})
    assert related(order) == [("child", "1", True), ("child", "2", False)]
    (parent,) = find_related(ENGINE, part).relatives
    assert parent.failure.pk == order.pk != other.pk


def test_headers_that_are_no_mapping_or_hold_no_ids_lead_nowhere():
    for headers in ("[1]", "{", "", json.dumps({"parent_id": 7, "root_id": "[redacted]"})):
        bury(headers=headers)
        assert related(Failure.objects.latest("pk")) == []


def test_the_next_of_its_group_are_in_the_same_state():
    row = group()
    rows = [job(name, group=row) for name in "abc"]
    job("recovered", group=row, state="recovered")
    job("elsewhere")
    found = find_related(ENGINE, rows[1])
    assert (found.newer, found.older) == (rows[2].pk, rows[0].pk)
    assert find_related(ENGINE, rows[2]).newer is None


def test_what_is_alike_is_counted_as_its_own_search_counts_it():
    row = group()
    kwargs = json.dumps({"customer": {"id": 42}, "note": "x"})
    rows = [job(str(n), group=row, tenant="t1", worker="w1", kwargs=kwargs) for n in range(3)]
    job("late", group=row, worker="w1", failed_at=rows[0].failed_at - timedelta(hours=1))
    indexing.index(Failure.objects.all())
    found = {one.what: one for one in find_related(ENGINE, rows[0]).alike}
    for one in found.values():
        assert one.count == failures.count(ENGINE, parse(one.query)), one
    assert found["same group"].count.number == 4 and found["same tenant"].count.number == 3
    assert found["same worker, within 10 minutes"].count.number == 3
    customer = found["same kwargs.customer.id"]
    assert (customer.query, customer.count.number) == ("kwargs.customer.id:42 state:any", 3)


def test_an_argument_that_no_index_holds_is_not_offered():
    failure = job("a", kwargs=json.dumps({"lines": list(range(40)), "order": {"customer_id": 42}}))
    indexing.index([failure])
    assert not any("customer_id" in one.what for one in find_related(ENGINE, failure).alike)


def test_what_is_hidden_or_reports_nothing_is_not_offered_as_a_likeness():
    bury(kwargs=json.dumps({"user_id": "[redacted]", "amount": 3, "a b": {"id": 1}, "order_id": "o1", "valid": 2}))
    assert identifying_arguments(Failure.objects.get()) == [("kwargs.order_id", "o1")]


def test_the_page_of_relatives_is_a_part_that_the_failure_requests(django_user_model):
    ann = log_in(django_user_model, "ann", every="admin")
    parent, child = job("a"), job("b", headers={"parent_id": "a"}, tenant="<b>t</b>")
    assert f'hx-get="/failures/{child.pk}/related/"' in ann.get(f"/failures/{child.pk}/").content.decode()
    part = ann.get(f"/failures/{child.pk}/related/", headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<section id="kin"') and f"/failures/{parent.pk}/" in part and "<b>t" not in part
