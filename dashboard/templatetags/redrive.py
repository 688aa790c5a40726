"""How values look on every page: numbers, times, states, names that strangers chose."""

from __future__ import annotations

import datetime as dt
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from django import template
from django.conf import settings
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join

from dashboard.toasts import toasts as said
from jobs_admin import config, overview
from jobs_admin.models.access import ADMIN, OPERATOR, VIEWER, viewer_of

register = template.Library()

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
    # sources and steps
    "reachable": "recovered", "unreachable": "dead", "unknown": "discarded", "late": "retrying",
    # attempts
    "exception": "dead", "retry": "retrying", "success": "recovered", "lost": "dead",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A page of the rail."""

    name: str
    url: str
    icon: str
    key: str  # pressed after `g`
    is_here: bool


@dataclass(frozen=True, slots=True)
class Shell:
    places: list[Place]
    is_read_only: bool
    may_see: bool
    may_operate: bool
    may_administer: bool


_PLACES = (
    ("Overview", "overview", "overview", "o", ()),
    ("Groups", "group-list", "groups", "u", ("group-",)),
    ("Failures", "failure-list", "failures", "f", ("failure-",)),
    ("Replays", "replay-list", "replays", "r", ("replay-",)),
    ("Queues", "queue-list", "queues", "q", ("queue-",)),
    ("Audit", "audit-list", "table", "a", ("audit-",)),
    ("Demo", "demo", "demo", "d", ("demo",)),
)


@register.simple_tag(takes_context=True)
def shell(context) -> Shell:
    """What surrounds every page: the places to go, and what the person may do."""
    request = context.get("request")
    here = (request.resolver_match.url_name or "") if request and request.resolver_match else ""
    viewer = getattr(request, "viewer", None)
    if viewer is None and request is not None and getattr(request, "user", None) and request.user.is_authenticated:
        viewer = viewer_of(request.user)
    hidden = set()
    if not settings.REDRIVE_DEMO_BROKER_URL or not (viewer and viewer.role_on("shop")):
        hidden.add("demo")
    if not (viewer and viewer.may_anywhere(ADMIN)):
        hidden.add("audit-list")
    places = [
        Place(name, reverse(url_name), icon_name, key, here == url_name or here.startswith(prefixes or ("\0",)))
        for name, url_name, icon_name, key, prefixes in _PLACES
        if url_name not in hidden
    ]
    return Shell(
        places,
        config.is_read_only(),
        bool(viewer and viewer.may_anywhere(VIEWER)),
        bool(viewer and viewer.may_anywhere(OPERATOR)),
        bool(viewer and viewer.may_anywhere(ADMIN) and getattr(request, "user", None) and request.user.is_staff),
    )


@register.simple_tag
def guard_is_off() -> bool:
    """Whether `manage.py off` silences all workers."""
    return overview.guard_is_off()


@register.simple_tag(takes_context=True)
def toasts(context):
    """The messages of this answer (dashboard.toasts)."""
    request = context.get("request")
    return said(request) if request is not None and hasattr(request, "_messages") else []


@register.simple_tag
@lru_cache(maxsize=256)
def icon(name: str, label: str = ""):
    """A picture of the sprite; decoration unless it has a label."""
    href = f"{static('icons/sprite.svg')}#{name}"
    if label:
        return format_html('<svg class="icon" role="img" aria-label="{}"><use href="{}"></use></svg>', label, href)
    return format_html('<svg class="icon" aria-hidden="true"><use href="{}"></use></svg>', href)


@register.simple_tag
@lru_cache(maxsize=256)  # asked once a row, always the same few
def state(name: str, words: str = ""):
    """A state: colour, shape and word."""
    look = STATES.get(str(name), "discarded")
    href = f"{static('icons/sprite.svg')}#state-{look}"
    return format_html(
        '<span class="state is-{}"><svg class="shape" aria-hidden="true"><use href="{}"></use></svg>{}</span>',
        look,
        href,
        words or str(name).replace("_", " "),
    )


@register.filter
def number(value) -> str:
    """12304 -> 12,304; 3.14159 -> 3.1; None -> –."""
    if value is None or value == "":
        return "–"
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.1f}" if abs(value) < 100 else f"{value:,.0f}"
    try:
        return f"{int(value):,}"
    except (TypeError, ValueError):
        return str(value)


@register.filter
def percent(value) -> str:
    """0.1234 -> 12 %; a little is never nothing: 0.001 -> <1 %."""
    if value is None:
        return "–"
    if 0 < value < 0.01:
        return "<1 %"
    if 0.99 < value < 1:
        return ">99 %"
    return f"{value * 100:.0f} %"


_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


@register.filter
def duration(value) -> str:
    """Seconds (or a timedelta) in words: 0.042 -> 42 ms; 75 -> 1 min 15 s; 90000 -> 1 d 1 h."""
    if value is None:
        return "–"
    seconds = value.total_seconds() if isinstance(value, dt.timedelta) else float(value)
    sign = "−" if seconds < 0 else ""
    seconds = abs(seconds)
    if 0 < seconds < 0.9995:
        return f"{sign}{seconds * 1000:.0f} ms" if seconds >= 0.001 else f"{sign}<1 ms"
    if seconds < 9.95 and seconds != int(seconds):
        return f"{sign}{seconds:.1f} s"
    rest = round(seconds)
    for n, (size, unit) in enumerate(_UNITS):
        if rest >= size:
            whole, left = divmod(rest, size)
            words = f"{sign}{whole:,} {unit}"
            if n + 1 < len(_UNITS):
                smaller, small_unit = _UNITS[n + 1]
                if left // smaller and whole < 10:
                    words += f" {left // smaller} {small_unit}"
            return words
    return "0 s"


@register.filter
def ago(value, now=None):
    """A time as it feels, with the exact one on hover and for machines."""
    if value is None or value == "":
        return "–"
    now = now or timezone.now()
    seconds = (now - value).total_seconds()
    if abs(seconds) < 1:
        words = "now"
    else:
        rest = abs(seconds)
        size, unit = next(((s, u) for s, u in _UNITS if rest >= s), (1, "s"))
        words = f"{int(rest // size)} {unit} ago" if seconds > 0 else f"in {int(rest // size)} {unit}"
    return _time(value, words)


@register.filter
def clock(value):
    """A time as the clock showed it: 02:07 today, else 20 Nov 02:07. UTC."""
    if value is None or value == "":
        return "–"
    value = value.astimezone(dt.UTC)
    today = timezone.now().date() == value.date()
    return _time(value, value.strftime("%H:%M") if today else value.strftime("%-d %b %H:%M"))


def _time(value: dt.datetime, words: str):
    exact = value.astimezone(dt.UTC).isoformat(timespec="milliseconds")[:23]
    return format_html('<time datetime="{}Z" title="{} {} UTC">{}</time>', exact, exact[:10], exact[11:19], words)


# What would move, hide or reorder the text around it. Tabs and line ends are left to `pre`.
_INVISIBLE = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in _INVISIBLE and character not in "\n\t"


def _is_all_visible(text: str) -> bool:
    # What is printable has nothing invisible, and Python knows that at once: character by character it was a fifth
    # of a list's cost.
    return text.replace("\n", " ").replace("\t", " ").isprintable() or not any(map(_is_invisible, text))


@register.filter
def visible(value):
    """Text from strangers: control, direction and invisible characters are shown as their number, not obeyed."""
    text = str(value if value is not None else "")
    if _is_all_visible(text):
        return text
    pieces, plain = [], []
    for character in text:
        if _is_invisible(character):
            pieces.append(("", "".join(plain)))
            pieces.append((f"U+{ord(character):04X}", ""))
            plain = []
        else:
            plain.append(character)
    pieces.append(("", "".join(plain)))
    return format_html_join(
        "",
        "{}{}",
        (
            (format_html('<span class="unseen" title="invisible character">{}</span>', code) if code else "", words)
            for code, words in pieces
        ),
    )


@register.filter
def with_code(value):
    """Our own sentences: what stands between backticks is code."""
    pieces = str(value).split("`")
    return format_html_join(
        "", "{}", ((format_html("<code>{}</code>", words) if n % 2 else words,) for n, words in enumerate(pieces))
    )


@register.filter
def dotted(value):
    """A dotted name in large letters: it may break after a dot, not within a word."""
    return format_html_join("", "{}<wbr>", ((visible(part),) for part in re.findall(r"[^.]+\.?|\.", str(value))))


@register.filter
def visible_text(value) -> str:
    """The same for an attribute, where there is no markup."""
    text = str(value if value is not None else "")
    if _is_all_visible(text):
        return text
    return "".join(f"⟨U+{ord(c):04X}⟩" if _is_invisible(c) else c for c in text)


@register.simple_tag
def narrowing(name: str, value):
    """A value of the facet `name` (dashboard.screens.failure_list.Narrowing): the list with it, or without it."""
    shown = state(value.value) if name == "state" else visible(value.shown)
    return format_html(
        '<li><a href="{}"{} hx-get="{}" hx-target="#results" hx-swap="outerHTML" hx-push-url="true" title="{}{}">'
        '<span class="clip{}">{}</span><span class="number">{}</span></a></li>',
        value.url,
        _CURRENT if value.is_on else "",
        value.url,
        visible_text(value.value),
        ": take it away" if value.is_on else "",
        "" if name == "state" else " mono",
        shown,
        number(value.count),
    )


_CURRENT = format_html(' aria-current="{}"', "true")


@register.inclusion_tag("parts/hours.html")
def hours(values, words: str = "", look: str = "dead"):
    """A picture of counts per hour, the oldest first, the last one the hour that runs."""
    values = [max(0, int(v or 0)) for v in values or ()]
    top = max(values, default=0)
    width, height = 960, 100
    step = width / max(len(values), 1)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    bars = []
    for n, value in enumerate(values):
        tall = max(round(value / top * height, 1), 1.5) if top and value else 0
        hour = now - dt.timedelta(hours=len(values) - 1 - n)
        words_of_bar = f"{hour:%H:%M}: {value:,}"
        bars.append(
            {
                "x": f"{n * step:g}",
                "y": f"{height - tall:g}",
                "w": f"{step - 3:g}",
                "h": f"{tall:g}",
                "words": words_of_bar,
            }
        )
    marks = [now - dt.timedelta(hours=len(values) - 1 - n) for n in range(0, len(values), 6)]
    return {"bars": bars, "width": width, "height": height, "top": top, "words": words, "look": look, "marks": marks}


@register.simple_tag
def sparkline(values, words: str = "", look: str = "dead"):
    """A small picture of counts over time, oldest first, one bar a value; `words` say what it shows."""
    values = tuple(max(0, int(v or 0)) for v in values or ())
    return _sparkline(values, words or f"peak {max(values, default=0):,}", look)


@lru_cache(maxsize=1024)  # most groups look as they did a moment ago
def _sparkline(values: tuple[int, ...], words: str, look: str):
    width, height, gap = 96, 22, 1
    top, step = max(values, default=0), width / max(len(values), 1)
    bars = []
    for n, value in enumerate(values):
        if value:
            tall = max(value / top * height, 1.5)  # one failure is a visible failure
            bars.append(f"M{n * step:.5g} {height}v-{tall:.3g}h{step - gap:.3g}v{tall:.3g}z")
    return format_html(
        '<svg class="sparkline is-{}" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}"'
        ' preserveAspectRatio="none"><title>{}</title><rect class="ground" x="0" y="{}" width="{}" height="1"></rect>'
        '<path d="{}"></path></svg>',
        look, words, width, height, width, height, words, height, width, "".join(bars),
    )  # fmt: skip


@register.simple_tag
def share(part, whole) -> str:
    """The width of a bar of `part` in `whole`, 0 to 100, for an SVG attribute."""
    return f"{min(100, max(0, part / whole * 100)):.1f}" if whole else "0"


@register.filter
def url_of(name: str) -> str:
    """The address of a page that may not be there: empty then."""
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
