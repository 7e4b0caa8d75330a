"""The documentation as a site: it is made without a network, has no dead link, and asks no other host."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[2]


def built(folder: Path, docs: Path) -> Path:
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), docs_dir=str(docs), strict=True))
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site"), ROOT / "docs")


@pytest.mark.slow
def test_every_page_is_in_it(site: Path) -> None:
    pages = {item.relative_to(ROOT / "docs").with_suffix(".html") for item in (ROOT / "docs").rglob("*.md")}
    assert pages <= {item.relative_to(site) for item in site.rglob("*.html")}


def test_every_section_of_a_page_is_in_it(site: Path) -> None:
    """A fence whose language is no single word is not recognized, and its end hides the sections after it."""
    for page in (ROOT / "docs").rglob("*.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        html = (site / page.relative_to(ROOT / "docs")).with_suffix(".html").read_text()
        assert len(re.findall(r"<h2 id=", html)) == len(re.findall(r"^## ", text, re.MULTILINE)), page.name


def test_no_page_asks_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=\"?((?:https?:)?//[^\s\">]*)", page.read_text()
        )
        assert loaded == [], page.name


@pytest.mark.slow
def test_a_dead_link_ends_it(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    for page in (ROOT / "docs").rglob("*"):
        if page.is_file():
            copy = docs / page.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(page.read_bytes())
    (docs / "start.md").write_text("[nowhere](nowhere.md)")
    with pytest.raises(Abort):
        built(tmp_path / "site", docs)
