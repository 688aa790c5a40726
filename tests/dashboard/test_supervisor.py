"""The processes of `up`: waited for as long as something moves, with a log from their first moment."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from dashboard.setup.supervisor import Child, Quiet, StartFailed, Supervisor


@pytest.fixture
def supervisor(tmp_path):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    made = Supervisor(tmp_path / "log", lambda text: None)
    yield made
    made.stop_all()
    made.release()
    for number, handler in before.items():
        signal.signal(number, handler)


def start(supervisor, program: str) -> Child:
    return supervisor.start(Child("one", [sys.executable, "-c", program], supervisor.logs / "one.log", patience_s=0.5))


def test_a_start_that_takes_longer_than_the_patience_goes_on_while_the_process_works(supervisor, tmp_path):
    done = tmp_path / "done"
    program = f"import time, pathlib\nwhile time.process_time() < 4: pass\npathlib.Path({str(done)!r}).touch()\ntime.sleep(60)"
    child = start(supervisor, program)
    began = time.monotonic()
    # On a busy machine the process may get no processor for some seconds.
    supervisor.wait_until(done.exists, "it is done", lambda: supervisor.processor_s(child), [child], quiet_s=3.5)
    assert time.monotonic() - began > 3.5


def test_a_start_in_which_nothing_moves_is_given_up_with_what_was_waited_for(supervisor):
    child = start(supervisor, "import time; time.sleep(60)")
    with pytest.raises(StartFailed, match="Gave up waiting until it answers: nothing has moved for 1 s"):
        supervisor.wait_until(lambda: False, "it answers", lambda: 0, [child], quiet_s=1)


def test_a_process_that_shows_nothing_has_a_log_that_can_be_opened(supervisor):
    child = start(supervisor, "import time; time.sleep(60)")
    assert child.log.read_text() == "" and child.log.stat().st_mode & 0o077 == 0


def test_time_without_a_check_is_not_quiet_and_a_change_starts_again():
    values = iter([1, 1, 1, 2, 2])
    quiet = Quiet()
    quiet_at = [(0, 0), (1.5, 1.5), (600, 3.5), (601, 0), (602, 1)]  # time -> quiet seconds
    assert [quiet.since(lambda: next(values), at) for at, _ in quiet_at] == [expected for _, expected in quiet_at]
    assert quiet.waited_s == 602


def test_a_long_wait_is_reported_while_it_lasts(supervisor, monkeypatch):
    lines = []
    supervisor.report = lines.append
    monkeypatch.setattr("dashboard.setup.supervisor.REPORT_S", 1.0)
    child = start(supervisor, "import time; time.sleep(60)")
    ends = time.monotonic() + 3.2
    supervisor.wait_until(lambda: time.monotonic() > ends, "the page answers", time.monotonic, [child])
    assert lines and lines[0] == "Still waiting after 1 s until the page answers. Ctrl-C ends it."
