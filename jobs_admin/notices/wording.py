"""Text of a notice, with the same facts for every kind of channel."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs_admin import config
from jobs_admin.core.alert_metrics import METRICS, Link
from jobs_admin.core.text import representable
from jobs_admin.models import Notice

LARGEST = 20_000  # bytes of a webhook's body
_LONGEST_TEXT, _MOST_ITEMS = 1_000, 20
LONGEST_ADDRESS = 2_000
# Omitted first if a body is too large.
_SPARED = ("also", "top_groups", "crashes", "workers", "failures_url", "replay_url")
_FACTS = {
    "source": "Source", "queue": "Queue", "task": "Task", "value": "Value", "threshold": "Threshold", "since": "Since",
    "job_id": "Job", "error_type": "Error", "policy": "Policy", "replay": "Replay", "reason": "Reason",
    "breaker": "Breaker", "held": "Held jobs", "audit_head": "Audit head",
}  # fmt: skip
_LINKS = {
    "url": "Open", "failures_url": "Open failures", "replay_url": "Review and replay", "runbook": "Runbook",
    "runbook_url": "Runbook",
}  # fmt: skip


# Jobs in quarantine are readmitted from their list: that link comes first.
_QUARANTINE_LINKS = {"failures_url": "Open quarantined jobs", "url": "Open alert", "runbook": "Runbook"}


@dataclass(frozen=True, slots=True)
class NoticeText:
    """A notice as text for people."""

    title: str  # one line
    message: str
    facts: tuple[tuple[str, str], ...]
    groups: tuple[str, ...]  # most frequent failures, one per line
    links: tuple[tuple[str, str], ...]  # text and address


def body(notice: Notice) -> dict[str, Any]:
    """Return the complete body of the webhook: type, timestamp, data. The same at every try, and at most LARGEST bytes."""
    document = {"type": notice.type, "timestamp": notice.created_at.isoformat(), "data": data(notice)}
    for spared in (None, *_SPARED):
        document["data"].pop(spared, None)
        if len(encode_body(document)) <= LARGEST:
            return document
    about = document["data"]
    document["data"] = {
        name: about[name] for name in ("title", "message", "url", "severity", "audit_head") if name in about
    }
    return document


def encode_body(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def data(notice: Notice) -> dict[str, Any]:
    """Return the stored body, each text and list bounded, with the addresses of the pages it is about.

    An address is complete or omitted: the beginning of one leads elsewhere.
    """
    given = notice.body if isinstance(notice.body, Mapping) else {}
    about = _each_bounded(given)
    about.setdefault("severity", notice.severity or "info")
    if notice.source and notice.source != "*":
        about.setdefault("source", notice.source)
    for name in ("failure", "replay"):
        if isinstance(about.get(name), int) and "url" not in about:
            about["url"] = config.page_at(f"{name}s/{about[name]}/")
    return about


def build_text(notice: Notice) -> NoticeText:
    about = data(notice)
    groups = about.get("top_groups")
    metric = METRICS.get(str(about.get("metric")))
    labels = _QUARANTINE_LINKS if metric is not None and metric.link is Link.QUARANTINE else _LINKS
    return NoticeText(
        title=_line(about.get("title") or notice.type),
        message=_text(about.get("message")),
        facts=tuple((word, _line(_number(about[name]))) for name, word in _FACTS.items() if _is_fact(about.get(name))),
        groups=tuple(
            f"{_number(group.get('count', '?'))} × {_line(group.get('title', ''))}"
            for group in (groups if isinstance(groups, list) else ())
            if isinstance(group, Mapping)
        )[:5],
        links=tuple(
            (words, address)
            for name, words in labels.items()
            if isinstance(address := about.get(name), str) and address.startswith(("https://", "http://"))
        ),
    )


def dedup_key(notice: Notice) -> str:
    """Return the key that related notices share: of an alert's bundle, a replay, otherwise the notice itself."""
    about = notice.body if isinstance(notice.body, Mapping) else {}
    if isinstance(about.get("dedup_key"), str) and about["dedup_key"]:
        return about["dedup_key"][:250]
    if notice.type.startswith("replay.") and "replay" in about:
        return f"redrive-replay-{about['replay']}"[:250]
    return f"redrive-{notice.key}"[:250]


def _bounded(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        value = representable(value)
        return value if len(value) <= _LONGEST_TEXT else value[: _LONGEST_TEXT - 1] + "…"
    if isinstance(value, Mapping) and depth < 4:
        return _each_bounded(dict(list(value.items())[:50]), depth + 1)
    if isinstance(value, list | tuple) and depth < 4:
        return [_bounded(one, depth + 1) for one in value[:_MOST_ITEMS]]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _bounded(str(value), depth)


def _each_bounded(given: Mapping[Any, Any], depth: int = 0) -> dict[str, Any]:
    return {
        str(name)[:100]: representable(one) if _is_address(name, one) else _bounded(one, depth)
        for name, one in given.items()
        if not (_is_address(name, one) and len(one) > LONGEST_ADDRESS)
    }


def _is_address(name: Any, value: Any) -> bool:
    return isinstance(value, str) and (str(name) in _LINKS or str(name).endswith("url"))


def _is_fact(value: Any) -> bool:
    return value not in (None, "") and isinstance(value, str | int | float)


def _number(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"


def _line(value: Any) -> str:
    """Return the value on one line: characters that break or hide text become spaces."""
    text = "".join(c if c.isprintable() else " " for c in representable(str(value)))
    return " ".join(text.split())[:300]


def _text(value: Any) -> str:
    if value is None:
        return ""
    return "".join(c if c.isprintable() or c == "\n" else " " for c in representable(str(value)))[:_LONGEST_TEXT]
