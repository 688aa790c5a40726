"""Contrast is measured of every text whose colours, size, weight or background were not measured before."""

from __future__ import annotations

import re

import pytest

from tests.kit.page_checks import SIZES, faults, faults_at_sizes, opened

pytestmark = [pytest.mark.server, pytest.mark.browser]

GREY = "color: #8a8a8a"  # on white 3.45 to 1: enough for large text alone
TEXT = "<p>Three dead jobs</p>"


@pytest.fixture
def page(browser):
    page = opened(browser, "http://127.0.0.1:9", "wide")
    yield page
    page.context.close()


def show(page, body: str, style: str = "") -> None:
    style = f"body {{ background: white; color: black; font: 16px sans-serif }} {style}"
    page.set_content(
        f"<!doctype html><html lang=en><title>A page</title><style>{style}</style><main><h1>A page</h1>{body}</main>"
    )


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (TEXT, f'<p style="{GREY}">Three dead jobs</p>'),
        (TEXT, f'<div style="background: #222">{TEXT}</div>'),
        (TEXT, f'<div style="opacity: 0.4">{TEXT}</div>'),
        (f'<p style="{GREY}; font-size: 32px">Three</p>', f'<p style="{GREY}">Three</p>'),
        (f'<p style="{GREY}; font-size: 19px; font-weight: bold">Three</p>', f'<p style="{GREY}; font-size: 19px">Three</p>'),
        (f'<button disabled style="{GREY}; background: white">Stop</button>', f'<button style="{GREY}; background: white">Stop</button>'),
        # Over a box that is not around it.
        (
            f'<div style="position: relative">{TEXT}</div>',
            '<div style="height: 90px; margin-bottom: -90px; background: #222"></div><p style="position: relative">Three dead jobs</p>',
        ),
        (
            '<div style="height: 90px; margin-bottom: -90px; background: white"></div><p style="position: relative">Three</p>',
            '<div style="height: 90px; margin-bottom: -90px; background: #222"></div><p style="position: relative">Three</p>',
        ),
        (
            f'<details style="background: #222"><summary style="color: white">More</summary>{TEXT}</details>',
            f'<details open style="background: #222"><summary style="color: white">More</summary>{TEXT}</details>',
        ),
        ("<svg width=90 height=30><text y=20>Jobs</text></svg>", f'<div style="background: #222">{TEXT}</div>'),
    ],
    ids=["color", "background", "opacity", "size", "weight", "disabled", "overlap", "behind", "closed", "svg"],
)  # fmt: skip
def test_contrast_is_measured_where_a_text_differs_from_one_that_passed(page, right, wrong):
    show(page, right)
    assert faults(page, "right") == []
    show(page, right + wrong)
    assert any("color-contrast" in fault for fault in faults(page, "wrong"))
    assert any("color-contrast" in fault for fault in faults(page, "wrong again"))


def test_a_fault_of_one_theme_at_one_size_is_found_on_every_other_page(page):
    style = """
        @media (prefers-color-scheme: dark) { body { background: black; color: white } }
        @media (prefers-color-scheme: dark) and (width < 500px) { p { color: #444 } }
    """
    show(page, TEXT, style)
    found = faults_at_sizes(page, "queues") + faults_at_sizes(page, "overview")
    assert found == ["queues phone, dark: color-contrast: p"]
    assert page.viewport_size == SIZES["wide"]


def test_a_control_that_only_a_phone_shows_is_checked(page):
    show(page, "<button class=phone></button>", "@media (width > 500px) { .phone { display: none } }")
    found = faults_at_sizes(page, "page")
    assert any(re.match("page phone.*: button-name", fault) for fault in found)
    assert not any("wide" in fault for fault in found)
