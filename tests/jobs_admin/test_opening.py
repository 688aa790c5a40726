from __future__ import annotations

import pytest
from cryptography.fernet import Fernet

from jobs_admin.db.opening import Opener, OpenerGone

OLD, NEW, LOST = (Fernet.generate_key() for _ in range(3))


@pytest.fixture
def opener():
    opener = Opener([NEW.decode(), OLD.decode()])
    assert opener.answer() == []
    yield opener
    opener.close()


def test_messages_are_opened_in_their_order_and_one_without_a_key_is_reported(opener):
    opener.submit([Fernet(key).encrypt(raw) for key, raw in ((OLD, b"one"), (LOST, b"two"), (NEW, b"three" * 100_000))])
    assert opener.answer() == [b"one", None, b"three" * 100_000]
    opener.submit([])
    assert opener.answer() == [] and not opener.has_answered()


def test_a_process_that_was_killed_is_reported(opener):
    opener._process.kill()
    opener._process.wait()
    with pytest.raises(OpenerGone):
        opener.submit([b"x" * 1_000_000])
    with pytest.raises(OpenerGone):
        opener.answer()


def test_it_ends_with_the_pipe_that_it_reads(opener):
    opener._process.stdin.close()
    assert opener._process.wait(timeout=90) == 0
    opener._process.stdin = None
