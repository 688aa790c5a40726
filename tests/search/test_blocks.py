"""A block of a log, pasted as it stands, finds its failure or is offered it, whether its job's id is known or not."""

from __future__ import annotations

import json
import time

import pytest

from jobs_admin import failures
from jobs_admin.core import pasted_text
from jobs_admin.failures.nearest import near
from jobs_admin.ingest import indexing
from jobs_admin.models import Failure
from jobs_admin.models.access import ENGINE, Viewer
from tests.kit.searching import NOW, bury, find_keys
from tests.search.blocks import BLOCKS, JOBS
from tests.search.strings import strings

pytestmark = pytest.mark.django_db
ID = "5f1c0d2e-7a61-4b0e-9d51-0a2b3c4d5e6f"


def bury_among_others(error_type="KeyError", message="'foo'", **more):
    """One failure among others that are not meant."""
    bury(2), bury(2, error_type="RuntimeError", message="Task failed to send mail")
    (one,) = bury(error_type=error_type, message=message, **more)
    bury(2, error_type="ValueError", message="no such order")
    return one


def set_job_id(failure, job_id=ID):
    Failure.objects.filter(pk=failure.pk).update(job_id=job_id, first_job_id=job_id)
    indexing.index(Failure.objects.filter(pk=failure.pk))
    return failure


def offers(text, viewer=ENGINE):
    page = failures.search(viewer, text, now=NOW)
    return page.rows, near(viewer, page.query, text)


def test_there_are_more_than_forty_blocks():
    assert len({block.text for block in BLOCKS} | set(JOBS)) > 40


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_a_block_finds_its_failure_or_is_offered_its_error_first(block):
    one = bury_among_others(block.error_type, block.message)
    rows, near_ = offers(block.text.replace("{id}", ID))
    assert [row.pk for row in rows] == [one.pk] or find_keys(near_[0].text) == [one.pk], near_


@pytest.mark.parametrize("block", [b for b in BLOCKS if "{id}" in b.text], ids=lambda block: block.name)
def test_a_block_with_the_id_of_a_job_is_offered_that_job_first_and_the_error_too(block):
    one = set_job_id(bury_among_others(block.error_type, block.message, state="recovered"))
    other = bury_among_others(block.error_type, block.message)
    _, near_ = offers(block.text.replace("{id}", ID))
    assert near_[0].failure == one.pk and find_keys(near_[1].text) == [other.pk], near_


@pytest.mark.parametrize("text", JOBS)
@pytest.mark.parametrize("job_id", [ID, f"{ID}-2"])
def test_a_line_that_reports_no_error_is_offered_its_job(text, job_id):
    one = set_job_id(bury_among_others(state="recovered"), job_id)
    _, near_ = offers(text.format(id=job_id))
    assert near_[0].failure == one.pk


def test_an_id_that_a_person_chose_is_found_in_its_brackets():
    one = set_job_id(bury_among_others(), "order-4711")
    assert offers("INFO Task shop.hooks.send[order-4711] received")[1][0].failure == one.pk


def test_no_job_and_no_error_out_of_sight_is_offered():
    set_job_id(bury_among_others(error_type="LedgerError", message="account 17 is closed", source="bank"))
    text = f"Task bank.book[{ID}] raised unexpected: LedgerError('account 17 is closed\\n')"
    assert offers(text, Viewer("ben", {"shop": "operator"}))[1] == [] and len(offers(text)[1]) == 2


def test_of_an_error_with_a_value_that_was_hidden_the_words_that_are_known_are_offered():
    one = bury_among_others(
        "httpx.ConnectError", "cannot reach https://partner.example/?token=[redacted] within 5 seconds"
    )
    text = "ERROR shop: ConnectError('cannot reach https://partner.example/?token=s3cr3t within 5 seconds')"
    assert find_keys(offers(text)[1][0].text) == [one.pk]


def test_what_only_its_class_is_known_of_is_offered_the_class():
    one = bury_among_others("shop.errors.StockEmpty", "sku 17")
    assert offers("ERROR shop: StockEmpty('warehouse nine ran dry on tuesday')")[1][0].text == "error:StockEmpty"
    assert find_keys("error:StockEmpty") == [one.pk]


@pytest.mark.parametrize("value", ["A-11275890", "bjrn@example.com", "cus_9s6XKzkNRiz", "11275890", "4 Privet Drive"])
def test_a_bare_value_that_is_in_arguments_is_offered_by_its_path(value):
    bury(2, kwargs='{"order": {"id": "A-1", "mail": "a@b"}}')
    bury(3, kwargs=json.dumps({"order": {"id": value}}))
    assert {one.text: one.count for one in offers(value)[1]}[f"kwargs.order.id:{quoted(value)}"] == 3


def quoted(value):
    return f'"{value}"' if " " in value else value


def test_a_bare_value_of_jobs_that_are_done_is_offered_in_every_state():
    bury(2, kwargs='{"mail": "ann@example.com"}'), bury(args='[{"mail": "bob@example.com"}]', state="recovered")
    bury(args='[{"mail": "eve@example.com"}]')
    assert "args.0.mail:bob@example.com state:any" in [one.text for one in offers("bob@example.com")[1]]


def test_no_text_is_too_long_to_be_read():
    started = time.process_time()
    for text in (
        "a" * 50_000,
        "A." * 25_000,
        "Task x[" * 7_000,
        'File "' * 8_000,
        "\\n" * 20_000,
        "ERROR " * 8_000,
        "{" * 50_000,
        "E: " * 9_000,
        "Task " * 9_000,
        "[[a.b" * 9_000,
    ):
        pasted_text.read(text)
    for text in strings(2_000, seed=5):
        pasted_text.read(text)
    assert time.process_time() - started < 5
