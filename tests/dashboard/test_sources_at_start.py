"""The file of sources at the start: a system that is away is said, what is wrongly written down ends the start, all of it at once."""

from __future__ import annotations

import pytest

from dashboard.setup import connections
from dashboard.setup.environment import Misconfigured
from jobs_admin import config
from tests.kit.sources import forget_configuration

CLOSED_PORT = "127.0.0.1:1"


@pytest.fixture
def start(settings, monkeypatch, tmp_path):
    def check(text: str) -> list[str]:
        path = tmp_path / "sources.toml"
        path.write_text(text)
        settings.REDRIVE = settings.REDRIVE | {"SOURCES": str(path)}
        monkeypatch.setenv("REDRIVE_SOURCES", str(path))
        forget_configuration(config)
        return connections.check_sources()

    yield check
    forget_configuration(config)


def refused(start, text: str) -> str:
    with pytest.raises(Misconfigured) as why:
        start(text)
    assert str(why.value).endswith("Nothing was started.") and "hidden" not in str(why.value)
    return str(why.value)


def source(name: str, backend: str, url: str, more: str = "") -> str:
    return f'[sources.{name}]\nbackend = "{backend}"\nurl = "{url}"\n{more}\n'


@pytest.mark.parametrize(
    ("backend", "url"),
    [
        ("celery", f"redis://:hidden@{CLOSED_PORT}/0"),
        ("celery", f"amqp://guest:hidden@{CLOSED_PORT}//"),
        ("bullmq", f"redis://:hidden@{CLOSED_PORT}/0"),
        ("jobs_table", f"postgresql://app:hidden@{CLOSED_PORT}/shop"),
        ("jobs_table", "sqlite:////nowhere/jobs.db"),
        ("rabbitmq", f"amqp://guest:hidden@{CLOSED_PORT}//"),
    ],
)
def test_a_system_that_is_away_is_shown_and_the_start_goes_on(start, backend, url):
    (message,) = start(source("bus", backend, url, 'dead_letter_queues = ["dlq"]' if backend == "rabbitmq" else ""))
    assert message.startswith("Source bus cannot be reached (") and message.endswith("reads it once it answers.")
    assert "hidden" not in message and "\n" not in message


@pytest.mark.parametrize("backend", ["celery", "bullmq"])
def test_a_password_that_is_wrong_is_shown_and_the_start_goes_on(start, engine, backend):
    host = engine.url.rpartition("@")[2]
    (message,) = start(source("bus", backend, f"redis://:hidden@{host}"))
    assert message.startswith("Source bus cannot be reached (") and "hidden" not in message


def test_one_that_answers_is_not_spoken_of(start, engine):
    assert start(source("bus", "bullmq", engine.url)) == []


def test_all_that_is_wrongly_written_down_is_shown_at_once(start):
    text = '[sources.a]\nbackend = "bullmqq"\n[sources.B]\nurl = "x"\n[sources.c]\nbackend = "celery"\nurl = "redis://h"\nqueues = "emails"\n'
    message = refused(start, f"{text}[sources.d]\nurl = 3\n")
    for what in (
        "[sources.a] has backend 'bullmqq'; known: celery, bullmq,", "[sources.a] needs a url.", "'B' cannot name a source",
        "[sources.c]: queues must be a list of names.", "[sources.d] needs a backend", "[sources.d] needs a url.",
    ):  # fmt: skip
        assert what in message


def test_what_an_adapter_refuses_is_shown_of_all_and_is_not_blamed_on_the_url(start):
    message = refused(
        start,
        source("bus", "bullmq", f"redis://:hidden@{CLOSED_PORT}/0")
        + source("pay", "jobs_table", "sqlite:////nowhere/jobs.db", 'tabel = "jobs"')
        + source("node", "bullmq", f"redis://:hidden@{CLOSED_PORT}/0", "major = 3")
        + source("mail", "celery", f"redis://:hidden@{CLOSED_PORT}/0", 'priority_steps = ["low"]'),
    )
    assert (
        "[sources.pay] (sqlite:////nowhere/jobs.db) cannot be used: the option 'tabel' is not known; known: " in message
    )
    assert "queues" in message.partition("known: ")[2].partition(".")[0]
    assert "[sources.node]" in message and "major is 4, 5 or 6" in message and "[sources.mail]" in message
    assert "the url of" not in message and "[sources.bus]" not in message


@pytest.mark.parametrize("text", ["sources = 3", "[sources]\nbus = 3", "[sources.bus", "[[sources]]\nurl = 'x'"])
def test_a_file_of_another_form_is_refused_in_a_sentence(start, text):
    assert refused(start, text).startswith("REDRIVE_SOURCES")
