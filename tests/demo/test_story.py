from __future__ import annotations

import pytest
import redis

from demo import control, story
from demo.story import Second, Side, Story

pytestmark = pytest.mark.server


@pytest.fixture
def broker(engine):
    client = redis.Redis.from_url(engine.url[:-1] + "3")
    client.flushdb()
    yield client
    client.close()


@pytest.fixture
def player(broker):
    story.alive(broker)


def begin_story(ticket: story.Ticket, **more) -> Story:
    return Story(id=ticket.id, by=ticket.name, user_id=ticket.user_id, began_at=1.0, jobs=3, after=0, **more)


def test_without_a_player_nothing_is_requested(broker):
    with pytest.raises(control.DemoUnreachable, match="Nothing was changed"):
        story.request(broker, 1, "ann")
    assert story.read(broker).ticket is None


def test_one_is_played_at_a_time(broker, player):
    ticket = story.request(broker, 1, "ann")
    with pytest.raises(control.BadWish, match="already"):
        story.request(broker, 2, "otto")
    assert story.read(broker).ticket == ticket


def test_a_story_is_read_as_it_was_written(broker, player):
    steps = begin_story(story.request(broker, 1, "ann"), groups=[{"fingerprint": "v1-a", "title": "t", "state": "new"}])
    steps.sides["at_once"] = Side(began=10.2, falls_before=1, seconds=[Second(5, 2, 8.5, 3), None], falls=[0.4])
    steps.outages["held"] = Side(began=9.0, falls_before=0, on_hold=7)
    story.write(broker, steps)
    assert story.read(broker).story == steps


def test_the_last_story_is_shown_until_the_next_is_requested(broker, player):
    last = begin_story(story.request(broker, 1, "ann"), ended_at=2.0)
    story.close(broker, last)
    assert story.read(broker).story == last
    assert not story.read(broker).is_playing
    story.request(broker, 1, "ann")
    assert story.read(broker).story is None
    assert story.read(broker).is_playing


def test_a_stop_is_for_the_one_that_is_played(broker, player):
    with pytest.raises(control.BadWish, match="No incident"):
        story.stop(broker)
    steps = begin_story(story.request(broker, 1, "ann"))
    assert not story.is_to_stop(broker, steps)
    story.stop(broker)
    assert story.is_to_stop(broker, steps)
    story.close(broker, steps)
    assert not story.is_to_stop(broker, begin_story(story.request(broker, 1, "ann")))
