"""The documentation as a site with search, by Sphinx. CONTRIBUTING.md has the command."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "Redrive"
html_title = "Redrive"
html_theme = "furo"
html_show_sphinx = html_copy_source = False
root_doc = "docs/README"
extensions = ["myst_parser"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]
include_patterns = [
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs/**/*.md",
    "docs/*.md",
    "bench/results.md",
    "clients/node/README.md",
    "tests/failure-modes.md",
    "tests/pinned/rights.md",
    "tests/*/README.md",
]


def add_contents(app, docname, source):
    """Add the table of contents of the sidebar: the links of docs/README.md under its headings, and the other pages."""
    if docname != root_doc:
        return
    text, listed = source[0], set()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        pages = [
            (root_doc.split("/")[0] + "/" + link)[: -len(".md")].replace("docs/../", "")
            for link in re.findall(r"\]\(([^)#]+\.md)\)", section)
        ]
        pages = [page for page in dict.fromkeys(pages) if page not in listed]
        listed.update(pages)
        source[0] += contents(section.splitlines()[0], pages)
    source[0] += contents("The repository", sorted(app.env.found_docs - listed - {root_doc}))


def contents(caption, pages):
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(f"/{page}" for page in pages) + "\n```\n"


def copy_pictures(app, error):
    """Copy the pictures that pages name in HTML, which Sphinx does not read, and lead the first address to the map."""
    if not error:
        shutil.copytree(ROOT / "docs/pictures", Path(app.outdir) / "docs/pictures", dirs_exist_ok=True)
        first = f'<!doctype html><title>Redrive</title><meta http-equiv="refresh" content="0; url={root_doc}.html">'
        (Path(app.outdir) / "index.html").write_text(first)


def setup(app):
    app.connect("source-read", add_contents)
    app.connect("build-finished", copy_pictures)
