"""The real parts that tests run on. Each is started on a free loopback port and stopped by who started it."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections import Counter
from importlib import import_module
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from _pytest.mark.expression import Expression
from cryptography.fernet import Fernet
from django.apps import apps
from django.conf import settings
from django.db import connection
from hypothesis import settings as generated

from dashboard.setup import engine as private_engine
from dashboard.setup.engine import Engine
from tests.kit import durations, endurance, migrated, node, rabbitmq
from tests.kit.browsing import Browser
from tests.kit.rabbit_bus import Broker
from tests.kit.sources import forget_configuration
from tests.kit.sqs import sqs_server
from tests.kit.write_order import checked_write_order

# How long an example takes says how busy the machine is, not whether the code is right.
# The examples are the same in every run; under `--endurance` each run draws others.
generated.register_profile(
    "redrive", deadline=None, derandomize=not endurance.IS_ON, max_examples=endurance.times(40, 100)
)
generated.load_profile("redrive")

IS_STRICT = bool(os.environ.get("REDRIVE_STRICT"))  # `manage.py test --strict`: nothing may be left out
STRICT = "The strict suite skips nothing."


gc.disable()  # until all tests are collected: they stay, and would be looked through again and again


# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    if folder := os.environ.get("REDRIVE_DURATIONS"):
        config.pluginmanager.register(durations.Recorder(Path(folder)))
    # A server listens on its port seconds after it was chosen: processes that share the tests choose from ports of their own.
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    private_engine._PORTS = private_engine._PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    # A real hash takes a third of a second, and half of the tests of pages log somebody in. Whole desks keep theirs.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # For all tests: what each of them sets anew sends signals, and makes every look at a setting longer.
    settings.REDRIVE = settings.REDRIVE | {"TEST_BACKENDS": ("memory",)}
    settings.STORAGES = settings.STORAGES | {
        "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    }


def pytest_ignore_collect(collection_path, config):
    """Leave out a file none of whose tests `-m` selects: each process of a run imports what is left, 20 s for all files."""
    expression = config.option.markexpr
    if expression and collection_path.suffix == ".py" and not _may_select(expression, collection_path.read_text()):
        return True
    return None


def _may_select(expression, text):
    """Return whether a test of a file with this text could be selected, by the marks that the text names."""
    of_all = set(re.findall(r"mark\.(\w+)", "".join(re.findall(r"^pytestmark = (\[[^]]*]|.*)", text, re.MULTILINE))))
    of_some = sorted(set(re.findall(r"mark\.(\w+)", text)) & set(re.findall(r"\w+", expression)) - of_all)
    compiled = Expression.compile(expression)
    return any(
        compiled.evaluate(lambda name, **_: name in of_all or name in chosen)  # noqa: B023
        for size in range(len(of_some) + 1)
        for chosen in combinations(of_some, size)
    )


def pytest_collection_finish():
    # Thousands of collected tests stay to the end: looking through them again and again takes half a second each time.
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 20)  # a page makes thousands of objects: with 700, three percent of the time went here


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if not any(item.get_closest_marker(name) for name in ("server", "browser", "extras")):
        return _fail_skipped(report, "Only a test marked server, browser or extras may be skipped.")
    return _fail_skipped(report, STRICT) if IS_STRICT else report


def pytest_runtest_logreport(report):
    """Name a failure at once where processes share the tests: who stops the run has no summary."""
    if report.failed and hasattr(report, "node"):
        print(f"\n{report.nodeid} failed in its {report.when}", flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _fail_skipped(report, STRICT) if IS_STRICT else report


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that are not part of this run, and put the files that take longest first."""
    left_out = [item for item in items if not _is_part(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    # What takes longest begins first, so that no process is left alone with it at the end.
    spent = durations.recorded()["files"]
    files = Counter(item.path for item in items)
    with_servers = {item.path for item in items if item.get_closest_marker("server")}
    ranks = {path: _rank(path, spent, count, path in with_servers) for path, count in files.items()}
    items.sort(key=lambda item: ranks[item.path])


def _rank(path, spent, count, needs_servers):
    place = path.relative_to(Path(__file__).parents[1])
    # The main journey brings the desk's dead jobs back: the other journeys need some.
    empties = path.name == "test_main_journey.py"
    seconds = spent.get(place.as_posix(), count * (10 if needs_servers else 0.1))
    return path.name != "test_incident.py", place.parts[1] != "journeys", empties, -seconds, place


def _is_part(item):
    marks = {mark.name for mark in item.iter_markers()}
    if not endurance.IS_ON and ("endurance" in marks or _is_a_further_version(item, marks)):
        return False
    if connection.vendor == "sqlite":
        return "postgresql" not in marks
    return "postgresql" in marks or (not marks & {"sqlite", "server", "browser"} and _is_of_a_database(item.nodeid))


def _is_a_further_version(item, marks):
    """Return whether it is a particular on another major of BullMQ than the latest, or of held jobs on RabbitMQ: there, only
    contracts are part of an ordinary run.
    """
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    others = parameters.get("bull", node.MAJORS[-1]) != node.MAJORS[-1] or parameters.get("shop") == "amqp"
    return "contract" not in marks and others


def _is_of_a_database(nodeid):
    """Return whether PostgreSQL may make a difference to the test: it is about the engine, and the engine's tables."""
    knows_none = ("core/", "worker/", "management/test_node_package.py", "notices/test_mail_line.py")
    folder, _, rest = nodeid.removeprefix("tests/").partition("/")
    return folder == "search" or (folder == "jobs_admin" and not rest.startswith(knows_none))


def _fail_skipped(report, why):
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome, report.longrepr = "failed", f"{why} {reason}"
    return report


@pytest.fixture
def client():
    """A browser without a session."""
    return Browser()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings):
    """The fixture that pytest-django uses before it makes the database."""
    if connection.vendor == "sqlite":
        connection.creation = migrated.Copied(connection)


@pytest.fixture(scope="session")
def engine(tmp_path_factory):
    """A private Valkey, one a test process."""
    running = Engine(tmp_path_factory.mktemp("engine")).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def rabbit_node(tmp_path_factory):
    """A RabbitMQ with its management, whose statistics are fresh; one a test process. What a test declares has names of its own."""
    if rabbitmq.server() is None:
        pytest.skip(rabbitmq.HOW_TO_GET_IT)
    settings = "collect_statistics_interval = 100\n"
    running = rabbitmq.Node(tmp_path_factory.mktemp("rabbitmq"), management=True, settings=settings).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def rabbit_host(rabbit_node, request):
    """A virtual host of that RabbitMQ, for one file alone: queues of the same names are others there."""
    management, name = Broker(rabbit_node), request.path.stem
    management.request("PUT", f"/api/vhosts/{name}")
    management.request("PUT", f"/api/permissions/{name}/redrive", {"configure": ".*", "write": ".*", "read": ".*"})
    url = f"{rabbit_node.url.removesuffix('//')}/{name}"
    yield SimpleNamespace(url=url, management_url=rabbit_node.management_url)
    management.request("DELETE", f"/api/vhosts/{name}")


@pytest.fixture
def store(engine, settings):
    """Redrive's store, empty: the engine's database 0, and the settings that point at it."""
    from jobs_admin import config

    client = redis.Redis.from_url(engine.url, socket_timeout=60)  # of itself 5 s, which a busy disk may take
    client.flushall()
    nothing = dict.fromkeys(("DEMO_BROKER_URL", "CELERY_BROKER_URL", "SOURCES"), "")
    settings.REDRIVE = settings.REDRIVE | nothing | {"REDIS_URL": engine.url}
    forget_configuration(config)
    yield client
    client.close()
    forget_configuration(config)


@pytest.fixture(autouse=True)
def installation(settings):
    from jobs_admin import config, trust
    from jobs_admin.desk import overview

    overview.forget()
    trust.forget()

    settings.REDRIVE = settings.REDRIVE | {"PAYLOAD_KEYS": [Fernet.generate_key().decode()]}
    config.payload_keys.cache_clear()


@pytest.fixture(autouse=True)
def write_order():
    with checked_write_order():
        yield


@pytest.fixture
def data_folder() -> Path:
    return Path(os.environ["REDRIVE_DATA"])


@pytest.fixture
def first_rules(db):
    """The rules that a new desk has: the migrations' own, made again, because a test that commits takes all rows away."""
    apps.get_model("jobs_admin", "Rule").objects.all().delete()
    import_module("jobs_admin.migrations.0010_alerts_and_history")._begin(apps, connection.schema_editor())
    import_module("jobs_admin.migrations.0017_progress").add_rule(apps, connection.schema_editor())
