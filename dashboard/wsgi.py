from __future__ import annotations

import gc
import os
from importlib import import_module

from django.conf import settings
from django.core.wsgi import get_wsgi_application

from jobs_admin.db import schema

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dashboard.settings")
_django = get_wsgi_application()
if _newer := schema.newer_sentence():
    raise SystemExit(_newer)
import_module(settings.ROOT_URLCONF)  # imports every view, so that the first page does not wait for it
# Objects loaded so far are permanent: the collector need not traverse them (20 ms within a page).
gc.collect()
gc.freeze()


def application(environ, start_response):
    """Serve Redrive's pages below REDRIVE_URL_PREFIX, whether or not the proxy removes the prefix."""
    prefix = settings.FORCE_SCRIPT_NAME or ""
    path = environ.get("PATH_INFO", "")
    if prefix and (path == prefix or path.startswith(prefix + "/")):
        environ["PATH_INFO"] = path[len(prefix) :] or "/"
    return _django(environ, start_response)
