from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobs_admin import failures
from jobs_admin.core.query import parse
from jobs_admin.failures.nearest import MOST, find_by_names, find_pasted, near
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure, Traceback
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.endurance import times
from tests.kit.pasted import PASTED, TANGLED
from tests.kit.searching import NOW, SHOP_ONLY, bury, find_keys, make_group

pytestmark = [pytest.mark.django_db, pytest.mark.databases]


def offered(text, viewer=ENGINE):
    page = failures.search(viewer, text, now=NOW)
    assert not page.rows, text
    return {one.text: one.count for one in near(viewer, page.query, text)}


def test_a_word_that_begins_a_longer_one_is_offered_with_a_star():
    bury(3, error_type="requests.exceptions.ReadTimeout")
    assert offered("ReadTimeo") == {"ReadTimeo*": 3} and offered("error:ReadTimeo")["error:ReadTimeo*"] == 3


@pytest.mark.parametrize("field", ["task", "queue", "worker", "host", "tenant", "release", "source"])
def test_a_bare_word_that_is_a_name_is_offered_as_its_qualifier(field):
    bury(2, **{field: "eu-shop.webhooks.deliver"})
    assert offered("eu-shop.webhooks.deliver")[f"{field}:eu-shop.webhooks.deliver"] == 2
    assert offered("queue:eu-shop.webhooks.deliver" if field != "queue" else "task:eu-shop.webhooks.deliver")


def test_of_a_value_that_misses_the_known_one_that_is_like_it_is_offered():
    bury(2, queue="webhooks", tenant="tenant-9"), bury(queue="emails")
    assert offered("queue:webhook") == {"queue:webhooks": 2, "queue:webhook*": 2}
    assert offered("queue:wehbooks") == {"queue:webhooks": 2}
    assert offered("tenant:tenant-99")["tenant:tenant-9"] == 2


def test_several_words_that_are_names_are_offered_together_first():
    bury(3, queue="payments", tenant="cobalt"), bury(9, queue="payments"), bury(7, tenant="cobalt")
    assert next(iter(offered("payments cobalt").items())) == ("queue:payments tenant:cobalt", 3)
    bury(2, task="shop.billing.refund", tenant="cobalt", error_type="KeyError")
    assert next(iter(offered("refund cobalt -error:X"))) == "task:shop.billing.refund tenant:cobalt -error:X"
    assert offered("payments nonsense") == {"queue:payments": 12}


def test_a_word_of_few_errors_and_of_a_name_with_many_jobs_is_offered_as_the_name():
    bury(3, error_type="KeyError", message="no refund"), bury(7, task="shop.billing.refund")

    def find(text, viewer=ENGINE):
        page = failures.search(viewer, text, now=NOW)
        assert page.rows, text
        return {one.text: one.count for one in find_by_names(viewer, page.query, page.count.number)}

    assert find("refund") == {"task:shop.billing.refund": 7}
    assert find("refund state:dead") == {"task:shop.billing.refund state:dead": 7}
    assert not find("refund*") and not find("refund KeyError") and not find("task:shop.billing.refund")
    bury(2, task="shop.refunds.sum"), bury(1, queue="refund"), bury(20, source="bank", tenant="refund-office")
    assert find("refund") == {
        "tenant:refund-office": 20,
        "task:shop.billing.refund,shop.refunds.sum": 9,
    }
    stranger = Viewer("ben", {"shop": "operator"})
    assert find("refund", stranger) == {"task:shop.billing.refund,shop.refunds.sum": 9}
    for n in range(2):
        bury(task=f"refund.{n}")
    assert find("refund")["task:*refund*"] == 11
    bury(9, error_type="KeyError", message="no refund")
    assert find("refund", stranger) == {}  # 12 by the error, 11 by the task


def test_names_with_a_word_are_looked_up_at_a_bounded_cost(django_assert_max_num_queries):
    for n in range(40):
        bury(2, task=f"refund.{n}", queue=f"refund-{n}", tenant=f"refund{n}")
    with django_assert_max_num_queries(30):
        assert len(find_by_names(ENGINE, parse("refund", NOW), 1)) == 3


def test_a_failures_number_and_the_beginning_of_a_jobs_id_lead_to_that_job():
    (one,) = bury(state="recovered")
    Failure.objects.update(job_id="4e6ad8a5-1b2c", first_job_id="4e6ad8a5-1b2c")
    indexing.index(Failure.objects.all())
    for text in (str(one.pk), f"#{one.pk}", "4e6ad8a5"):
        page = failures.search(ENGINE, text, now=NOW)
        (first, *_) = near(ENGINE, page.query, text)
        assert first.failure == one.pk and "mail.send, recovered" in first.why


def test_what_is_out_of_sight_is_never_offered():
    (one,) = bury(source="bank", queue="transfers", task="bank.transfer", tenant="ACME-9")
    stranger = Viewer("ben", {"shop": "operator"})
    bury(source="shop")
    for text in ("transfer", "bank.transfer", "queue:transfer", str(one.pk), "tenant:ACME", "ACME-9", "j0000000"):
        assert offered(text, stranger) == {}
    assert offered("bank.transfer", SHOP_ONLY)["task:bank.transfer"] == 1


def test_a_word_of_the_traceback_is_offered_there():
    stack = Traceback.objects.create(sha256="a" * 64, text='File "shop.py", line 3, in webhooks_deliver')
    bury(2, traceback=stack)
    indexing.index(Failure.objects.all())
    assert offered("webhooks_deliver") == {"trace:webhooks_deliver": 2}


def test_a_path_that_is_nearly_one_is_offered_where_it_has_the_value():
    bury(kwargs='{"customer": {"id": 42, "mail": "a@b"}}')
    bury(kwargs='{"customer": {"id": 43}}')
    for text in ("kwargs.customer:42", "custmer:42", "customer_id:42", "kwargs.custmer.id:42", "args.customer.id:42"):
        assert offered(text)["kwargs.customer.id:42"] == 1, text
    assert offered("quue:emails") == {"queue:emails": 2}


def test_a_groups_title_with_its_placeholders_leads_to_the_group():
    group = make_group(error_type="billing.CardDeclined", message="order <number> was declined")
    bury(2, group=group, error_type="billing.CardDeclined", message="order 17 was declined")
    assert offered("CardDeclined: order <number> was declined")["group:v1-a"] == 2


def test_terms_that_find_nothing_are_left_out_and_other_states_are_checked_into():
    bury(2, queue="webhooks"), bury(4, state="recovered", task="old.task")
    assert offered("queue:webhooks foo nonsense")["queue:webhooks foo"] == 2
    assert offered("queue:webhooks task:mail.send nonsense -error:X")["queue:webhooks task:mail.send -error:X"] == 2
    assert offered("task:old.task") == {"task:old.task state:any": 4} and offered("queue:none") == {}


def test_of_several_terms_that_find_nothing_one_is_changed_and_the_others_are_left_out():
    bury(3, error_type="ReadTimeout", task="shop.hooks.deliver")
    assert offered("ReadTimeo nonsense")["ReadTimeo*"] == 3
    assert offered("shop.webhooks.deliver") == {"task:shop.hooks.deliver": 3}


def test_what_is_offered_finds_as_many_as_it_reports():
    bury(3, queue="webhooks", tenant="Acme", error_type="ReadTimeout", kwargs='{"customer": {"id": 42}}')
    bury(2, state="recovered", task="old.task")
    for text in (
        "ReadTimeo",
        "queue:webhook",
        "Acme",
        "kwargs.customer:42",
        "task:old.task",
        "nonsense queue:webhooks",
    ):
        assert offered(text)
        for other, count in offered(text).items():
            assert len(find_keys(other)) == count, other


def bounded(text):
    query = parse(text, NOW)
    with CaptureQueriesContext(connection) as queries:
        assert len(near(ENGINE, query, text)) <= MOST
    assert len(queries) < 400  # PostgreSQL's transactions within the test are among them


@pytest.mark.parametrize("text", ["\0", "\ud800", "9" * 30, "#", "x" * 5_000, "a:b " * 50, '"' * 40, "kwargs.\0:1"])
def test_no_text_is_too_strange_or_costs_more_than_its_bound(text):
    bury(kwargs='{"a": {"b": 1}}')
    bounded(text)


@settings(max_examples=times(20, 60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.one_of(st.sampled_from([pasted for *_, pasted in PASTED]), TANGLED))
def test_nor_is_any_other(text):
    bounded(text)


def test_a_misspelt_word_of_an_error_is_offered_as_known_groups_have_it():
    bury(
        3,
        error_type="requests.exceptions.ReadTimeout",
        group=make_group("r", "requests.exceptions.ReadTimeout", "timed out"),
    )
    bury(2, error_type="KeyError", group=make_group("k", "KeyError", "'x'"))
    for change in ("tiemout", "error:tiemout", "tmeout"):
        page = failures.search(ENGINE, change, now=NOW)
        assert any(one.count == 3 and "imeout" in one.text for one in near(ENGINE, page.query, change)), change
    assert offered("KeyEror") == {"KeyError": 2}
    assert offered("error:KeyEror")["error:KeyError"] == 2
    assert offered("tiemout queue:emails")["timeout queue:emails"] == 3


def test_words_of_groups_out_of_sight_are_not_offered():
    bury(source="bank", error_type="LedgerOverdrawn", group=make_group("b", "LedgerOverdrawn", "sum"))
    stranger = Viewer("ben", {"shop": "operator"})
    assert offered("LedgerOverdrwn", stranger) == {}


def test_a_misspelt_word_costs_a_bounded_time_among_many_groups(django_assert_max_num_queries):
    groups = [
        make_group(f"g{n}", f"shop.errors.Kind{n:x}Failed", f"words{n:x} of other{n:x} things") for n in range(700)
    ]
    bury(5, group=groups[0], error_type="ReadTimeout")
    page = failures.search(ENGINE, "tiemout", now=NOW)
    with django_assert_max_num_queries(40):
        near(ENGINE, page.query, "tiemout")


LINE = (
    "[2026-11-21 10:00:00,123: ERROR/ForkPoolWorker-1] Task mail.send[5f1c2a7e-1111-4222-8333-123456789abc] "
    "raised unexpected: KeyError('foo')"
)


def led(text):
    page = failures.search(ENGINE, text, now=NOW)
    assert not page.rows
    return find_pasted(ENGINE, page.query, text)


def test_a_pasted_line_of_a_log_leads_to_its_job():
    (one,) = bury()
    assert led(LINE).failure is None
    Failure.objects.filter(pk=one.pk).update(job_id="5f1c2a7e-1111-4222-8333-123456789abc")
    indexing.index(Failure.objects.all())
    assert led(LINE).failure == one.pk


def test_of_a_job_that_is_not_known_it_leads_to_its_task_and_error():
    bury(3), bury(2, task="mail.other"), bury(4, error_type="ValueError", message="no")
    lead = led(LINE)
    assert (lead.text, lead.count) == ("task:mail.send \"KeyError('foo')\"", 3)
    assert led(LINE.replace("mail.send", "mail.gone")).text == "\"KeyError('foo')\""
    assert led("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    x\nKeyError: 'foo'").count == 5
    assert led("one two three four KeyError five six") is None


def test_an_argument_that_is_there_is_found_by_a_star():
    bury(kwargs='{"currency": "EUR"}'), bury(kwargs='{"currency": null, "n": 1}'), bury(kwargs="{}")
    assert len(find_keys("kwargs.currency:*")) == 2 and len(find_keys("-kwargs.currency:*")) == 1
