"""The played incident as a picture: what reached the partner after each outage, on one scale. SVG, on a ground of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from demo.story import SIDES
from demo.temper import FALLEN_S

WIDE, HIGH = 984, 446
_LEFT = {"at_once": 46, "careful": 370, "held": 694}  # where a plot begins
_PLOT, _TOP, _TALL = 262, 104, 172  # its width; the upper one's edge and height
_LOW_TOP, _LOW = 318, 62  # the lower one's
_NAMES = {"at_once": "Everything at once", "careful": "Careful replay", "held": "Held by a breaker"}
_INKS = {
    "light": {
        "paper": "#ffffff", "rule": "#d5d9de", "sunk": "#f6f7f8", "ink": "#16191d", "ink2": "#4d5660",
        "dead": "#c01c28", "ground": "#fbdfe0", "well": "#12733a",
    },
    "dark": {
        "paper": "#0f1114", "rule": "#333a42", "sunk": "#16191d", "ink": "#e7eaee", "ink2": "#a9b2bc",
        "dead": "#ff7b7b", "ground": "#3a1719", "well": "#5ccb85",
    },
}  # fmt: skip
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def draw(figures: dict[str, Any], theme: str) -> str:
    """`figures` as bench/incident.py prints them; `theme` light or dark."""
    ink = _INKS[theme]
    top = max(60, -(-max(figures[name]["most_in_a_second"] for name in SIDES) // 20) * 20)
    span = max(30, -(-max(len(figures[name]["seconds"]) for name in SIDES) // 10) * 10)
    parts = [line for name in SIDES for line in _side(name, figures[name], figures["jobs"], top, span, ink)]
    parts += _legend(ink)
    label = " ".join(f"{_NAMES[name]}: {_verdict(name, figures[name])}" for name in SIDES)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" height="{HIGH}" '
            f'role="img" aria-label="{label}" font-family="{_FONT}" font-size="12" fill="{ink["ink"]}">',
            f'<rect x=".5" y=".5" width="{WIDE - 1}" height="{HIGH - 1}" rx="8" fill="{ink["paper"]}" stroke="{ink["rule"]}"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _verdict(name: str, side: dict[str, Any]) -> str:
    if side["failed_again"]:
        fell = "fell over; " if side["falls_at_s"] else ""
        return f"{fell}{side['failed_again']} of {side['jobs']} jobs dead again"
    return f"{'no job died; ' if name == 'held' else ''}all {side['jobs']} succeeded in {side['all_through_s']:.0f} s"


def _side(name: str, side: dict[str, Any], jobs: int, top: int, span: int, ink: dict[str, str]) -> Iterator[str]:
    left, step = _LEFT[name], _PLOT / span
    colour = ink["dead"] if side["falls_at_s"] or side["failed_again"] else ink["well"]
    verdict = _verdict(name, side)
    yield f'<text x="{left}" y="34" font-size="17" font-weight="650">{_NAMES[name]}</text>'
    yield f'<text x="{left}" y="55" font-size="13" fill="{colour}" font-weight="600">{verdict[0].upper()}{verdict[1:]}</text>'
    again = f", {side['while_down']:,} when it fell over" if side["while_down"] else ""
    caption = f"{side['in_outage']:,} requests in the outage{again}"
    yield f'<text x="{left}" y="74" fill="{ink["ink2"]}">{caption}</text>'
    yield from _ground(left, _TOP, _TALL, top, "requests a second", ink)
    yield from _ground(left, _LOW_TOP, _LOW, jobs, "unrecovered jobs", ink)
    seconds = side["seconds"]
    for at in side["falls_at_s"]:
        at += side["into_its_second"]
        lasted = max(0.0, min(FALLEN_S, len(seconds) - at))
        x = left + at * step
        yield f'<rect x="{x:.1f}" y="{_TOP}" width="{lasted * step:.1f}" height="{_TALL}" fill="{ink["ground"]}"/>'
    for n, second in enumerate(seconds):
        if second:
            yield from _bar(left + n * step, step, second, top, ink)
    for at in side["falls_at_s"]:
        x = left + (at + side["into_its_second"]) * step
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{_TOP + _TALL}" stroke="{ink["dead"]}" stroke-width="1.5"/>'
    yield from _line([(n, s["capacity"]) for n, s in enumerate(seconds) if s], left, step, _TOP, _TALL, top,
                     f'stroke="{ink["ink"]}" stroke-width="1.6" stroke-dasharray="5 3"')  # fmt: skip
    back = [(-1, side["jobs"]), *((n, s["left"]) for n, s in enumerate(seconds) if s)]
    yield from _line(back, left, step, _LOW_TOP, _LOW, jobs, f'stroke="{ink["dead"]}" stroke-width="2.2"')
    for second in range(0, span + 1, 10):
        words = f"{second} s"
        yield f'<text x="{left + second * step:.1f}" y="{_LOW_TOP + _LOW + 16}" text-anchor="middle" fill="{ink["ink2"]}">{words}</text>'


def _ground(left: int, y: int, tall: int, top: int, name: str, ink: dict[str, str]) -> Iterator[str]:
    yield f'<rect x="{left}" y="{y}" width="{_PLOT}" height="{tall}" fill="{ink["sunk"]}"/>'
    yield f'<text x="{left - 6}" y="{y + 10}" text-anchor="end" fill="{ink["ink2"]}">{top}</text>'
    yield f'<text x="{left - 6}" y="{y + tall}" text-anchor="end" fill="{ink["ink2"]}">0</text>'
    yield f'<text x="{left + _PLOT}" y="{y - 6}" text-anchor="end" fill="{ink["ink2"]}">{name}</text>'


def _bar(x: float, step: float, second: dict[str, Any], top: int, ink: dict[str, str]) -> Iterator[str]:
    floor = float(_TOP + _TALL)
    for n, colour in ((second["requests"] - second["refused"], ink["well"]), (second["refused"], ink["dead"])):
        tall = n / top * _TALL
        floor -= tall
        if n:
            yield f'<rect x="{x + step * 0.08:.1f}" y="{floor:.1f}" width="{step * 0.84:.1f}" height="{tall:.1f}" fill="{colour}"/>'


def _line(
    points: list[tuple[int, float | None]], left: float, step: float, y: int, tall: int, top: int, style: str
) -> Iterator[str]:
    """Draw a line that is interrupted where nothing is known."""
    run: list[str] = []
    for n, value in [*points, (0, None)]:
        if value is not None:
            run.append(f"{left + (n + 1) * step:.1f},{y + tall - value / top * tall:.1f}")
            continue
        if len(run) > 1:
            yield f'<polyline points="{" ".join(run)}" fill="none" {style}/>'
        run = []


def _legend(ink: dict[str, str]) -> Iterator[str]:
    y = HIGH - 20
    x = _LEFT["at_once"]
    for words, mark in (
        ("answered", f'<rect width="10" height="10" rx="2" fill="{ink["well"]}"/>'),
        ("refused", f'<rect width="10" height="10" rx="2" fill="{ink["dead"]}"/>'),
        ("down", f'<rect width="10" height="10" rx="2" fill="{ink["ground"]}" stroke="{ink["rule"]}"/>'),
        (
            "what the partner can carry",
            f'<line x2="16" y1="5" y2="5" stroke="{ink["ink"]}" stroke-width="1.6" stroke-dasharray="5 3"/>',
        ),
    ):
        yield f'<g transform="translate({x} {y - 9})">{mark}</g>'
        x += 22 if "line" in mark else 15
        yield f'<text x="{x}" y="{y}" fill="{ink["ink2"]}">{words}</text>'
        x += 30 + 6 * len(words)
