"""Each way in which a job can fail is reported once, with the very bytes that lay in its queue, and succeeds when it is fixed.

Here the pool that nearly everybody runs is tried with both brokers and both ways of acknowledging, and each of the other two
once. The whole table, with every pool in every place, is `python -m bench.kinds`: run it where capture is changed.
"""

from __future__ import annotations

import pytest

from jobs_admin import config
from jobs_admin.core.envelope import UNREAD
from tests.kit.endurance import crossed
from tests.kit.sources import forget_configuration
from tests.rigs import kinds
from tests.rigs.kinds import OnRabbitMQ, OnRedis

pytestmark = [pytest.mark.server, pytest.mark.django_db]

# Of an ordinary run: each broker both ways, each pool once at least.
USUAL = ("redis-prefork-early", "rabbitmq-prefork-late", "redis-threads-late", "rabbitmq-solo-early")


@pytest.fixture
def broker(request, store, engine, settings, tmp_path):
    """The source `shop` of this desk."""
    if request.param == "redis":
        found = OnRedis(engine.url.removesuffix("/0") + "/1")
    else:
        found = OnRabbitMQ(request.getfixturevalue("node").url)
    file = tmp_path / "sources.toml"
    file.write_text(f'[sources.shop]\nbackend = "celery"\nurl = "{found.url}"\nqueues = ["emails"]\n')
    settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(file)}
    forget_configuration(config)
    yield found
    forget_configuration(config)


@pytest.mark.long("Starts a worker in which jobs fail in every way, and the next, in which they succeed.")
@pytest.mark.parametrize(
    ("broker", "pool", "acks"),
    crossed(("redis", "rabbitmq"), kinds.POOLS, ("early", "late"), few=USUAL),
    indirect=["broker"],
)
def test_every_kind_is_reported_once_byte_for_byte_and_recovers_when_it_is_fixed(broker, store, engine, pool, acks):
    late = acks == "late"
    for one in kinds.tried(broker, pool, late, engine.url, store):
        row = one.row
        assert one.kinds == row.kinds, one
        if not row.kinds:
            assert (one.rows, one.ended) == (0, ""), one
            continue
        assert one.is_equal, one
        state = "quarantined" if row.kinds[-1] in UNREAD else "dead"
        assert (one.rows, one.state, one.ended) == (1, state, "recovered"), one
        assert one.brought_back_by == ("the broker" if row.by_broker and late else "a replay"), one
