"""The naming page in a real Chromium: what people do there is in model.json, in exports and the report."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfmark.model.card import ModelCard, read_card
from selfmark.naming.landmark_finder import find_landmarks
from selfmark.naming.shown_images import choose_images, images_fingerprint, load_cached_points
from tests.browser import Visit, visit
from tests.conftest import selfmark
from tests.naming.toy_server import CARD, Served, served, toy_folder

INJECTION = '"><img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'


def card_of(running: Served) -> ModelCard:
    return read_card(running.folder / "model")


def ready(seen: Visit) -> Any:
    """The page, once it shows an image and its points."""
    seen.page.wait_for_selector(".point")
    seen.page.wait_for_function("() => document.querySelector('.picture').naturalWidth > 0")
    return seen.page


def saved(page: Any, act: Any, times: int = 1) -> None:
    """Do something that is saved, so many times over, and wait until the page shows the last of it."""
    left = times

    def last(answer: Any) -> bool:
        nonlocal left
        left -= answer.url.endswith("/api/edits")
        return left == 0

    with page.expect_response(last) as answer:
        act()
    assert answer.value.status == 200
    shown = "revision => document.body.dataset.revision === revision"
    page.wait_for_function(shown, arg=answer.value.json()["revision"])


def center(page: Any, landmark: int) -> tuple[float, float]:
    box = page.locator(f".point[data-landmark='{landmark}'] .reach").bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def choose(page: Any, landmark: int) -> None:
    page.click(f".entry[data-landmark='{landmark}']")


def _faults(seen: Visit) -> list[str]:
    """What is wrong with the page once all its pictures are there, those too that wait to be scrolled to."""
    seen.page.evaluate("() => { for (const image of document.images) image.loading = 'eager'; }")
    seen.page.wait_for_load_state("networkidle")
    seen.page.wait_for_function("() => [...document.images].every(image => image.complete)")
    return seen.problems()


# --- the whole way -----------------------------------------------------------------------------------


@pytest.fixture
def real(quick_run: Path, tmp_path: Path) -> Iterator[Served]:
    """The page of a run that was really trained, K=4."""
    folder = tmp_path / "cats"
    shutil.copytree(quick_run, folder)
    card = read_card(folder / "model")
    refs = choose_images(folder, [], 10)
    fingerprint = images_fingerprint(folder / "model", card, refs)
    find_landmarks(folder, refs, fingerprint, "cpu")
    shown = load_cached_points(folder, refs, fingerprint, 4)
    assert shown is not None
    with served(folder, shown) as running:
        yield running


def test_from_the_page_to_exports_and_report(
    browser: Any, real: Served, photos: Path, tmp_path: Path
) -> None:
    before = card_of(real)
    with visit(browser, real.address) as seen:
        page = ready(seen)
        assert page.url == f"{real.origin}/", "the token has left the address"
        choose(page, 0)
        page.fill("#name", "left ear")
        saved(page, lambda: page.press("#name", "Enter"))
        saved(page, lambda: page.select_option("#partner", "0"))  # Enter went on to landmark 1
        saved(page, lambda: page.click("#color-vermilion"))
        choose(page, 0)
        saved(page, lambda: page.click("#suggest"))
        saved(page, lambda: page.select_option("#connect", "1"))
        saved(page, lambda: page.select_option("#connect", "3"))
        choose(page, 2)
        saved(page, lambda: page.click("#hide"))
        assert page.locator(".point").count() == 3
        page.fill("#name", "wrong")
        saved(page, lambda: page.press("#name", "Enter"))
        page.evaluate("document.activeElement.blur()")
        saved(page, lambda: page.keyboard.press("Control+z"))
        page.reload()
        ready(seen)
        texts = page.locator(".entry .name").all_inner_texts()
        assert texts == ["left ear", "right ear", "landmark_2", "landmark_3"]
        assert _faults(seen) == []
    card = card_of(real)
    assert card.names == ("left ear", "right ear", "landmark_2", "landmark_3")
    assert card.mirror[:2] == (1, 0)
    assert set(card.skeleton) == {(0, 1), (0, 3)}
    assert card.colors == ("", "#d55e00", "", "")
    assert card.hidden == (2,)
    assert (card.images, card.network, card.refine) == (before.images, before.network, before.refine)

    shown = ["left ear", "right ear", "landmark_3"]
    out = tmp_path / "out"
    assert selfmark("predict", real.folder, photos, "-o", out, "--device=cpu") == 0
    with open(out / "landmarks.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["landmark"] for row in rows] == shown * 24
    assert selfmark("predict", real.folder, photos, "-o", out, "--format=coco", "--device=cpu") == 0
    (category,) = json.loads((out / "landmarks.json").read_text())["categories"]
    assert category["keypoints"] == shown
    assert category["skeleton"] == [[1, 2], [1, 3]]
    assert category["flip_idx"][:2] == [1, 0]
    assert selfmark("report", real.folder) == 0
    with visit(browser, real.folder / "report" / "index.html") as seen:
        headings = seen.page.locator(".landmark h3").all_inner_texts()
        assert sorted(headings) == ["0 · left ear", "1 · right ear", "3 · landmark_3"]
        assert "left out here" in seen.page.inner_text("header")
        assert "landmark_2" in seen.page.inner_text("header")
        dot = seen.page.locator("#landmark-1 .dot").first
        assert dot.evaluate("dot => getComputedStyle(dot).backgroundColor") == "rgb(213, 94, 0)"
        assert _faults(seen) == []


# --- ways of doing it ----------------------------------------------------------------------------------


def test_everything_can_be_done_with_keys(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address) as seen:
        page = ready(seen)
        keys = page.keyboard
        keys.press("ArrowDown")
        keys.press("n")
        # Nobody has to wait for the one to be saved to type the next.
        saved(page, lambda: keys.type("tail\near\n", delay=0), times=2)
        keys.press("Escape")
        saved(page, lambda: keys.press("h"))  # landmark 3 by now
        card = card_of(toy)
        assert card.names[:4] == ("landmark_0", "tail", "ear", "landmark_3")
        assert card.hidden == (3,)
        saved(page, lambda: keys.press("y"))
        assert card_of(toy).confirmed == (3, 4)
        for _ in range(2):
            saved(page, lambda: keys.press("Control+z"))
        assert card_of(toy).hidden == card_of(toy).confirmed == ()
        saved(page, lambda: keys.press("Control+Shift+z"))
        assert card_of(toy).hidden == (3,)
        assert page.input_value("#row") == "1"
        keys.press("ArrowRight")
        page.wait_for_function("() => document.getElementById('row').value === '2'")
        keys.press("c")
        assert page.get_attribute("[data-tool=connect]", "aria-pressed") == "true"
        keys.press("Escape")
        assert page.get_attribute("[data-tool=choose]", "aria-pressed") == "true"
        for key, view in (("2", "gallery"), ("3", "mirror"), ("1", "images")):
            keys.press(key)
            assert page.is_visible(f"#view-{view}")
        keys.press("?")
        assert page.is_visible("#help-box")
        keys.press("Escape")
        assert not page.is_visible("#help-box")
        assert _faults(seen) == []


def test_points_are_connected_and_paired_by_pointing(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address) as seen:
        page = ready(seen)
        page.mouse.click(*center(page, 4))
        assert page.get_attribute(".entry[data-landmark='4']", "aria-current") == "true"
        page.click("[data-tool=connect]")
        page.mouse.click(*center(page, 0))
        saved(page, lambda: page.mouse.click(*center(page, 2)))
        page.mouse.move(*center(page, 2))  # and by drawing a line
        page.mouse.down()
        page.mouse.move(*center(page, 5), steps=5)
        assert page.locator(".draft").count() == 2
        saved(page, page.mouse.up)
        assert set(card_of(toy).skeleton) == {(0, 2), (2, 5)}
        assert page.locator(".bone:not(.under)").count() == 2
        page.mouse.click(*center(page, 2))
        saved(page, lambda: page.mouse.click(*center(page, 0)))  # once more takes it away
        assert card_of(toy).skeleton == ((2, 5),)
        page.click("[data-tool=pair]")
        page.mouse.click(*center(page, 2))
        saved(page, lambda: page.mouse.click(*center(page, 5)))
        assert card_of(toy).mirror == (1, 0, 5, 4, 3, 2)
        assert card_of(toy).confirmed == (2, 5)
        assert _faults(seen) == []


def test_a_finger_does_as_well_as_a_mouse(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address, 390, has_touch=True, is_mobile=True) as seen:
        page = ready(seen)
        page.touchscreen.tap(*center(page, 1))
        assert page.get_attribute(".entry[data-landmark='1']", "aria-current") == "true"
        page.tap("[data-tool=connect]")
        page.touchscreen.tap(*center(page, 1))
        saved(page, lambda: page.touchscreen.tap(*center(page, 3)))
        assert card_of(toy).skeleton == ((1, 3),)
        page.tap("[data-tool=choose]")
        page.tap(".entry[data-landmark='1']")
        page.fill("#name", "foot")
        saved(page, lambda: page.press("#name", "Enter"))
        assert card_of(toy).names[1] == "foot"
        assert not _reachable(page, "#partner")
        page.tap("#unfold")
        assert _reachable(page, "#color-orange")
        saved(page, lambda: page.tap("#color-orange"))
        page.tap("#unfold")
        _swipe(page)
        page.wait_for_function("() => document.getElementById('row').value === '2'")
        small = page.evaluate(
            "() => [...document.querySelectorAll('button, select, input')].filter(one => one.offsetParent && "
            "!one.matches('.crop, .tile, .who, .tiny, .swatch input') && one.offsetHeight < 32)"
            ".map(one => one.id || one.className || one.textContent)"
        )
        assert small == [], "too small for a finger"
        assert _faults(seen) == []


def _reachable(page: Any, selector: str) -> bool:
    """Whether it lies in the window and nothing covers it."""
    return bool(
        page.evaluate(
            "selector => { const one = document.querySelector(selector), box = one.getBoundingClientRect();"
            " const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);"
            " return one === top || one.contains(top); }",
            selector,
        )
    )


def _swipe(page: Any) -> None:
    """A finger that moves to the left over the picture, where there is no landmark."""
    box = page.locator(".overlay").bounding_box()
    y = box["y"] + box["height"] / 2
    devtools = page.context.new_cdp_session(page)

    def touch(kind: str, *points: dict[str, float]) -> None:
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": list(points)})

    start = box["x"] + 0.85 * box["width"]
    touch("touchStart", {"x": start, "y": y})
    for step in range(1, 9):
        touch("touchMove", {"x": start - 15 * step, "y": y})
    touch("touchEnd")


def test_the_gallery_leads_to_the_image(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address) as seen:
        page = ready(seen)
        choose(page, 3)
        page.click("#tab-gallery")
        page.wait_for_function("() => document.querySelectorAll('#view-gallery .crop').length === 5")
        page.click("[data-order=least]")
        page.wait_for_function("() => document.querySelector('[data-order=least]').ariaPressed === 'true'")
        scores = page.locator("#view-gallery .score")
        page.wait_for_function(
            "() => { const scores = document.querySelectorAll('#view-gallery .score');"
            " const all = [...scores].map(one => +one.innerText);"
            " return all.length === 5 && all.every((score, at) => !at || score >= all[at - 1]); }"
        )
        assert scores.count() == 5
        page.locator("#view-gallery .crop").nth(2).click()
        assert page.is_visible("#view-images")
        assert page.get_attribute(".entry[data-landmark='3']", "aria-current") == "true"
        page.click("#tab-mirror")
        page.wait_for_selector("#sure-3")
        saved(page, lambda: page.click("#sure-3"))
        assert card_of(toy).confirmed == (3, 4)
        saved(page, lambda: page.select_option("#partner-0", "0"))
        assert card_of(toy).mirror[:2] == (0, 1)
        assert "landmarks move a little" in page.inner_text("#view-mirror .note")
        assert _faults(seen) == []


# --- trouble -------------------------------------------------------------------------------------------


def test_a_name_that_is_taken_is_said_beside_the_field(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address) as seen:
        page = ready(seen)
        page.fill("#name", "landmark_4")
        with page.expect_response("**/api/edits") as answer:
            page.press("#name", "Enter")
        assert answer.value.status == 409
        page.wait_for_function("() => document.getElementById('name-trouble').textContent")
        assert "landmark 4 is already called 'landmark_4'" in page.inner_text("#name-trouble")
        assert page.get_attribute("#name", "aria-invalid") == "true"
        assert page.input_value("#name") == "landmark_4", "what was typed can be mended"
        assert card_of(toy) == CARD


def test_two_windows_see_each_other(browser: Any, toy: Served) -> None:
    with visit(browser, toy.address) as one, visit(browser, toy.address) as other:
        ready(one), ready(other)
        one.page.fill("#name", "nose")
        saved(one.page, lambda: one.page.press("#name", "Enter"))
        choose(other.page, 1)
        saved(other.page, lambda: other.page.click("#hide"))
        assert other.page.inner_text(".entry[data-landmark='0'] .name") == "nose"
        one.page.wait_for_selector(".entry.gone[data-landmark='1']")
        # Each takes back its own.
        one.page.evaluate("document.activeElement.blur()")
        saved(one.page, lambda: one.page.click("#undo"))
        assert card_of(toy) == replace(CARD, hidden=(1,))


def test_the_end_of_the_server_is_said(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    with visit_of(browser, folder) as (seen, stop):
        page = ready(seen)
        stop()
        page.keyboard.press("h")
        page.wait_for_selector("#trouble:not([hidden])")
        assert "Start 'selfmark name' again" in page.inner_text("#trouble")


class visit_of:  # noqa: N801  (used like a function)
    """A visit of a server that can be stopped while the page stays open."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.server = served(folder, toy_folder(folder))
        self.running = self.server.__enter__()
        self.visit = visit(browser, self.running.address)
        self.stopped = False

    def __enter__(self) -> tuple[Visit, Any]:
        return self.visit.__enter__(), self.stop

    def stop(self) -> None:
        if not self.stopped:
            self.stopped = True
            self.server.__exit__(None, None, None)

    def __exit__(self, *error: Any) -> None:
        self.stop()
        self.visit.__exit__(None, None, None)


@pytest.mark.parametrize("clean", [True, False])
def test_no_text_of_the_user_runs(browser: Any, tmp_path: Path, clean: bool) -> None:
    # With the content security policy switched off, so that the page's own care alone has to hold.
    card = replace(CARD, names=(INJECTION, *CARD.names[1:]), skeleton=((0, 1),))
    folder = tmp_path / "<script>window.attacked=1<"
    shown = toy_folder(folder, card, name="<script>window.attacked=1<{}>.jpg")
    with served(folder, shown) as running, visit(browser, running.address, bypass_csp=True) as seen:
        page = ready(seen)
        assert page.inner_text(".entry[data-landmark='0'] .name") == INJECTION
        page.fill("#name", "<img src=x onerror=window.attacked=1>")
        saved(page, lambda: page.press("#name", "Enter"))
        for key in ("Escape", "2", "3", "1"):
            page.keyboard.press(key)
            page.wait_for_timeout(60)
        if not clean:  # the same check, where it must see something
            page.evaluate(
                "text => { const box = document.createElement('div'); document.body.append(box);"
                " box.innerHTML = text; }",
                INJECTION,
            )
            page.wait_for_function("() => window.attacked === 1")
        assert seen.attacked() is not clean


def test_the_policy_stops_what_slips_in(browser: Any, still: Served) -> None:
    with visit(browser, still.address) as seen:
        page = ready(seen)
        refused = page.evaluate(
            "text => { try { document.body.innerHTML += text; return 'no'; } catch { return 'yes'; } }",
            INJECTION,
        )
        assert refused == "yes"
        with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
            page.evaluate("() => document.querySelector('.picture').src = 'http://127.0.0.1:9/'")
        assert not seen.attacked()


# --- looks and access ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_has_no_problems(browser: Any, still: Served, scheme: str) -> None:
    with visit(browser, still.address, 1280, color_scheme=scheme) as seen:
        page = ready(seen)
        for width in (1280, 768, 360):
            page.set_viewport_size({"width": width, "height": 800})
            for key in "231":
                page.keyboard.press(key)
                assert _faults(seen) == []
                assert page.evaluate(_UNNAMED) == []
                assert page.evaluate(_PALE) == []


# Controls a screen reader could not name.
_UNNAMED = """() => [...document.querySelectorAll('button, select, input')].filter(one => one.offsetParent)
    .filter(one => !(one.ariaLabel || one.textContent.trim() || (one.labels && one.labels.length)))
    .map(one => one.outerHTML.slice(0, 120))"""

# Text whose contrast against its background is below what WCAG asks for.
_PALE = """() => {
  const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const behind = node => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(node).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const ratio = node => {
    const both = [light(channels(getComputedStyle(node).color)), light(behind(node))];
    return (Math.max(...both) + .05) / (Math.min(...both) + .05);
  };
  const written = node => [...node.childNodes].some(part => part.nodeType === 3 && part.data.trim());
  return [...document.querySelectorAll('body *')]
    .filter(node => node.offsetParent && !node.disabled && written(node))
    .filter(node => !node.closest('svg, .score, #saved, .unseen') && ratio(node) < 4.5)
    .map(node => `${node.className}: ${node.textContent.slice(0, 40)}`);
}"""


def test_the_check_of_contrast_can_fail(browser: Any, still: Served) -> None:
    with visit(browser, still.address) as seen:
        page = ready(seen)
        page.evaluate("() => document.body.style.setProperty('--soft', '#bbb')")
        assert len(page.evaluate(_PALE)) > 3


def test_the_keyboard_never_gets_stuck_and_is_always_seen(browser: Any, still: Served) -> None:
    with visit(browser, still.address) as seen:
        page = ready(seen)
        seen_by_tab = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            seen_by_tab.add(
                page.evaluate("() => { const one = document.activeElement; return one.id || one.className; }")
            )
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert {"name", "partner", "connect", "hide", "tab-images", "row", "entry"} <= seen_by_tab
        assert re.match("solid|auto", outline)
