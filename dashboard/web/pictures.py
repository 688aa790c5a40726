"""Icons, states and small charts as SVG: colour, shape and word."""

from __future__ import annotations

from functools import lru_cache

from django.templatetags.static import static
from django.utils.html import format_html
from django.utils.safestring import SafeString

# Colour (a class of parts.css) and shape (a symbol of the sprite) of each state. The word is always shown beside them.
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
    # breakers; "observed": open, but not holding jobs
    "open": "dead", "half_open": "replaying", "closed": "recovered", "observed": "retrying", "off": "discarded",
    # attempts
    "exception": "dead", "retry": "retrying", "success": "recovered", "lost": "dead",
}  # fmt: skip


# Labels of states that differ from their names. An ongoing group is one that was seen before: its failures may have ended.
_CALLED = {"planned": "not sent yet", "ongoing": "known"}


@lru_cache(maxsize=256)
def icon(name: str, label: str = ""):
    """Return an icon of the sprite, decorative unless it has a label."""
    href = f"{static('redrive/icons/sprite.svg')}#{name}"
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="{}"></use></svg>', label, href)
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"></use></svg>', href)


@lru_cache(maxsize=256)  # once per row, with few distinct arguments
def state(name: str, words: str = ""):
    """Return a state as colour, shape and word."""
    tone = STATES.get(str(name), "discarded")
    href = f"{static('redrive/icons/sprite.svg')}#state-{tone}"
    return format_html(
        '<span class="state is-{}"><svg class="shape" aria-hidden="true"><use href="{}"></use></svg>{}</span>',
        tone,
        href,
        words or _CALLED.get(str(name)) or str(name).replace("_", " "),
    )


def sparkline(values, words: str = "", tone: str = "dead"):
    """Return a small chart of counts, oldest first, one bar per value; `words` describe it."""
    values = tuple(max(0, int(v or 0)) for v in values or ())
    return _sparkline(values, words or f"peak {max(values, default=0):,}", tone)


@lru_cache(maxsize=1024)  # most groups are unchanged from one moment to the next
def _sparkline(values: tuple[int, ...], words: str, tone: str):
    # Short markup, because fifty charts are half the size of a page. The gaps between the bars are a style.
    height, most = 22, max(values, default=0)
    talls = (max(round(value / most * height), 1) if value else 0 for value in values)  # a single failure stays visible
    bars = "".join(f"V{height - tall}h1" for tall in talls)
    return format_html(
        '<svg class="sparkline is-{}" role="img" viewBox="0 0 {} {}" preserveAspectRatio="none"><title>{}</title>'
        '<path d="M0 {}{}V{}"></path></svg>',
        tone, max(len(values), 1), height, words, height, SafeString(bars), height,
    )  # fmt: skip


def share(part, total) -> str:
    """Return the width of a bar for `part` of `whole`, 0 to 100, for an SVG attribute."""
    return f"{min(100, max(0, part / total * 100)):.1f}" if total else "0"
