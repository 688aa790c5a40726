"""The Python client of the API: what it is generated from, and its calls to a whole desk."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.browser import ROOT

FOLDER = ROOT / "clients/python"


def imported(name: str):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_it_is_generated_from_the_description_of_the_api():
    """After a change of the API: `python clients/python/generate.py tests/pinned/openapi.json`, then `ruff format clients`."""
    described = json.loads((ROOT / "tests/pinned/openapi.json").read_text())
    rendered = imported("generate").render_client(described)
    written = (FOLDER / "redrive_client.py").read_text()
    assert ast.dump(ast.parse(rendered)) == ast.dump(ast.parse(written))


@pytest.mark.server
@pytest.mark.long("Starts a desk with a day of failures.")
def test_it_reads_pages_acts_and_names_errors(desk):
    module = imported("redrive_client")
    client = module.Redrive(desk.url, desk.token)
    desk.wait_until(
        lambda: client.list_failures(q="state:dead")["count"] > 60, "a day of failures is filed", within_s=90
    )
    # Not by age: a job that becomes an hour old meanwhile would be in the one answer and not in the other.
    settled = datetime.now(UTC) - timedelta(hours=1)
    wanted = {"q": f"state:dead queue:webhooks until:{settled:%Y-%m-%dT%H:%M:%SZ}"}
    first = client.list_failures(**wanted, limit=20)
    read = [one["id"] for one in client.pages(client.list_failures, **wanted, limit=20)]
    assert len(read) == len(set(read)) == first["count"] > 20

    failure = read[0]
    assert client.get_failure(failure)["id"] == failure
    client.discard_failure(failure, reason="the receiver is gone")
    assert client.get_failure(failure)["state"] == "discarded"
    client.restore_failure(failure, reason="it is back")
    assert client.get_failure(failure)["state"] == "dead"
    assert client.export_failures(q="queue:webhooks state:dead", form="csv").startswith("id,")

    with pytest.raises(module.ApiError) as refused:
        client.get_failure(2**40)
    assert (refused.value.status, refused.value.code) == (404, "not_found")
    with pytest.raises(module.ApiError) as refused:
        module.Redrive(desk.url, "redrive_nobody").list_queues()
    assert (refused.value.status, refused.value.code) == (401, "unauthorized")
    with pytest.raises(OSError):
        module.Redrive("http://127.0.0.1:9", desk.token).list_queues()
