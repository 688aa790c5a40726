"""Policies in force in a worker: from the store, from the disk, and never an absurd one."""

from __future__ import annotations

import os

import pytest
import redis

from jobs_admin.core import keys
from jobs_admin.worker.policies import Policies, keep_last_good
from tests.kit.policies import policy, published

pytestmark = pytest.mark.server


@pytest.fixture
def client(own_store):
    with redis.Redis.from_url(own_store.url) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "spool" / "shop"


def poll(policies: Policies, client) -> bool:
    return policies.poll(client, client.get(keys.policies_version()))


def test_what_is_published_is_in_force_in_the_pool_and_what_is_withdrawn_is_not(own_store, client, folder):
    policies = Policies("shop", "enforce", folder)
    in_force = policies.in_force()
    assert in_force.choose("emails", "try") is None
    version = published(own_store.url, policy("one"), policy("other", match={"source": "clinic"}))
    assert poll(policies, client) and not poll(policies, client)
    assert in_force.choose("emails", "try").label == f"one@{version}"
    assert in_force.choose("emails", "else") is None
    assert policies.versions == {"one": version}  # the other one can match none of its jobs
    published(own_store.url)
    assert poll(policies, client)
    assert in_force.choose("emails", "try") is None


def test_the_last_good_ones_survive_a_store_that_lost_its_memory_and_a_start_without_it(own_store, client, folder):
    version = published(own_store.url, policy("one"))
    policies = Policies("shop", "enforce", folder)
    poll(policies, client)
    client.flushall()
    assert not poll(policies, client)
    assert policies.versions == {"one": version}
    again = Policies("shop", "enforce", folder)
    assert again.in_force().choose("emails", "try").label == f"one@{version}"
    assert os.stat(folder / "policies.json").st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.write_bytes(file.read_bytes().replace(b'"enforce"', b'"observe"')),
        lambda file: file.write_bytes(file.read_bytes()[:-20]),
        lambda file: file.write_bytes(b""),
        lambda file: file.chmod(0o644),
        lambda file: (file.rename(file.with_name("moved")), file.symlink_to(file.with_name("moved"))),
    ],
)
def test_a_file_that_is_not_complete_or_not_ours_is_not_believed(folder, spoil):
    keep_last_good(folder, [{"name": "one", "version": 1, "policy": policy("one")}])
    assert Policies("shop", "enforce", folder).versions == {"one": 1}
    spoil(folder / "policies.json")
    assert Policies("shop", "enforce", folder).versions == {}


@pytest.mark.parametrize(
    "document",
    [
        b"not json",
        b"[]",
        b'{"name": "one"}',
        b'{"name": "two", "version": 9, "policy": {}}',
        b'{"name": "one", "version": "9", "policy": {}}',
        b'{"name": "one", "version": 9, "policy": []}',
        b'{"name": "one", "version": 9, "policy": {"cap_s": -1}}',
        b'{"name": "one", "version": 9, "policy": {"max_attempts": 1e9}}',
        b'{"name": "one", "version": 9, "policy": {"backoff": {"kind": "fixed", "first_delay_s": 1e308}}}',
        b'{"name": "one", "version": 9, "policy": {"backoff": {"kind": "fixed", "first_delay_s": NaN}}}',
        b"\xff\xfe",
    ],
)
def test_an_absurd_document_leaves_the_version_before_and_reports_why(own_store, client, folder, document):
    version = published(own_store.url, policy("one"))
    policies = Policies("shop", "enforce", folder)
    poll(policies, client)
    client.hset(keys.policies(), "one", document)
    client.incrby(keys.policies_version(), 10**6)
    assert poll(policies, client)
    assert policies.versions == {"one": version} and policies.refused["one"]
    assert policies.in_force().choose("q", "try").version == version
    published(own_store.url, policy("one"))
    assert poll(policies, client) and policies.refused == {}


@pytest.mark.parametrize(
    ("ceiling", "limit", "mode"),
    [
        ("enforce", "enforce", "enforce"),
        ("observe", "enforce", "observe"),
        ("enforce", "capture", None),
        ("enforce", "off", None),
    ],
)
def test_a_policy_reaches_no_higher_than_its_ceilings(own_store, client, folder, ceiling, limit, mode):
    published(own_store.url, policy("one"))
    policies = Policies("shop", ceiling, folder)
    in_force = policies.in_force()
    poll(policies, client)
    policies.hold_to(limit)
    chosen = in_force.choose("emails", "try")
    assert (chosen and chosen.policy.mode) == mode


def test_more_than_the_board_holds_leaves_those_before_and_reports_why(own_store, client, folder):
    version = published(own_store.url, policy("one"))
    policies = Policies("shop", "enforce", folder)
    poll(policies, client)
    long = [policy(f"p{n}", f"t{n}", note="x" * 2000) for n in range(600)]
    published(own_store.url, *long)
    assert poll(policies, client) and policies.refused.keys() == {one["name"] for one in long}
    assert "are more than" in policies.refused["p0"]
    assert policies.in_force().choose("q", "try").version == version
    assert policies.versions == {"one": version}
