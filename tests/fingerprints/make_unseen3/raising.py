"""Runs in a throw-away environment: calls functions of the application that fail, prints a line each. The servers that the calls meet
are inside; names of hosts lead to them. What Celery tells is pickled and read back, as between a pool's child and its worker."""

import http.server
import importlib
import json
import pickle
import socket
import sys
import threading
import time
import traceback
import warnings

warnings.simplefilter("ignore")


class Web(http.server.BaseHTTPRequestHandler):
    answers = ()

    def answer(self):
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode("latin-1")
        for host, piece, status, body, wait, *headers in self.answers:
            if self.headers["Host"].startswith(host) and piece in self.path + " " + sent:
                break
        else:
            status, body, wait, headers = 404, {"detail": "no such thing"}, 0, []
        time.sleep(wait)
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/xml" if raw.startswith(b"<") else "application/json")
            self.send_header("Content-Length", str(len(raw)))
            for name, value in (headers[0] if headers else {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(raw)
        except OSError:
            pass

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


def resolving(port, closed):
    ask = socket.getaddrinfo
    connect = socket.create_connection

    def lead(host, service):
        name = host.decode() if isinstance(host, bytes) else host
        if name and name.endswith(".example"):
            return "127.0.0.1", closed if name.startswith("down") else port
        return host, service

    socket.getaddrinfo = lambda host, service, *args, **kwargs: ask(*lead(host, service), *args, **kwargs)
    socket.create_connection = lambda address, *args, **kwargs: connect(lead(*address), *args, **kwargs)


def plainly(work, values):
    try:
        work(**values)
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next))
        return {"type": named(type(error)), "trace": text}
    return {"type": None, "trace": ""}


def by_celery(work, values):
    import celery

    from celery import signals

    from jobs_admin.worker import outcome

    heard = []

    def listening(einfo, **_):
        heard.append(pickle.loads(pickle.dumps(einfo)))

    if keep := getattr(outcome, "keep_raised", None):  # guards from version 3 of the rules on
        signals.task_failure.connect(keep)
    signals.task_failure.connect(listening)
    name = f"grid.{work.__module__.rpartition('.')[2]}.{work.__name__}"
    task = celery.Celery("grid").task(work, name=name)
    task.apply(kwargs=values, throw=False)
    signals.task_failure.disconnect(listening)
    if not heard:
        return {"type": None, "trace": ""}
    told = outcome.outcome_of(None, heard[0])
    return {"type": told.error_type, "trace": told.trace, "message": told.message}


def named(kind):
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__


def main():
    asked = json.load(sys.stdin)
    sys.path[:0] = [asked["folder"], asked["project"]]
    Web.answers = asked["answers"]
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    resolving(web.server_address[1], asked["closed"])
    for call in asked["calls"]:
        work = getattr(importlib.import_module(call["module"]), call["function"])
        told = (by_celery if call["via"] == "celery" else plainly)(work, call["values"])
        print(json.dumps({"id": call["id"], **told}), flush=True)


main()
