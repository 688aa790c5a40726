"""Texts that people paste: blocks of real logs, each with the error that its failure was recorded with.

`{id}` stands for the id of its job. Celery's lines are those of `celery.app.trace` and `celery.worker` 5.3 to 5.7, under
the formats of its worker, of its task logger, of `logging.basicConfig` and of `kubectl logs`.
"""

from __future__ import annotations

import json
from typing import NamedTuple


class Block(NamedTuple):
    name: str
    error_type: str
    message: str
    text: str


_HEAD = "[2026-11-21 10:50:01,123: ERROR/ForkPoolWorker-1] "
_TASK = _HEAD + "Task shop.hooks.send[{id}] raised unexpected: "
_UNAVAILABLE = (
    "Server error '503 Service Unavailable' for url 'https://partner.example/v1/mail'\n"
    "For more information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/503"
)
_REPR = """HTTPStatusError("Server error '503 Service Unavailable' for url 'https://partner.example/v1/mail'\\nFor more \
information check: https://developer.mozilla.org/en-US/docs/Web/HTTP/Status/503")"""
_FRAMES = """Traceback (most recent call last):
  File "/usr/lib/python3.12/site-packages/celery/app/trace.py", line 453, in trace_task
    R = retval = fun(*args, **kwargs)
                 ^^^^^^^^^^^^^^^^^^^^
  File "/app/demo/wire.py", line 63, in post
    answer = client.post(url, json=body)
"""
_RESET = "httpx.ReadError", "[Errno 104] Connection reset by peer"
_DECLINED = "stripe.error.CardError", "Your card was declined (insufficient_funds)"
_KEY = "KeyError", "'customer_reference'"
_GONE = (
    "sqlalchemy.exc.OperationalError",
    (
        "(psycopg2.OperationalError) server closed the connection unexpectedly\n\tThis probably means the server terminated "
        "abnormally\n\tbefore or while processing the request.\n\n[SQL: SELECT stock.id FROM stock WHERE stock.sku = %(sku)s]"
    ),
)
_NAME = "socket.gaierror", "[Errno -2] Name or service not known"
_LOST = "billiard.exceptions.WorkerLostError", "Worker exited prematurely: signal 9 (SIGKILL) Job: 31."


def _json(**values) -> str:
    return json.dumps({"time": "2026-11-21T10:50:01.123Z", "level": "error", "logger": "celery.app.trace", **values})


BLOCKS = [
    # -- lines of Celery's worker
    Block("celery raised", "httpx.HTTPStatusError", _UNAVAILABLE, _TASK + _REPR),
    Block("celery raised, 5.7 thread pool", *_KEY, "[2026-11-21 10:50:01,123: ERROR/MainProcess] Task shop.carts.sum[{id}] raised unexpected: KeyError('customer_reference')"),
    Block("celery raised expected", *_DECLINED, "[2026-11-21 10:50:01,123: INFO/ForkPoolWorker-4] Task shop.pay[{id}] raised expected: CardError('Your card was declined (insufficient_funds)')"),
    Block("celery raised, with its traceback", *_RESET, _TASK + "ReadError('[Errno 104] Connection reset by peer')\n" + _FRAMES + "httpx.ReadError: [Errno 104] Connection reset by peer"),
    Block("celery raised, the next lines too", *_RESET, _TASK + "ReadError('[Errno 104] Connection reset by peer')\n" + _FRAMES + "httpx.ReadError: [Errno 104] Connection reset by peer\n[2026-11-21 10:50:02,001: INFO/MainProcess] Task shop.other[0b0b0b0b-1111-4222-8333-444455556666] received"),
    Block("celery retry in", "httpx.HTTPStatusError", _UNAVAILABLE, "[2026-11-21 10:50:01,123: INFO/ForkPoolWorker-1] Task shop.hooks.send[{id}] retry: Retry in 3s: " + _REPR),
    Block("celery retry at", *_RESET, "[2026-11-21 10:50:01,123: INFO/ForkPoolWorker-2] Task shop.hooks.send[{id}] retry: Retry at 2026-11-21 10:55:00+00:00: ReadError('[Errno 104] Connection reset by peer')"),
    Block("celery internal error", *_KEY, _HEAD + "Task shop.hooks.send[{id}] INTERNAL ERROR: KeyError('customer_reference')"),
    Block("celery handler", *_LOST, "[2026-11-21 10:50:01,123: ERROR/MainProcess] Task handler raised error: WorkerLostError('Worker exited prematurely: signal 9 (SIGKILL) Job: 31.')"),
    Block("celery handler, with its traceback", *_LOST, "[2026-11-21 10:50:01,123: ERROR/MainProcess] Task handler raised error: WorkerLostError('Worker exited prematurely: signal 9 (SIGKILL) Job: 31.')\n" + 'Traceback (most recent call last):\n  File "/v/billiard/pool.py", line 1264, in mark_as_worker_lost\n    raise WorkerLostError(\nbilliard.exceptions.WorkerLostError: Worker exited prematurely: signal 9 (SIGKILL) Job: 31.'),
    Block("celery two arguments", "ConnectionResetError", "[Errno 104] Connection reset by peer", _TASK + "ConnectionResetError(104, 'Connection reset by peer')"),
    Block("celery repr with an escaped quote", "ValueError", "can't read \"total\" of 'order'", _TASK + "ValueError('can\\'t read \"total\" of \\'order\\'')"),
    Block("celery repr with tabs and lines", *_GONE, _TASK + "OperationalError('(psycopg2.OperationalError) server closed the connection unexpectedly\\n\\tThis probably means the server terminated abnormally\\n\\tbefore or while processing the request.\\n')"),
    Block("celery without a task name's dot", *_KEY, "2026-11-21 10:50:01,123 ERROR celery.app.trace: Task fail[{id}] raised unexpected: KeyError('customer_reference')"),
    Block("celery under basicConfig", *_NAME, "ERROR:celery.app.trace:Task shop.dns[{id}] raised unexpected: gaierror(-2, 'Name or service not known')"),
    Block("celery under kubectl", *_RESET, "2026-11-21T10:50:01.123456789Z stderr F [2026-11-21 10:50:01,123: ERROR/ForkPoolWorker-1] Task shop.hooks.send[{id}] raised unexpected: ReadError('[Errno 104] Connection reset by peer')"),
    Block("celery task logger", *_DECLINED, "[2026-11-21 10:50:01,123: WARNING/ForkPoolWorker-1] shop.pay[{id}]: Your card was declined (insufficient_funds)"),
    # -- tracebacks
    Block("traceback", *_RESET, _FRAMES + "httpx.ReadError: [Errno 104] Connection reset by peer\n"),
    Block("traceback, its last lines", *_RESET, '  File "/app/demo/wire.py", line 63, in post\n    answer = client.post(url, json=body)\nhttpx.ReadError: [Errno 104] Connection reset by peer'),
    Block("traceback in a field of one line", *_RESET, ("".join(_FRAMES) + "httpx.ReadError: [Errno 104] Connection reset by peer").replace("\n", " ")),
    Block("traceback without a message", "AssertionError", "", _FRAMES + "AssertionError"),
    Block("traceback of a message with lines", *_GONE, _FRAMES + f"{_GONE[0]}: {_GONE[1]}\n(Background on this error at: https://sqlalche.me/e/20/e3q8)"),
    Block("traceback of two errors", *_DECLINED, _FRAMES + "KeyError: 'card'\n\nDuring handling of the above exception, another exception occurred:\n\n" + _FRAMES + "stripe.error.CardError: Your card was declined (insufficient_funds)"),
    Block("traceback of a lower-case class", *_NAME, _FRAMES + "socket.gaierror: [Errno -2] Name or service not known"),
    Block("traceback of gunicorn", *_KEY, "[2026-11-21 10:50:01 +0000] [17] [ERROR] Error handling request /hooks/?a=1\nTraceback (most recent call last):\n" + '  File "/v/gunicorn/workers/sync.py", line 134, in handle\n    self.handle_request(listener, req, client, addr)\n' + "KeyError: 'customer_reference'\n[2026-11-21 10:50:02 +0000] [17] [INFO] Worker exiting (pid: 17)"),
    Block("traceback longer than a search", *_KEY, "Traceback (most recent call last):\n" + "".join(f'  File "/app/shop/deep_{n}.py", line {n}, in step_{n}\n    return following_{n}(order, *rest)\n' for n in range(80)) + "KeyError: 'customer_reference'"),
    Block("traceback of notes", *_RESET, _FRAMES.replace("    answer", "    answer") + "httpx.ReadError: [Errno 104] Connection reset by peer\nwhile sending the third mail"),
    # -- JSON and others
    Block("json with a traceback", *_RESET, _json(message="Task shop.hooks.send[{id}] raised unexpected: ReadError('[Errno 104] Connection reset by peer')", exc_info=_FRAMES + "httpx.ReadError: [Errno 104] Connection reset by peer")),
    Block("json with an error of its own", *_DECLINED, _json(event="payment failed", error={"type": "CardError", "message": "Your card was declined (insufficient_funds)"}, task_id="{id}")),
    Block("json with a repr", "httpx.HTTPStatusError", _UNAVAILABLE, _json(message="Task shop.hooks.send[{id}] retry: Retry in 3s: " + _REPR)),
    Block("json that was cut off", *_RESET, _json(exc_info=_FRAMES + "httpx.ReadError: [Errno 104] Connection reset by peer", pid=17)[:-4]),
    Block("json behind a head", *_KEY, "web-3 | " + _json(exception="KeyError: 'customer_reference'", job="{id}")),
    Block("a repr alone", "httpx.HTTPStatusError", _UNAVAILABLE, _REPR),
    Block("a line with words before the error", *_DECLINED, "2026-11-21 10:50:01 ERROR shop.pay: charging failed: stripe.error.CardError: Your card was declined (insufficient_funds)"),
    Block("a line of syslog", *_NAME, "Nov 21 10:50:01 web-3 celery[812]: ERROR shop.dns failed: [Errno -2] Name or service not known"),
    Block("lines as backslash-n", *_GONE, "server closed the connection unexpectedly\\n\\tThis probably means the server terminated abnormally\\n\\tbefore or while processing the request."),
]  # fmt: skip

# Lines that say nothing of an error: the job alone can be meant.
JOBS = [
    "[2026-11-21 10:50:01,123: INFO/MainProcess] Task shop.hooks.send[{id}] received",
    "[2026-11-21 10:50:01,123: INFO/ForkPoolWorker-1] Task shop.hooks.send[{id}] succeeded in 0.0123s: None",
    "[2026-11-21 10:50:01,123: ERROR/MainProcess] Hard time limit (300s) exceeded for shop.hooks.send[{id}]",
    "[2026-11-21 10:50:01,123: WARNING/MainProcess] Soft time limit (60s) exceeded for shop.hooks.send[{id}]",
    "[2026-11-21 10:50:01,123: INFO/MainProcess] Discarding revoked task: shop.hooks.send[{id}]",
    "[2026-11-21 10:50:01,123: INFO/ForkPoolWorker-1] Task shop.hooks.send[{id}] ignored",
    "[2026-11-21 10:50:01,123: DEBUG/MainProcess] TaskPool: Apply <function fast_trace_task at 0x7f> (args:('shop.hooks.send', '{id}', {{'lang': 'py'}}))",
    'worker_1  | {{"task_id": "{id}", "level": "warning"}}',
]  # fmt: skip
