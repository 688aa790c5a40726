"""The configuration of a RabbitMQ source is checked before anything is dialled, and refused with a sentence."""

from __future__ import annotations

import pytest

from jobs_admin.sources import connect
from jobs_admin.sources.amqp.management import QueueState
from jobs_admin.sources.base import SourceRefused
from jobs_admin.sources.rabbitmq.settings import find_dead_queues

URL = "amqp://ann:pass-word@127.0.0.1:1//"
DEAD = {"dead_letter_queues": ["webhooks.dlq"]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name its dead-letter queues"),
        (DEAD | {"mode": "peek"}, "mode is"),
        (DEAD | {"mod": "drain"}, "unknown option 'mod'"),
        ({"dead_letter_queues": "webhooks.dlq"}, "is a list"),
        ({"dead_letter_queues": [{"of": "webhooks"}]}, "a dead-letter queue is a name"),
        ({"dead_letter_queues": [{"name": "a", "mode": "both"}]}, "mode is"),
        ({"dead_letter_queues": [{"name": "a", "of": "a"}]}, "of itself"),
        ({"dead_letter_queues": ["a", {"name": "a"}]}, "twice"),
        ({"dead_letter_queues": ["x" * 256]}, "1 to 255 bytes"),
        (DEAD | {"error_headers": "x-error"}, "error_headers is a list"),
        (DEAD | {"task_headers": [1]}, "task_headers is a list"),
        (DEAD | {"confirm_within_s": 0}, "confirm_within_s"),
        (DEAD | {"management_url": "ftp://a"}, "management_url cannot be used"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(options, message):
    with pytest.raises(SourceRefused, match=message) as refused:
        connect("bus", "rabbitmq", URL, (), options)
    assert "pass-word" not in str(refused.value)


def test_what_is_only_drained_has_nothing_left_to_take_out():
    assert not connect("bus", "rabbitmq", URL, (), DEAD | {"mode": "drain"}).can.remove
    assert connect("bus", "rabbitmq", URL, (), DEAD).can.remove


def to(queue, **more):
    """The settings of a queue whose dead letters go there, by the default exchange."""
    return {"dead-letter-exchange": "", "dead-letter-routing-key": queue, **more}


WAITS = {"message-ttl": 1000}


@pytest.mark.parametrize(("queues", "found"), [
    ({"jobs": to("dlq"), "dlq": {}}, {"dlq": "jobs"}),
    ({"jobs": to("dlq"), "mails": to("dlq"), "dlq": {}}, {"dlq": ""}),
    # Jobs that wait for their next try, and go back: neither where they wait nor where they run is one of dead letters.
    ({"jobs": to("wait"), "wait": to("jobs", **WAITS)}, {}),
    ({"jobs": {}, "wait": to("jobs", **WAITS)}, {}),
    ({"jobs": to("dlq", **WAITS), "dlq": {}}, {}),  # which nothing tells from the one before: to be named
    ({"jobs": to("dlq"), "wait": to("jobs"), "dlq": {}}, {"dlq": "jobs"}),  # each message says how long it waits
    ({"jobs": to("dlq"), "dlq": to("parked"), "parked": {}}, {"parked": "dlq"}),
    # A policy for all queues: what is given up in the dead-letter queue comes back into it.
    ({"jobs": to("dlq"), "dlq": to("dlq")}, {"dlq": "jobs"}),
    ({"jobs": to("dlq"), "dlq": to("dlq", **WAITS)}, {}),
    ({"jobs": to("nowhere")}, {}),
])  # fmt: skip
def test_dead_letter_queues_are_those_from_which_nothing_goes_on(queues, found):
    states = {name: QueueState(0, True, 0, settings) for name, settings in queues.items()}
    assert {one.name: one.of for one in find_dead_queues(states, [], False)} == found


def test_a_queue_on_which_a_person_works_is_none_of_dead_letters_unless_it_is_named():
    states = {"wait": QueueState(0, True, 0, to("jobs")), "jobs": QueueState(0, True, 0, {}, consumers=2)}
    assert find_dead_queues(states, [], is_drained=True) == ()


def test_targets_of_an_exchange_are_found_by_its_bindings():
    states = {
        "jobs": QueueState(0, True, 0, {"dead-letter-exchange": "dlx"}),
        "dlq": QueueState(0, True, 0, {}),
        "other": QueueState(0, True, 0, {}),
    }
    assert [one.name for one in find_dead_queues(states, [("dlx", "dlq"), ("events", "other")], False)] == ["dlq"]
