"""JSON of commands: the same as the API's answer."""

from __future__ import annotations

import json
from typing import Any

from ninja import Schema
from ninja.responses import NinjaJSONEncoder


def render_json(shape: type[Schema], answer: Any) -> str:
    """Return the answer as the API renders it, on one line."""
    return json.dumps(shape.model_validate(answer).model_dump(), cls=NinjaJSONEncoder)
