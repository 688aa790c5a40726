"""Configuration of a running app: options, annotations, routes, the command line, and the code's own calls of retry."""

from __future__ import annotations

import functools
import importlib.util
import json
import random
from types import SimpleNamespace

import httpx
import pytest
import redis
from celery import Celery, Task
from kombu import Queue

from jobs_admin.core import keys
from jobs_admin.core.lint.configuration import MOST_BYTES, read
from jobs_admin.core.lint.configuration import Queue as ReportedQueue
from jobs_admin.worker.configuration import build_report, configuration

DELAY = 45
STEPS = (10, 60, 300)
SECRET = "hunter2-is-secret"  # noqa: S105
patient = httpx.Client(transport=httpx.HTTPTransport(retries=2), trust_env=False)


def app_with(**settings) -> Celery:
    made = Celery("told", broker=settings.pop("broker", "redis://:pass-word@127.0.0.1:1/0"), set_as_current=False)
    made.conf.update(settings)
    return made


def read_task(app: Celery, name="send", **more):
    """The task's configuration as the desk reads it, after its way over the wire."""
    app.finalize()
    text = build_report(configuration(app, "shop", **more)).text
    assert "pass-word" not in text and SECRET not in text
    found = read(text, "shop")
    return next(task for task in found.tasks if task.name == name)


def task(app: Celery, run=None, **options):
    return app.task(name="send", shared=False, **options)(run or nothing)


def nothing():
    pass


def post():
    return patient.post("http://partner.example/")


def send(self, order):
    return post()


def waiting(self):
    delay = 2**self.request.retries
    try:
        post()
    except OSError as error:
        raise self.retry(exc=error, countdown=min(DELAY, delay) * random.uniform(0.5, 1), max_retries=7)
    except ValueError:
        raise self.retry((1, SECRET), {"key": SECRET}, countdown=STEPS[self.request.retries], eta=None)
    except KeyError:
        self.retry()
    self.backend.retry(SECRET)  # somebody else's


# --- the app -----------------------------------------------------------------------------------------------------


def test_the_brokers_timeout_is_reported_with_its_default_and_without_its_address():
    def timeout(app):
        return configuration(app, "shop").app

    assert (timeout(app_with()).broker, timeout(app_with()).visibility_timeout) == ("redis", 3600)
    assert timeout(app_with(broker_transport_options={"visibility_timeout": 300})).visibility_timeout == 300
    assert timeout(app_with(broker="amqp://u:pass-word@127.0.0.1:1//")).visibility_timeout is None
    assert timeout(app_with(broker="amqp://u:pass-word@127.0.0.1:1//")).broker == "amqp"


def test_apps_on_one_broker_have_one_mark():
    def mark(url):
        return configuration(app_with(broker=url), "shop").app.broker_mark

    assert mark("redis://:pass-word@127.0.0.1:7000/2") == mark("redis://localhost:7000/2")
    assert (
        len(
            {mark(f"redis://{place}") for place in ("h:7000/2", "h:7000/3", "h:7001/2", "i:7000/2", "localhost:7000/2")}
        )
        == 5
    )


def test_results_are_reported_by_kind_and_how_long_they_are_stored():
    storing = app_with(result_backend="redis://:pass-word@127.0.0.1:1/1", result_expires=600)
    assert (configuration(storing, "shop").app.result_backend, configuration(storing, "shop").app.result_expires) == (
        "redis",
        600,
    )
    task(storing)
    assert read_task(storing).stores_result
    usual = configuration(app_with(), "shop").app
    assert (usual.result_backend, usual.result_expires) == ("", 86_400)
    never = app_with(result_expires=0)
    assert configuration(never, "shop").app.result_expires is None
    assert not read_task(_with_task(never)).stores_result


def _with_task(app):
    task(app)
    return app


def test_queues_are_reported_with_what_the_broker_does_for_them():
    quorum = Queue("emails", queue_arguments={"x-queue-type": "quorum", "x-delivery-limit": 5})
    app = app_with(broker="amqp://127.0.0.1:1//", task_queues=[quorum, Queue("other", durable=False)])
    assert configuration(app, "shop").queues == (
        ReportedQueue("emails", kind="quorum", delivery_limit=5), ReportedQueue("other", is_durable=False),
    )  # fmt: skip
    topic = app_with(
        broker="amqp://127.0.0.1:1//", task_default_exchange_type="topic", task_default_queue_type="quorum"
    )
    assert configuration(topic, "shop").queues == (ReportedQueue("celery", kind="quorum", delays_at_broker=True),)


# --- a task ------------------------------------------------------------------------------------------------------


def test_settings_of_the_app_reach_its_tasks_and_the_command_line_fills_in():
    app = app_with(
        task_acks_late=True, task_reject_on_worker_lost=True, task_time_limit=60, task_soft_time_limit=50, task_default_rate_limit="9/m"
    )  # fmt: skip
    task(app)
    found = read_task(app)
    assert (found.acks_late, found.reject_on_worker_lost, found.time_limit, found.soft_time_limit) == (
        True,
        True,
        60,
        50,
    )
    assert found.rate_limit == "9/m"
    controller = SimpleNamespace(time_limit=20, soft_time_limit=None, prefetch_multiplier=7)
    assert read_task(app, controller=controller).time_limit == 60  # --time-limit is the pool's: a task's own beats it
    assert read_task(_with_task(app_with()), controller=controller).time_limit == 20
    assert configuration(app, "shop", controller).app.prefetch_multiplier == 7


def test_what_celery_heeds_is_reported_where_annotation_and_decorator_differ():
    app = app_with(task_annotations={"send": {"max_retries": 9, "retry_backoff_max": 5000, "retry_jitter": False}})
    task(app, autoretry_for=(OSError,), retry_backoff=2, retry_backoff_max=100, dont_autoretry_for=(FileNotFoundError,))
    found = read_task(app)
    assert found.max_retries == 9  # read at each retry, from the task
    assert found.retry_backoff_max == 100  # the decorator's, although the task shows the annotation's
    assert app.tasks["send"].retry_backoff_max == 5000
    assert not found.retry_jitter  # the decorator says nothing of it
    assert found.autoretry_for == ("builtins.OSError",)
    assert found.dont_autoretry_for == ("builtins.FileNotFoundError",)


def test_retry_kwargs_beat_the_tasks_own_retries():
    app = app_with()
    task(app, autoretry_for=(OSError,), max_retries=3, retry_kwargs={"max_retries": 8, "countdown": 30})
    found = read_task(app)
    assert (found.max_retries, found.autoretry_max_retries, found.autoretry_countdown) == (3, 8, 30)


def test_a_backoff_that_nothing_reads_is_reported_about_the_task_that_sets_it():
    app = app_with()
    task(app, waiting, bind=True, retry_backoff=True)
    assert (read_task(app).idle_backoff, read_task(app).retry_backoff) == (True, 1)

    class Base(Task):
        retry_backoff = 5

    inherited = app_with()
    task(inherited, base=Base)
    assert not read_task(inherited).idle_backoff


def test_calls_of_retry_are_read_with_constants_filled_in_and_without_arguments_or_texts():
    app = app_with()
    task(app, waiting, bind=True, max_retries=2, default_retry_delay=77)
    first, second, third = read_task(app).calls
    assert first.countdown == "min(45, 2 ** self.request.retries) * random.uniform(0.5, 1)"
    assert first.max_retries == "7"
    assert first.quoted == (
        "self.retry(exc=error, countdown=min(DELAY, delay) * random.uniform(0.5, 1), max_retries=7)"
    )
    assert second.countdown == "[10, 60, 300][self.request.retries]"
    assert [call.is_plain for call in (first, second, third)] == [True, False, True]
    assert (second.quoted, second.is_eta) == ("self.retry(countdown=STEPS[self.request.retries])", False)
    assert (third.quoted, third.countdown) == ("self.retry()", None)
    assert read_task(app).default_retry_delay == 77


def test_calls_are_found_under_wrappers_and_in_classes():
    app = app_with()

    @functools.wraps(waiting)
    def wrapper(*args):
        return waiting(*args)

    task(app, wrapper, bind=True, autoretry_for=(OSError,))
    assert len(read_task(app).calls) == 3

    class Sender(Task):
        name = "send"

        def run(self):
            raise self.retry(countdown=self.default_retry_delay * 2, eta=self.app.now())

    other = app_with()
    other.register_task(Sender())
    (call,) = read_task(other).calls
    assert (call.countdown, call.is_eta) == ("180 * 2", True)


def test_a_call_that_cannot_be_read_is_reported_as_such():
    namespace: dict = {}
    exec("def hidden(self):\n    raise self.retry(countdown=5)", namespace)  # noqa: S102
    app = app_with()
    task(app, namespace["hidden"], bind=True)
    assert (read_task(app).calls, read_task(app).is_unread) == ((), True)


def test_the_queue_is_that_of_the_routes_and_unknown_where_code_decides():
    def queue(**settings):
        options = settings.pop("options", {})
        app = app_with(**settings)
        task(app, **options)
        return read_task(app).queue

    assert queue() == "celery"
    assert queue(task_default_queue="usual") == "usual"
    assert queue(task_routes={"se*": {"queue": "emails"}}) == "emails"
    assert queue(task_routes={"other": {"queue": "emails"}}) == "celery"
    assert queue(task_routes={"send": {"exchange": "x", "routing_key": "y"}}) == ""
    assert queue(task_routes=(lambda name, *a, **k: {"queue": "emails"},)) == ""
    assert queue(task_routes={"send": "emails"}, options={"queue": "own"}) == "own"


# --- clients that retry by themselves ----------------------------------------------------------------------------


def test_a_client_that_retries_is_found_through_the_functions_of_the_package():
    app = app_with()
    task(app, send, bind=True)
    assert [(one.library, one.name, one.attempts) for one in read_task(app).clients] == [("httpx", "patient", 3)]


def test_a_client_that_does_not_retry_is_not_reported():
    calm = httpx.Client(trust_env=False)
    namespace = {"calm": calm, "__name__": __name__}
    exec("def calls():\n    return calm.get('http://partner.example/')", namespace)  # noqa: S102
    app = app_with()
    task(app, namespace["calls"])
    assert read_task(app).clients == ()


# The others are not needed to run or to test: they are looked at where somebody has installed them.
CLIENTS = {
    "httpx": "import httpx\nfound = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(retries=3))",
    "tenacity": "from tenacity import retry, stop_after_attempt\n@retry(stop=stop_after_attempt(4))\ndef found(): pass",
    "urllib3": "import urllib3\nfound = urllib3.PoolManager(retries=urllib3.Retry(total=3))",
    "requests": (
        "import requests\nfrom requests.adapters import HTTPAdapter\nfound = requests.Session()\n"
        "found.mount('https://', HTTPAdapter(max_retries=3))"
    ),
}


@pytest.mark.parametrize("library", [name for name in CLIENTS if importlib.util.find_spec(name)])
def test_clients_are_known_by_their_classes(library):
    namespace = {"__name__": __name__}
    exec(CLIENTS[library] + "\ndef calls():\n    return found", namespace)  # noqa: S102
    app = app_with()
    task(app, namespace["calls"])
    assert [(one.library, one.attempts) for one in read_task(app).clients] == [(library, 4)]


# --- bounds ------------------------------------------------------------------------------------------------------


def test_too_many_tasks_are_cut_and_counted_and_those_that_retry_stay():
    app = app_with()
    for n in range(2_100):
        app.task(name=f"plain.{n:04}.{'x' * 200}", shared=False)(nothing)
    task(app, autoretry_for=(OSError,))
    app.finalize()
    one = build_report(configuration(app, "shop"))
    found = read(one.text, "shop")
    assert len(one.text) <= MOST_BYTES
    # Celery gives an app the shared tasks of every other app in the process, which may be those of other tests.
    assert len(found.tasks) + found.left_out == sum(not name.startswith("celery.") for name in app.tasks) >= 2_101
    assert "send" in {one.name for one in found.tasks}


def test_the_same_app_reports_the_same_digest():
    def digest(delay):
        app = app_with()
        task(app, autoretry_for=(OSError,), default_retry_delay=delay)
        app.finalize()
        return build_report(configuration(app, "shop")).digest

    assert digest(5) == digest(5)
    assert digest(5) != digest(6)


def test_a_task_that_cannot_be_read_hides_no_other():
    app = app_with()
    task(app)
    app.task(name="odd", shared=False, default_retry_delay=5)(nothing)
    app.finalize()
    app.tasks["odd"].max_retries = "many"
    found = configuration(app, "shop")
    assert {"send", "odd"} & {one.name for one in found.tasks} == {"send"} and found.left_out == 1


# --- a live worker -----------------------------------------------------------------------------------------------


@pytest.mark.server
def test_a_live_worker_reports_what_it_has_under_the_digest_of_its_heartbeat(worker):
    with redis.Redis.from_url(worker.store_engine.url) as store:

        def digest():
            heartbeats = [json.loads(text) for text in store.hvals(keys.workers("shop"))]
            return heartbeats and heartbeats[0]["configuration"]

        name = keys.configuration("shop", worker.wait(digest, 60, "a configuration"))
        found = read(worker.wait(lambda: store.get(name), 60, "its text"), "shop")
        assert 0 < store.ttl(name) <= 86_400
    tasks = {task.name: task for task in found.tasks}
    assert (found.app.broker, found.app.visibility_timeout) == ("redis", 3600)
    assert tasks["post"].calls[0].countdown == "2 ** self.request.retries * random.uniform(0.9, 1.1)"
    assert tasks["autoretry"].autoretry_for == ("tests.kit.celery.PartnerDown",)
    assert (tasks["late"].acks_late, tasks["hard"].time_limit, tasks["soft"].soft_time_limit) == (True, 1, 1)
    assert not any(name.startswith("celery.") for name in tasks)


def test_the_arguments_of_a_task_are_reported_by_name_without_self_or_default_values():
    def sends(self, order, *, note=SECRET, **more): ...

    for run, options, signature in (
        (sends, {"bind": True}, "order, *, note=, **more"),
        (sends, {"bind": True, "autoretry_for": (OSError,)}, "order, *, note=, **more"),
        (nothing, {}, ""),
    ):
        app = app_with()
        task(app, run, **options)
        assert read_task(app).signature == signature


def test_a_decorator_that_adds_arguments_is_reported_as_what_it_takes_itself():
    def with_database(function):
        @functools.wraps(function)
        def called(*args, **kwargs):
            return function("database", *args, **kwargs)

        return called

    def stores(database, order): ...

    app = app_with()
    task(app, with_database(stores))
    assert read_task(app).signature == "*args, **kwargs"
