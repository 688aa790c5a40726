"""A Redis behind Sentinels, as store and as source: real servers, real fail-overs."""

from __future__ import annotations

import signal
import threading
import time

import pytest
import redis

from dashboard.setup import checkup, connections
from dashboard.setup.environment import Misconfigured
from jobs_admin import config
from jobs_admin.sources import connect
from jobs_admin.sources.base import OutgoingMessage
from jobs_admin.worker.line import Line
from jobs_admin.worker.redis_clients import NoPrimary, from_url
from tests.kit.desks import BURY
from tests.kit.sentinels import PASSWORD, QUOTED, SENTINEL_PASSWORD, SET, USER, SentinelSet, seconds_until
from tests.kit.waiting import wait_until
from tests.rigs.replay_kills import Havoc

pytestmark = [pytest.mark.server, pytest.mark.sqlite]

SYSTEMS = ["celery", "bull", "bullmq", "rq", "dramatiq", "sidekiq"]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    running = SentinelSet(tmp_path_factory.mktemp("sentinels"))
    yield running
    running.stop()


@pytest.fixture
def client(servers):
    with from_url(servers.url, socket_timeout=5, socket_connect_timeout=5) as client:
        client.flushall()
        yield client


@pytest.fixture
def source(servers, client):
    source = connect("shop", "celery", servers.url)
    yield source
    source.close()


def outgoing(token):
    made = {}
    exec("import base64, json\n" + BURY, made)
    lineage = {"queue": "emails", "job_id": "old", "run": 2, "item": token, "replay": "r"}
    return OutgoingMessage(
        token=token, raw=made["message"](token), queue="emails", job_id=f"new-{token}", lineage=lineage
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_each_system_is_read_through_sentinels(servers, client, system):
    source = connect("shop", system, servers.url)
    try:
        assert source.depths() == []
        assert "unreachable" not in {finding.id for finding in source.findings()}
        first = source.epoch("r") if source.can.atomic_send else ""
        assert (source.epoch("r") if source.can.atomic_send else "") == first
    finally:
        source.close()


def test_the_file_of_sources_takes_celerys_own_form(servers, client, tmp_path, settings):
    file = tmp_path / "sources.toml"
    file.write_text(
        f'[sources.shop]\nbackend = "celery"\nurl = "{servers.celery_url}"\nmaster_name = "{SET}"\n'
        f'sentinel_kwargs = {{ password = "{SENTINEL_PASSWORD}" }}\n'
    )
    found = config._from_file(file)["shop"]
    source = connect("shop", found.backend, found.url, found.queues, found.options)
    try:
        client.lpush("emails", outgoing(1).raw)
        assert [(depth.queue, depth.waiting) for depth in source.depths()] == [("emails", 1)]
        assert source.workers() == {}
    finally:
        source.close()


def test_up_and_doctor_describe_the_set(servers, client):
    connections.check_redis("REDRIVE_REDIS_URL", servers.url)
    text, found = checkup.check_sentinels(servers.url)
    assert f"3 of 3 Sentinels name a primary (127.0.0.1:{servers.primary.port}, 1 replica, quorum 2 of 3)" in text
    assert found == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda url: url.replace(SENTINEL_PASSWORD, "hidden"), "refuses the login (sentinel_username"),
        (lambda url: url.replace(SET, "other-set"), "does not know this set"),
        (lambda url: url.replace(QUOTED, "hidden"), "invalid username-password"),
        (lambda url: f"redis+sentinel://:hidden@127.0.0.1:1/{SET}", "does not answer (ConnectionError)"),
        (lambda url: url.replace(f"/{SET}/", f":1/{SET}/"), "is like"),
    ],
)
def test_what_is_wrong_is_one_sentence_without_a_password(servers, change, why):
    with pytest.raises(Misconfigured) as refused:
        connections.check_redis("REDRIVE_REDIS_URL", change(servers.url))
    text = str(refused.value)
    assert why in text and "Nothing was started." in text, text
    assert not any(secret in text for secret in ("hidden", PASSWORD, QUOTED, SENTINEL_PASSWORD)), text


def test_a_user_with_few_rights_needs_no_role(servers, client):
    client.acl_setuser("little", enabled=True, passwords=[f"+{PASSWORD}"], commands=["+ping"])
    with from_url(servers.url.replace(f"//{USER}:", "//little:")) as little:
        assert little.ping()
        with pytest.raises(redis.exceptions.NoPermissionError):
            little.get("key")


def test_a_server_that_is_no_sentinel_is_named(servers):
    url = f"redis+sentinel://{USER}:{QUOTED}@127.0.0.1:{servers.primary.port}/{SET}"
    with pytest.raises(redis.ConnectionError, match=r"is not a Sentinel|refuses the login"):
        from_url(url).ping()


@pytest.mark.endurance
@pytest.mark.long("Waits for two fail-overs of Sentinels, which take ten seconds to make a replica of a server.")
def test_of_sentinels_that_differ_the_one_of_the_latest_fail_over_counts(servers, client, source):
    """One Sentinel was away for a fail-over: it still names the earlier primary, for as long as it hangs behind."""
    servers.heal()
    ledger = source.epoch("r")
    assert source.send("r", [outgoing(1)]) == {1: "sent"} and source.epoch("r") == ledger
    behind, before = servers.sentinels[0], servers.primary
    behind.signal(signal.SIGSTOP)
    before.kill()
    client.connection_pool.disconnect()
    took = seconds_until(lambda: client.set("key", 1))
    print(f"seconds until well: {took:.1f}")
    # The promoted replica may lack marks of sent items: by its epoch, what was being sent is in doubt, not unsent.
    assert source.epoch("r") != ledger
    before.start()  # as a primary: no Sentinel has made it a replica yet
    assert servers.roles()[before.port] == "master"
    behind.signal(signal.SIGCONT)
    views = []

    def has_followed():
        with from_url(servers.url, socket_timeout=5, socket_connect_timeout=5) as other:
            other.set("key", 2)
            views.append(other.connection_pool.connection_kwargs["sentinels"].primary[1])
        return servers.is_in_step()

    wait_until(has_followed, "the earlier primary to be a replica")
    assert set(views) == {servers.primary.port} != {before.port}
    assert client.get("key") == b"2"


@pytest.mark.endurance
@pytest.mark.long("Waits for a fail-over of Sentinels.")
def test_connections_leave_a_primary_that_was_replaced_but_still_takes_writes(servers, client):
    """For some seconds after a planned fail-over, the earlier primary takes writes that are then lost."""
    servers.heal()
    line = Line(servers.url)
    before = servers.primary.port
    client.set("key", 1)
    wait_until(
        lambda: str(servers.sentinels[0].client().execute_command("SENTINEL", "FAILOVER", SET)) in ("OK", "True"),
        "the fail-over to begin",
        within_s=20,
    )

    def writes_to():
        client.incr("key")
        return client.info("server")["tcp_port"]

    wait_until(lambda: writes_to() != before, "the client to leave")
    assert servers.roles()[before] == "master", "it was a replica already: the test shows nothing"
    wait_until(line.is_outdated, "the guard's connection to be outdated")
    line.close()
    servers.heal()


@pytest.mark.endurance
@pytest.mark.long("Waits until Sentinels have made a replica of a server.")
def test_a_replica_is_never_written_to_by_a_connection_to_the_primary(servers, client):
    """A primary that is made a replica under an open connection."""
    servers.heal()
    client.set("key", 1)
    connection = client.connection_pool.get_connection()
    connection.port = servers.replica.port
    connection.disconnect()
    connection._connect = lambda: type(connection).__mro__[2]._connect(connection)
    with pytest.raises(NoPrimary, match="is a replica"):
        connection.connect()
    client.connection_pool.release(connection)


def test_a_command_is_not_repeated_after_its_answer_was_lost(servers, client):
    servers.heal()
    client.set("count", 0)
    primary = servers.primary.client()
    own = client.client_id()
    primary.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
    errors = []

    def add():
        try:
            client.incr("count")
        except redis.RedisError as error:
            errors.append(error)

    thread = threading.Thread(target=add)
    thread.start()
    wait_until(lambda: "cmd=incr" in str(primary.execute_command("CLIENT", "LIST")), "the command to wait")
    primary.execute_command("CLIENT", "KILL", "ID", own)
    thread.join()
    primary.execute_command("CLIENT", "UNPAUSE")
    assert len(errors) == 1 and client.get("count") == b"0"


@pytest.mark.long("Runs a worker, a desk and a fail-over.")
@pytest.mark.django_db
def test_the_primary_is_killed_during_a_replay_and_each_job_runs_once_or_is_uncertain(servers, tmp_path):
    servers.heal()
    with Havoc(tmp_path, jobs=150, rate=60, outcome_within_s=12, seed=7, on_sentinels=servers) as havoc:
        began = time.monotonic()
        found = havoc.run(kills=1)
        print(found, round(time.monotonic() - began, 1))
    assert found["kills"] == {"primary": 1} and found["replay"]["succeeded"] > 100, found
    assert (found["never_ran_and_not_uncertain"], found["ran_twice"]) == (0, 0), found
    assert found["ran_once"] + found["never_ran_and_uncertain"] + found["ran_again_by_the_broker"] == 150, found
    assert found["left_in_the_queue"] == found["replay"]["planned"] == 0, found
