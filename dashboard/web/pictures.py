"""Icons, states and small charts: colour, shape and word, as SVG."""

from __future__ import annotations

from functools import lru_cache

from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

# Each state's colour (a class of parts.css) and shape (a symbol of the sprite). The word stands beside them.
STATES = {
    "dead": "dead", "retrying": "retrying", "recovered": "recovered", "replaying": "replaying",
    "quarantined": "quarantined", "discarded": "discarded", "gone": "discarded",
    # groups
    "new": "dead", "ongoing": "retrying", "regressed": "dead", "resolved": "recovered", "muted": "discarded",
    # replays and their items
    "draft": "discarded", "awaiting_approval": "quarantined", "waiting": "replaying", "canary": "replaying",
    "ramping": "replaying", "running": "replaying", "held": "retrying", "paused": "retrying", "done": "recovered",
    "stopped": "dead", "cancelled": "discarded", "planned": "discarded", "sent": "replaying",
    "succeeded": "recovered", "failed_again": "dead", "uncertain": "quarantined",
    # alerts
    "pending": "discarded", "firing": "dead", "acknowledged": "retrying", "silenced": "discarded",
    # sources and steps
    "reachable": "recovered", "unreachable": "dead", "unknown": "discarded", "late": "retrying",
    # attempts
    "exception": "dead", "retry": "retrying", "success": "recovered", "lost": "dead",
}  # fmt: skip


# What a state is called where that is not its name.
_CALLED = {"planned": "not sent yet"}


@lru_cache(maxsize=256)
def icon(name: str, label: str = ""):
    """A picture of the sprite; decoration unless it has a label."""
    href = f"{static('redrive/icons/sprite.svg')}#{name}"
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="{}"></use></svg>', label, href)
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"></use></svg>', href)


@lru_cache(maxsize=256)  # asked once a row, always the same few
def state(name: str, words: str = ""):
    """A state: colour, shape and word."""
    tone = STATES.get(str(name), "discarded")
    href = f"{static('redrive/icons/sprite.svg')}#state-{tone}"
    return format_html(
        '<span class="state is-{}"><svg class="shape" aria-hidden="true"><use href="{}"></use></svg>{}</span>',
        tone,
        href,
        words or _CALLED.get(str(name)) or str(name).replace("_", " "),
    )


def sparkline(values, words: str = "", tone: str = "dead"):
    """A small picture of counts over time, oldest first, one bar a value; `words` say what it shows."""
    values = tuple(max(0, int(v or 0)) for v in values or ())
    return _sparkline(values, words or f"peak {max(values, default=0):,}", tone)


@lru_cache(maxsize=1024)  # most groups look as they did a moment ago
def _sparkline(values: tuple[int, ...], words: str, tone: str):
    # Few letters: fifty pictures are half of what a page weighs. The gaps between the bars are cut out by a style.
    height, most = 22, max(values, default=0)
    talls = (
        max(round(value / most * height), 1) if value else 0 for value in values
    )  # one failure is a visible failure
    bars = "".join(f"V{height - tall}h1" for tall in talls)
    return format_html(
        '<svg class="sparkline is-{}" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none"><title>{}</title>'
        '<path d="M0 {}{}V{}"></path></svg>',
        tone, max(len(values), 1), height, words, height, SafeString(bars), height,
    )  # fmt: skip


def share(part, total) -> str:
    """The width of a bar of `part` in `whole`, 0 to 100, for an SVG attribute."""
    return f"{min(100, max(0, part / total * 100)):.1f}" if total else "0"
