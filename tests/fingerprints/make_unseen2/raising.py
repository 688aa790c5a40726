"""Runs in a throw-away environment: calls functions of the application that fail, prints a line each; like `make/raising.py`,
but with the servers the calls meet inside, names of hosts that lead to them, and tasks that are bound."""

import http.server
import importlib
import json
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
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for host, piece, status, body, wait in self.answers:
            if self.headers["Host"].startswith(host) and piece in self.path:
                break
        else:
            status, body, wait = 404, {"detail": "no such thing"}, 0
        time.sleep(wait)
        raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml" if raw.startswith(b"<") else "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = do_PUT = answer

    def log_message(self, *_):
        pass


def smtp(refusal):
    server = socket.create_server(("127.0.0.1", 0))

    def one():
        while True:
            peer = server.accept()[0]
            lines = peer.makefile("rwb")

            def say(text, lines=lines):
                lines.write(text.encode() + b"\r\n")
                lines.flush()

            say("220 mx ready")
            for line in lines:
                word = line.decode().strip()
                if word.upper().startswith("RCPT"):
                    say(refusal.format(to=word[8:].strip("<>")))
                elif word.upper().startswith("QUIT"):
                    say("221 bye")
                    break
                else:
                    say("250 mx")
            peer.close()

    threading.Thread(target=one, daemon=True).start()
    return server.getsockname()[1]


def resolving(port, closed):
    ask = socket.getaddrinfo

    def getaddrinfo(host, service, *args, **kwargs):
        name = host.decode() if isinstance(host, bytes) else host
        if name and name.endswith(".example"):
            return ask("127.0.0.1", closed if name.startswith("down") else port, *args, **kwargs)
        return ask(host, service, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo


def plainly(work, values):
    try:
        work(**values)
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next))
        return {"type": named(type(error)), "trace": text}
    return {"type": None, "trace": ""}


def by_celery(work, values):
    import celery
    from celery.utils.serialization import UnpickleableExceptionWrapper

    heard = []

    class Listening(celery.Task):
        def on_failure(self, error, task_id, args, kwargs, einfo):
            heard.append((error, einfo))

    name = f"fulfil.{work.__module__.rpartition('.')[2]}.{work.__name__}"
    task = celery.Celery("fulfil").task(work, name=name, base=Listening, bind=getattr(work, "bound", False))
    task.apply(kwargs=values, throw=False)
    if not heard:
        return {"type": None, "trace": ""}
    error, einfo = heard[0]
    if isinstance(error, UnpickleableExceptionWrapper):
        kind = error.exc_cls_name if error.exc_module in ("", "builtins") else error.exc_module + "." + error.exc_cls_name
        return {"type": kind, "trace": einfo.traceback, "message": str(error.text or "")}
    told = {"type": named(type(error)), "trace": einfo.traceback}
    if isinstance(einfo.type, type) and einfo.type is not UnpickleableExceptionWrapper:
        told["raised"] = named(einfo.type)
    return told


def named(kind):
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__


def main():
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["folder"])
    Web.answers = asked["answers"]
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Web)
    web.daemon_threads = True
    threading.Thread(target=web.serve_forever, daemon=True).start()
    resolving(web.server_address[1], asked["closed"])
    mail = {f"@{name}": smtp(refusal) for name, refusal in asked["mail"].items()}
    for call in asked["calls"]:
        values = {k: mail.get(v, v.replace("@web", str(web.server_address[1]))) if isinstance(v, str) else v for k, v in call["values"].items()}
        work = getattr(importlib.import_module(call["module"]), call["function"])
        told = (by_celery if call["via"] == "celery" else plainly)(work, values)
        print(json.dumps({"id": call["id"], **told}), flush=True)


main()
