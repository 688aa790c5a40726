"""Redrive's own template engine: pages look alike in every project, whatever its TEMPLATES say."""

from __future__ import annotations

from functools import cache
from typing import Any

import django
from django.http import HttpRequest, HttpResponse
from django.template.backends.django import DjangoTemplates
from django.template.context import make_context

from dashboard import TEMPLATES


@cache
def engine() -> DjangoTemplates:
    loader: Any = ("django.template.loaders.cached.Loader", ["django.template.loaders.filesystem.Loader"])
    builtins = []
    if django.VERSION < (6, 0):  # which has `{% partialdef %}` itself
        loader, builtins = ("template_partials.loader.Loader", [loader]), ["template_partials.templatetags.partials"]
    options = {
        "context_processors": [
            "django.template.context_processors.request",
            "django.contrib.auth.context_processors.auth",
        ],
        "builtins": builtins,
        "loaders": [loader],
        "libraries": {"redrive": "dashboard.templatetags.redrive"},
    }
    return DjangoTemplates({"NAME": "redrive", "DIRS": [TEMPLATES], "APP_DIRS": False, "OPTIONS": options})


def render_to_string(name: str, context: dict | None = None, request: HttpRequest | None = None) -> str:
    """Render a template, or the part of it that stands after `#` in its name."""
    bound = make_context(context, request, autoescape=True)
    bound.use_l10n = False  # a project's separators would break numbers in addresses and pictures
    return engine().get_template(name).template.render(bound)


def render(request: HttpRequest, name: str, context: dict | None = None, status: int = 200) -> HttpResponse:
    return HttpResponse(render_to_string(name, context, request), status=status)
