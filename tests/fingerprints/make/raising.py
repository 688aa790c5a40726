"""Runs in a throw-away environment: calls functions of the shop that fail, and prints what they raised, a line each.

Reads JSON from its standard input: {"folder": …, "calls": [{"id", "module", "function", "values", "via"}]}. `via` is
`celery` for a task that Celery runs (its traceback begins in celery/app/trace.py), `plain` for a call whose
traceback begins in the application.
"""

import importlib
import json
import sys
import traceback
import warnings

warnings.simplefilter("ignore")


def plainly(work, values):
    try:
        work(**values)
    except BaseException as error:
        # Without our own frame: the application is called by nobody.
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__.tb_next))
        return {"type": named(type(error)), "trace": text}
    return {"type": None, "trace": ""}


def by_celery(work, values):
    """What Celery tells of a failed task: the error as it crosses to the worker's main process, and its class."""
    from celery import Celery
    from celery.utils.serialization import UnpickleableExceptionWrapper

    heard = []

    class Listening(Celery.task_cls if isinstance(Celery.task_cls, type) else __import__("celery").Task):
        def on_failure(self, error, task_id, args, kwargs, einfo):
            heard.append((error, einfo))

    # The task is the application's function itself, as a decorator would make it.
    task = Celery("shop").task(work, name="shop." + work.__name__, base=Listening)
    task.apply(kwargs=values, throw=False)
    if not heard:
        return {"type": None, "trace": ""}
    error, einfo = heard[0]
    if isinstance(error, UnpickleableExceptionWrapper):
        name = error.exc_cls_name if error.exc_module in ("", "builtins") else error.exc_module + "." + error.exc_cls_name
        return {"type": name, "trace": einfo.traceback, "message": str(error.text or "")}
    told = {"type": named(type(error)), "trace": einfo.traceback}
    if isinstance(einfo.type, type) and einfo.type is not UnpickleableExceptionWrapper:
        told["raised"] = named(einfo.type)
    return told


def named(kind):
    return kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "." + kind.__qualname__


def main():
    asked = json.load(sys.stdin)
    sys.path.insert(0, asked["folder"])
    for call in asked["calls"]:
        try:
            work = getattr(importlib.import_module(call["module"]), call["function"])
        except ImportError as error:
            print(json.dumps({"id": call["id"], "missing": str(error)}), flush=True)
            continue
        told = (by_celery if call["via"] == "celery" else plainly)(work, call["values"])
        print(json.dumps({"id": call["id"], **told}), flush=True)


main()
