"""Test the report in Chromium, on wide and narrow screens and on paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.model.colors import palette, to_rgb
from selfmark.report import write_report
from tests import browser as chromium
from tests.browser import crop_screenshot, take_screenshot, visit
from tests.report.example import S, make_evaluated_data, make_example_data

INJECTION = '"><img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
BLOCKS = ".notes, .figures, section.part, .landmark, .table, .charts figure, .map, .words"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_evaluated_data(), tmp_path_factory.mktemp("report"))


def _measure_ink(picture: np.ndarray) -> float:
    """Return the fraction of the pixels that differ from the background, which is the most common color."""
    packed = picture @ [1 << 16, 1 << 8, 1]  # Each color becomes one number.
    colors, counts = np.unique(packed, return_counts=True)
    background = picture[packed == colors[counts.argmax()]][0]
    difference = np.abs(picture - background).max(axis=2)
    return float((difference > 24).mean())


def _get_bounding_boxes(page: Any, selector: str) -> list[dict[str, float]]:
    return [element.bounding_box() for element in page.query_selector_all(selector)]


@pytest.mark.parametrize("width", [360, 768, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_loads_without_problems(browser: Any, report: Path, width: int, scheme: str) -> None:
    with visit(browser, report, width, color_scheme=scheme) as visited:
        assert visited.find_problems() == []
        # Opening all details causes no problems either.
        for summary in visited.page.query_selector_all("summary"):
            summary.click()
        assert visited.page.is_visible(".settings")
        assert visited.find_problems() == []
        blocks = _get_bounding_boxes(visited.page, BLOCKS)
        assert len(blocks) > 20
        assert all(box is not None and box["height"] > 20 and box["width"] > 100 for box in blocks)


def test_a_report_without_an_evaluation_loads(browser: Any, tmp_path: Path) -> None:
    with visit(browser, write_report(make_example_data(), tmp_path), 360) as visited:
        assert visited.find_problems() == []


def test_a_wide_table_scrolls_in_its_own_box(browser: Any, report: Path) -> None:
    with visit(browser, report, 360) as visited:
        scroll_width, client_width = visited.page.evaluate(
            "() => { const box = [...document.querySelectorAll('#evaluation .scroll')].at(-1);"
            " return [box.scrollWidth, box.clientWidth]; }"
        )
        assert scroll_width > 2 * client_width > 400


def test_problems_of_a_page_are_found(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "broken.html"
    page.write_text(
        "<!doctype html><div style='width: 3000px'>wide</div><img alt='torn' src='data:image/png;base64,AA'>"
        "<img alt='elsewhere' src='missing.png'><script>nowhere.to.be.found()</script>"
        "<script>console.error('shout'); alert('hello')</script>",
        encoding="utf-8",
    )
    with visit(browser, page) as visited:
        problems = "\n".join(visited.find_problems())
    for expected in (
        "image does not load: torn",
        "image does not load: elsewhere",
        r"30\d\d pixels wide in a window of 1280",
        "request: file:.*missing.png",
        "request failed: file:.*missing.png",
        "script: nowhere is not defined",
        "console: shout",
        "dialog: hello",
    ):
        assert re.search(expected, problems), f"{expected} not in:\n{problems}"


@pytest.mark.parametrize("clean", [True, False])
def test_user_text_is_not_executed(browser: Any, tmp_path: Path, clean: bool) -> None:
    # The content security policy is off, so that only escaping protects the page.
    names = (INJECTION, "left eye", "right eye", "tail")
    data = make_evaluated_data(
        title=INJECTION, names=names, notes=(INJECTION,), settings={INJECTION: INJECTION}
    )
    path = write_report(data, tmp_path)
    if not clean:  # Insert the text unescaped, to show that the check can fail.
        path.write_text(path.read_text(encoding="utf-8") + INJECTION, encoding="utf-8")
    with visit(browser, path, bypass_csp=True) as visited:
        assert visited.was_attacked() is not clean
        assert visited.page.inner_text("h1") == INJECTION
        assert (visited.find_problems() == []) is clean


def test_the_content_security_policy_stops_injected_code(browser: Any, tmp_path: Path) -> None:
    path = write_report(make_example_data(), tmp_path)
    path.write_text(path.read_text(encoding="utf-8") + INJECTION, encoding="utf-8")
    with visit(browser, path) as visited:
        assert visited.page.evaluate("() => window.attacked === undefined")
        assert any("Content Security Policy" in problem for problem in visited.find_problems())


def test_landmarks_are_drawn_at_their_positions(browser: Any, report: Path) -> None:
    data = make_evaluated_data()
    with visit(browser, report) as visited:
        picture, box = take_screenshot(visited.page), _get_bounding_boxes(visited.page, ".examples img")[0]
    assert box["width"] > 200
    first = crop_screenshot(picture, box).astype(int)
    for (x, y), color in zip(data.example_xy[0], map(to_rgb, palette(4)), strict=True):
        column, row = ((value + 0.5) / S * box["width"] for value in (x, y))
        patch = first[round(row) - 1 : round(row) + 1, round(column) - 1 : round(column) + 1]
        # JPEG compression spreads noise of the image into the disc, so its color is not exact.
        assert np.abs(patch.mean(axis=(0, 1)) - color).max() < 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_and_scatter_plots_are_not_blank(browser: Any, report: Path, scheme: str) -> None:
    with visit(browser, report, color_scheme=scheme) as visited:
        picture = take_screenshot(visited.page)
        background = picture[2, 2]
        assert background.max() < 60 if scheme == "dark" else background.min() > 240
        figures = visited.page.query_selector_all("svg[role=img]")
        # The page has one chart of curves, one scatter plot, three charts of losses and one of rounds.
        assert len(figures) == 1 + 1 + 3 + 1
        for svg in figures:
            color_inside = crop_screenshot(picture, svg.bounding_box()).astype(int)
            assert _measure_ink(color_inside) > 0.01
            for line in svg.query_selector_all(".line, .over"):
                stroke = line.evaluate("line => getComputedStyle(line).stroke")
                color = np.array([int(part) for part in re.findall(r"\d+", stroke)[:3]])
                assert (np.abs(color_inside - color).max(axis=2) < 40).sum() > 15
    blank = np.full((50, 50, 3), 245)
    assert _measure_ink(blank) == 0.0


def test_lines_differ_without_colors(browser: Any, report: Path) -> None:
    with visit(browser, report) as visited:
        dashes = visited.page.eval_on_selector_all(
            "#evaluation .charts svg[role=img] .line",
            "lines => lines.map(line => getComputedStyle(line).strokeDasharray)",
        )
        assert len(dashes) == len(set(dashes)) == 3
        assert len(visited.page.query_selector_all("#evaluation .legend li")) == 3


def test_all_links_have_targets(browser: Any, report: Path) -> None:
    with visit(browser, report) as visited:
        links = visited.page.eval_on_selector_all(
            "a", "links => links.map(link => link.getAttribute('href'))"
        )
        assert len(links) > 15
        assert all(visited.page.query_selector(link) is not None for link in links)
        visited.page.click(".chip[href='#landmark-2']")
        visited.page.wait_for_function(
            "() => document.querySelector('#landmark-2').getBoundingClientRect().top < 700"
        )


def test_print_shows_everything(browser: Any, report: Path) -> None:
    with visit(browser, report, 718) as visited:
        assert not visited.page.is_visible(".settings")
        before = set(visited.page.inner_text("main").split())
        visited.page.emulate_media(media="print", color_scheme="dark")
        assert visited.page.is_visible(".settings")
        assert visited.page.is_visible("details .scroll")
        assert all(
            box is not None and box["height"] > 15
            for box in _get_bounding_boxes(visited.page, f"{BLOCKS}, .settings")
        )
        assert visited.find_problems() == []
        # Only the summaries, which a reader clicks to open details, are not printed. These are their words.
        summaries = {"Compare", "all", "landmarks", "in", "one", "table", "Show", "settings"}
        assert before - set(visited.page.inner_text("main").split()) <= summaries
        assert take_screenshot(visited.page)[-2, 2].min() > 240  # Paper is white.
        is_kept_together = visited.page.eval_on_selector_all(
            "figure, .card, tr", "all => all.every(item => getComputedStyle(item).breakInside === 'avoid')"
        )
        assert is_kept_together
        paper = visited.page.pdf(format="A4")
    assert paper.startswith(b"%PDF-")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 12


def test_missing_chromium_skips_tests_except_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "find_chromium", lambda: None)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="install Chromium"):
        chromium.require_chromium()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="install Chromium"):
        chromium.require_chromium()


def test_a_browser_that_does_not_start_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, status in (("chromium", 1), ("google-chrome", 0)):
        (tmp_path / name).write_text(f"#!/bin/sh\nexit {status}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(chromium, "_COMMANDS", ("chromium", "google-chrome"))
    assert chromium.find_chromium() == str(tmp_path / "google-chrome")
