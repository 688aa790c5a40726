"""Static files: Redrive's own minified, all named by hash and compressed once, when collected."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rcssmin
from django.conf import settings
from django.core.files.base import ContentFile, File
from whitenoise.compress import Compressor
from whitenoise.storage import CompressedManifestStaticFilesStorage

# Files that Redrive's own pages load. Brotli at its best level takes three seconds for the files of Django's admin, at
# the first start.
_OF_PAGES = ("redrive/", "django_htmx/htmx-2.min")


_COMMENT = re.compile(r"^\s*//.*$", re.M)
_AROUND_LINES = re.compile(r"\s*\n\s*")


def _without_comments(script: str) -> str:
    """Return the script without comment lines and indentation; `test_first_view.py` checks: no string spans lines."""
    return _AROUND_LINES.sub("\n", _COMMENT.sub("", script)).strip()


# Comments and indentation are a quarter of the size; third-party files are not changed.
_MINIFIERS = {"redrive/css/": rcssmin.cssmin, "redrive/js/": _without_comments}


def minify(name: str, text: str) -> str:
    """Return the static file as browsers get it."""
    for folder, minified in _MINIFIERS.items():
        if name.startswith(folder):
            return minified(text)
    return text


class Storage(CompressedManifestStaticFilesStorage):
    def post_process(self, paths: dict[str, Any], *arguments: Any, **options: Any) -> Iterator[Any]:
        minified = {name: (_Minified(storage), path) for name, (storage, path) in paths.items()}
        return super().post_process(minified, *arguments, **options)

    def create_compressor(self, **options: object) -> Compressor:
        return _BrotliForPages(**options)


class _Minified:
    """Finder that minifies Redrive's own files as they are read."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self.storage, name)

    def open(self, path: str, mode: str = "rb") -> File:
        file = self.storage.open(path, mode)
        name = path.replace("\\", "/")
        if not name.startswith(tuple(_MINIFIERS)):
            return file
        with file:
            return ContentFile(minify(name, file.read().decode()).encode(), name=path)


class _BrotliForPages(Compressor):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.only_gzip = Compressor(**options, use_brotli=False)

    def compress(self, path: str) -> list[str]:
        name = Path(path).relative_to(settings.STATIC_ROOT).as_posix()
        return super().compress(path) if name.startswith(_OF_PAGES) else self.only_gzip.compress(path)
