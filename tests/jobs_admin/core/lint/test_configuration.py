"""A worker's report of itself comes back as it was, and nothing hostile comes through."""

from __future__ import annotations

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from jobs_admin.core.lint.configuration import App, ClientRetries, Configuration, Queue, RetryCall, Task, document, read

names = st.text(string.ascii_letters + ".", max_size=20)
seconds = st.none() | st.floats(0, 1e6)
apps = st.builds(App, broker=names, visibility_timeout=seconds, result_backend=names, result_expires=seconds, prefetch_multiplier=st.integers(0, 99))  # fmt: skip
calls = st.builds(RetryCall, names, st.none() | names, st.booleans(), st.none() | names, st.booleans())
tasks = st.builds(
    Task, names, names, max_retries=st.none() | st.integers(0, 50), autoretry_for=st.lists(names, max_size=3).map(tuple),
    retry_backoff=st.floats(0, 1e4), retry_jitter=st.booleans(), calls=st.lists(calls, max_size=2).map(tuple),
    clients=st.lists(st.builds(ClientRetries, names, names, st.integers(1, 9)), max_size=2).map(tuple),
    autoretry_max_retries=st.none() | st.integers(0, 9), acks_late=st.booleans(), expires=seconds, time_limit=seconds,
)  # fmt: skip
queues = st.builds(Queue, names, st.booleans(), names, st.none() | st.integers(1, 9), st.booleans())
configurations = st.builds(
    Configuration, st.just("shop"), apps, st.lists(queues, max_size=3).map(tuple), st.lists(tasks, max_size=4).map(tuple), st.integers(0, 9)
)  # fmt: skip


@given(configurations)
def test_what_was_reported_is_read_back(found):
    assert read(document(found), "shop") == found


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*Task.__dataclass_fields__, "v", "x"]), inner),
    max_leaves=20,
)  # fmt: skip


@given(json_values, json_values, json_values)
def test_whatever_a_worker_reports_is_bounded_or_not_reported(app, tasks, queues):
    found = read(json.dumps({"v": 1, "app": app, "tasks": tasks, "queues": queues}), "shop")
    assert found is not None
    for task in found.tasks:
        assert isinstance(task.name, str) and isinstance(task.acks_late, bool)
        assert task.max_retries is None or 0 <= task.max_retries < 2**31
        assert read(document(Configuration("shop", tasks=(task,))), "shop").tasks == (task,)


def test_what_is_no_configuration_is_none():
    assert [read(text, "shop") for text in ("", "[]", "null", '{"v": 2}', "{" * 5000, b"\xff")] == [None] * 6


def test_a_task_without_a_name_is_not_reported():
    assert read('{"v": 1, "tasks": [{"queue": "a"}, {"name": "b"}]}', "shop").tasks == (Task("b"),)
