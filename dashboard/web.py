"""The web server's command line: one for `up`, for the benches and for the documentation."""

from __future__ import annotations

# A page takes a few ms of one processor, and Python runs one page at a time: more threads only wait for each other, and
# each takes 4 MB. Three are enough that a slow page (a search of text that no index has) does not stop the others.
THREADS = 3
ENVIRONMENT = {
    # One heap for all threads, which gives back what a large page needed: each thread would keep its own. It keeps what an
    # ordinary one needs: to ask the system for that anew took a fifth of each page.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    # Of SQLite's file a connection keeps little; the system keeps the rest.
    "REDRIVE_SQLITE_CACHE_KB": "1000",
}


def server(port: int, application: str = "dashboard.wsgi:application") -> list[str]:
    """What follows `python`: granian, one process whose threads each keep a connection to the database."""
    return [
        "-m", "granian", "--interface", "wsgi", "--host", "127.0.0.1", "--port", str(port),
        "--workers", "1", "--blocking-threads", str(THREADS), "--workers-kill-timeout", "2",
        "--log-level", "warning", application,
    ]  # fmt: skip
