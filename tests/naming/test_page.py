"""Test the naming page in a real Chromium: edits, exports, errors and accessibility."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfmark.model.card import ModelCard, read_card
from selfmark.model.colors import landmark_colors, to_rgb
from selfmark.naming.landmark_prediction import predict_landmarks
from selfmark.naming.shown_images import (
    compute_landmarks_fingerprint,
    load_cached_landmarks,
    select_shown_images,
)
from tests.browser import Visit, visit
from tests.conftest import selfmark
from tests.naming.toy_server import CARD, ToyServer, make_toy_folder, serve

INJECTION = '"><img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'


def read_card_of(running: ToyServer) -> ModelCard:
    return read_card(running.folder / "model")


def wait_until_ready(visited: Visit) -> Any:
    """Return the page once it shows an image and its points."""
    visited.page.wait_for_selector(".point")
    visited.page.wait_for_function("() => document.querySelector('.photo').naturalWidth > 0")
    return visited.page


def act_and_wait(page: Any, action: Any, num_edits: int = 1) -> None:
    """Run an action that saves `num_edits` edits, and wait until the page shows the last one."""
    remaining = num_edits

    def is_last(response: Any) -> bool:
        nonlocal remaining
        remaining -= response.url.endswith(("/api/edits", "/api/corrections"))
        return remaining == 0

    with page.expect_response(is_last) as response:
        action()
    assert response.value.status == 200
    shown = "revision => document.body.dataset.revision === revision"
    page.wait_for_function(shown, arg=response.value.json()["revision"])


def get_center(page: Any, landmark: int) -> tuple[float, float]:
    """Return the center of the mark of a landmark; wait if the page is drawing the marks again."""
    area, deadline = page.locator(f".point[data-landmark='{landmark}'] .hit-area"), time.monotonic() + 20
    while (box := area.bounding_box()) is None:
        assert time.monotonic() < deadline, f"landmark {landmark} has no mark"
        page.wait_for_timeout(20)
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def select(page: Any, landmark: int) -> None:
    page.click(f".entry[data-landmark='{landmark}']")


def find_problems(visited: Visit) -> list[str]:
    """Return the problems of the page after loading all images, even those that load on scrolling."""
    visited.page.evaluate("() => { for (const image of document.images) image.loading = 'eager'; }")
    visited.page.wait_for_load_state("networkidle")
    visited.page.wait_for_function("() => [...document.images].every(image => image.complete)")
    return visited.find_problems()


# --- from the page to exports -----------------------------------------------------------------------


@pytest.fixture
def trained_server(quick_run: Path, tmp_path: Path) -> Iterator[ToyServer]:
    """Serve the naming page of a trained run with K = 4."""
    folder = tmp_path / "cats"
    shutil.copytree(quick_run, folder)
    card = read_card(folder / "model")
    refs = select_shown_images(folder, [], 10)
    fingerprint = compute_landmarks_fingerprint(folder / "model", card, refs)
    predict_landmarks(folder, refs, fingerprint, "cpu")
    shown = load_cached_landmarks(folder, refs, fingerprint, 4)
    assert shown is not None
    with serve(folder, shown) as running:
        yield running


def test_edits_appear_in_exports_and_report(
    browser: Any, trained_server: ToyServer, photos: Path, tmp_path: Path
) -> None:
    before = read_card_of(trained_server)
    with visit(browser, trained_server.address) as visited:
        page = wait_until_ready(visited)
        assert page.url == f"{trained_server.origin}/", "the token must not stay in the address"
        select(page, 0)
        page.fill("#name", "left ear")
        act_and_wait(page, lambda: page.press("#name", "Enter"))
        act_and_wait(page, lambda: page.select_option("#partner", "0"))  # Enter has selected landmark 1.
        act_and_wait(page, lambda: page.click("#color-vermilion"))
        select(page, 0)
        act_and_wait(page, lambda: page.click("#suggest"))
        act_and_wait(page, lambda: page.select_option("#connect", "1"))
        act_and_wait(page, lambda: page.select_option("#connect", "3"))
        select(page, 2)
        act_and_wait(page, lambda: page.click("#hide"))
        assert page.locator(".point").count() == 3
        page.fill("#name", "wrong")
        act_and_wait(page, lambda: page.press("#name", "Enter"))
        page.evaluate("document.activeElement.blur()")
        act_and_wait(page, lambda: page.keyboard.press("Control+z"))
        page.reload()
        wait_until_ready(visited)
        texts = page.locator(".entry .name").all_inner_texts()
        assert texts == ["left ear", "right ear", "landmark_2", "landmark_3"]
        assert find_problems(visited) == []
    card = read_card_of(trained_server)
    assert card.names == ("left ear", "right ear", "landmark_2", "landmark_3")
    assert card.mirror[:2] == (1, 0)
    assert set(card.skeleton) == {(0, 1), (0, 3)}
    assert card.colors == ("", "#d55e00", "", "")
    assert card.hidden == (2,)
    assert (card.images, card.network, card.refine) == (before.images, before.network, before.refine)

    shown = ["left ear", "right ear", "landmark_3"]
    out = tmp_path / "out"
    assert selfmark("predict", trained_server.folder, photos, "-o", out, "--device=cpu") == 0
    with open(out / "landmarks.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["landmark"] for row in rows] == shown * 24
    assert selfmark("predict", trained_server.folder, photos, "-o", out, "--format=coco", "--device=cpu") == 0
    (category,) = json.loads((out / "landmarks.json").read_text())["categories"]
    assert category["keypoints"] == shown
    assert category["skeleton"] == [[1, 2], [1, 3]]
    assert category["flip_idx"][:2] == [1, 0]
    assert selfmark("report", trained_server.folder) == 0
    with visit(browser, trained_server.folder / "report" / "index.html") as visited:
        headings = visited.page.locator(".landmark h3").all_inner_texts()
        assert sorted(headings) == ["0 · left ear", "1 · right ear", "3 · landmark_3"]
        assert "left out here" in visited.page.inner_text("header")
        assert "landmark_2" in visited.page.inner_text("header")
        dot = visited.page.locator("#landmark-1 .dot").first
        assert dot.evaluate("dot => getComputedStyle(dot).backgroundColor") == "rgb(213, 94, 0)"
        assert find_problems(visited) == []


# --- keyboard, mouse and touch ----------------------------------------------------------------------


def test_keys_can_name_hide_confirm_undo_and_switch_views(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address) as visited:
        page = wait_until_ready(visited)
        keys = page.keyboard
        keys.press("ArrowDown")
        keys.press("n")
        # The next name can be typed before the previous name is saved.
        act_and_wait(page, lambda: keys.type("tail\near\n", delay=0), num_edits=2)
        keys.press("Escape")
        act_and_wait(page, lambda: keys.press("h"))  # Landmark 3 is selected now.
        card = read_card_of(toy)
        assert card.names[:4] == ("landmark_0", "tail", "ear", "landmark_3")
        assert card.hidden == (3,)
        act_and_wait(page, lambda: keys.press("y"))
        assert read_card_of(toy).confirmed == (3, 4)
        for _ in range(2):
            act_and_wait(page, lambda: keys.press("Control+z"))
        assert read_card_of(toy).hidden == read_card_of(toy).confirmed == ()
        act_and_wait(page, lambda: keys.press("Control+Shift+z"))
        assert read_card_of(toy).hidden == (3,)
        assert page.input_value("#row") == "1"
        keys.press("ArrowRight")
        page.wait_for_function("() => document.getElementById('row').value === '2'")
        keys.press("c")
        assert page.get_attribute("[data-tool=connect]", "aria-pressed") == "true"
        keys.press("Escape")
        assert page.get_attribute("[data-tool=select]", "aria-pressed") == "true"
        for key, view in (("2", "gallery"), ("3", "mirror"), ("1", "images")):
            keys.press(key)
            assert page.is_visible(f"#view-{view}")
        keys.press("?")
        assert page.is_visible("#help-box")
        keys.press("Escape")
        assert not page.is_visible("#help-box")
        assert find_problems(visited) == []


def test_points_are_connected_and_paired_with_the_mouse(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address) as visited:
        page = wait_until_ready(visited)
        page.mouse.click(*get_center(page, 4))
        assert page.get_attribute(".entry[data-landmark='4']", "aria-current") == "true"
        page.click("[data-tool=connect]")
        page.mouse.click(*get_center(page, 0))
        act_and_wait(page, lambda: page.mouse.click(*get_center(page, 2)))
        page.mouse.move(*get_center(page, 2))  # Draw a line with the mouse.
        page.mouse.down()
        page.mouse.move(*get_center(page, 5), steps=5)
        assert page.locator(".draft").count() == 2  # The line has an outline.
        act_and_wait(page, page.mouse.up)
        assert set(read_card_of(toy).skeleton) == {(0, 2), (2, 5)}
        assert page.locator(".bone:not(.under)").count() == 2
        page.mouse.click(*get_center(page, 2))
        act_and_wait(page, lambda: page.mouse.click(*get_center(page, 0)))  # The line is removed.
        assert read_card_of(toy).skeleton == ((2, 5),)
        page.click("[data-tool=pair]")
        page.mouse.click(*get_center(page, 2))
        act_and_wait(page, lambda: page.mouse.click(*get_center(page, 5)))
        assert read_card_of(toy).mirror == (1, 0, 5, 4, 3, 2)
        assert read_card_of(toy).confirmed == (2, 5)
        assert find_problems(visited) == []


def test_clicks_on_names_connect_landmarks_or_a_hint_says_why_not(browser: Any, toy: ToyServer) -> None:
    def click_name(landmark: int) -> None:
        select(page, landmark)

    with visit(browser, toy.address) as visited:
        page = wait_until_ready(visited)
        click_name(5)
        act_and_wait(page, lambda: page.keyboard.press("h"))
        page.click("[data-tool=connect]")
        click_name(0)
        assert "0 · landmark_0 is chosen" in page.inner_text("#hint")
        click_name(5)
        assert "5 · landmark_5 is hidden" in page.inner_text("#hint")
        click_name(0)
        assert "0 · landmark_0 cannot be connected to itself" in page.inner_text("#hint")
        act_and_wait(page, lambda: click_name(3))
        page.mouse.click(*get_center(page, 1))  # Connect a point with a name.
        act_and_wait(page, lambda: click_name(4))
        click_name(2)
        page.click("#tab-gallery")  # In the gallery, a click on a name only selects the landmark.
        click_name(1)
        assert read_card_of(toy).skeleton == ((0, 3), (1, 4))
        page.keyboard.press("m")
        click_name(2)
        label = page.locator(".point.selected .label").bounding_box()
        # A click on landmark 2 makes it its own partner.
        act_and_wait(page, lambda: page.mouse.click(label["x"] + 3, label["y"] + 5))
        assert read_card_of(toy).confirmed == (2,)
        assert find_problems(visited) == []


def test_landmarks_at_the_same_point_can_be_clicked_separately(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "overlapping"
    shown = make_toy_folder(folder, replace(CARD, trust=(0.9, 0.2, 0.9, 0.9, 0.9, 0.9)), images=1)
    shown.xy[0, :4] = [[40.0, 30.0], [40.0, 30.0], [40.0, 30.0], [41.0, 30.5]]
    with serve(folder, shown) as running, visit(browser, running.address) as visited:
        page = wait_until_ready(visited)
        places = [get_center(page, landmark) for landmark in range(6)]
        distances = [math.dist(a, b) for index, a in enumerate(places) for b in places[:index]]
        assert min(distances) >= 24, "marks of 11 pixels with an outline of 2 do not cover each other"
        for landmark in range(6):
            page.mouse.click(*places[landmark])
            assert page.get_attribute(f".entry[data-landmark='{landmark}']", "aria-current") == "true"
        ends = page.locator(".leader-end")
        true_places = ends.evaluate_all(
            "all => all.map(end => [+end.getAttribute('cx'), +end.getAttribute('cy')])"
        )
        assert true_places == [[40.5, 30.5], [40.5, 30.5], [40.5, 30.5], [41.5, 31.0]], (
            "the true places do not change"
        )
        assert page.locator(".point:has(.hollow)").get_attribute("data-landmark") == "1"
        assert "trust 0.20: do not rely" in page.locator(".point[data-landmark='1'] title").text_content()
        page.click("#tab-gallery")
        select(page, 1)
        page.wait_for_function("() => document.querySelector('.gallery-head .trust.low')")
        separated = page.evaluate(
            "async () => (await import('/page/separate.js')).separate(Array(30).fill([7, 7]), 2)"
        )
        assert min(math.dist(a, b) for i, a in enumerate(separated) for b in separated[:i]) >= 1.95
        assert find_problems(visited) == []


def test_points_are_corrected_by_dragging(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "corrected"
    shown = make_toy_folder(folder, replace(CARD, hidden=(5,)), images=3)
    labels = folder / "corrections" / "labels.json"

    def read_points(number: int = 0) -> list[list[float]]:
        keypoints = json.loads(labels.read_text())["annotations"][number]["keypoints"]
        return [keypoints[start : start + 3] for start in range(0, len(keypoints), 3)]

    with serve(folder, shown, "correct") as running, visit(browser, running.address) as visited:
        page = wait_until_ready(visited)
        assert page.get_attribute("[data-tool=correct]", "aria-pressed") == "true"
        start, scale = get_center(page, 0), page.locator(".overlay").bounding_box()["width"] / 120
        page.keyboard.press("Control+a")  # Selected text must not be dragged instead of the point.
        page.mouse.move(start[0] + 4, start[1] - 3)  # The mark can be dragged by any of its pixels.
        page.mouse.down()
        page.mouse.move(start[0] + 4 + 10 * scale, start[1] - 3 + 5 * scale, steps=4)
        assert page.locator(".cross:not(.under)").count() == 4
        act_and_wait(page, page.mouse.up)
        x, y, visibility = read_points()[0]
        assert visibility == 2
        assert (x, y) == pytest.approx((shown.xy[0, 0, 0] + 10, shown.xy[0, 0, 1] + 5), abs=0.3)
        assert [point[2] for point in read_points()] == [2, 0, 0, 0, 0, 0], (
            "only the moved landmark counts as corrected"
        )
        act_and_wait(page, lambda: page.keyboard.press("Shift+ArrowLeft"))
        assert read_points()[0][0] == pytest.approx(x - 1, abs=0.02)
        act_and_wait(page, lambda: page.keyboard.press("Control+z"))
        assert read_points()[0][0] == pytest.approx(x, abs=0.02)
        select(page, 2)
        act_and_wait(page, lambda: page.keyboard.press("x"))
        assert page.locator(".point.absent").get_attribute("data-landmark") == "2"
        page.evaluate("document.activeElement.blur()")
        act_and_wait(page, lambda: page.keyboard.press("Enter"))
        assert [point[2] for point in read_points()] == [2, 2, 0, 2, 2, 0]  # 2 is absent, 5 is hidden.
        page.wait_for_function("() => document.getElementById('row').value === '2'")
        assert "1 of 3 images done; points moved: 1" in page.inner_text("#corrected")
        assert page.locator(".thumbnail[data-corrected=done]").count() == 1
        page.reload()  # Nothing is lost, and the tool is the same.
        wait_until_ready(visited)
        page.click(".thumbnail[data-row='0']")
        page.wait_for_selector(".point.moved[data-landmark='0']")
        dropped = get_center(page, 0)
        assert dropped == pytest.approx((start[0] + 10 * scale, start[1] + 5 * scale), abs=2)
        select(page, 0)
        act_and_wait(page, lambda: page.click("#reset"))
        assert read_points()[0][:2] == pytest.approx(shown.xy[0, 0].tolist(), abs=0.02)
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert find_problems(visited) == []
            assert page.evaluate(_WITHOUT_LABEL) == page.evaluate(_LOW_CONTRAST) == []


def test_landmarks_are_selected_connected_and_named_by_touch(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address, 390, has_touch=True, is_mobile=True) as visited:
        page = wait_until_ready(visited)
        page.touchscreen.tap(*get_center(page, 1))
        assert page.get_attribute(".entry[data-landmark='1']", "aria-current") == "true"
        page.tap("[data-tool=connect]")
        page.touchscreen.tap(*get_center(page, 1))
        act_and_wait(page, lambda: page.touchscreen.tap(*get_center(page, 3)))
        assert read_card_of(toy).skeleton == ((1, 3),)
        page.tap("[data-tool=select]")
        page.tap(".entry[data-landmark='1']")
        page.fill("#name", "foot")
        act_and_wait(page, lambda: page.press("#name", "Enter"))
        assert read_card_of(toy).names[1] == "foot"
        assert not _is_reachable(page, "#partner")
        page.tap("#expand")
        assert _is_reachable(page, "#color-orange")
        act_and_wait(page, lambda: page.tap("#color-orange"))
        page.tap("#expand")
        _swipe(page)
        page.wait_for_function("() => document.getElementById('row').value === '2'")
        small_size = page.evaluate(
            "() => [...document.querySelectorAll('button, select, input')].filter(node => node.offsetParent"
            " && !node.matches('.crop, .thumbnail, .side-name, .tiny, .swatch input')"
            " && node.offsetHeight < 32).map(node => node.id || node.className || node.textContent)"
        )
        assert small_size == [], "too small for touch"
        assert find_problems(visited) == []


def _is_reachable(page: Any, selector: str) -> bool:
    """Return True if the element is in the window and nothing covers it."""
    return bool(
        page.evaluate(
            "selector => { const node = document.querySelector(selector), box = node.getBoundingClientRect();"
            " const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);"
            " return node === top || node.contains(top); }",
            selector,
        )
    )


def _swipe(page: Any) -> None:
    """Swipe to the left over a part of the image without landmarks."""
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


def test_gallery_opens_images_and_mirror_view_confirms_pairs(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address) as visited:
        page = wait_until_ready(visited)
        select(page, 3)
        page.click("#tab-gallery")
        page.wait_for_function("() => document.querySelectorAll('#view-gallery .crop').length === 5")
        page.click("[data-order=lowest]")
        page.wait_for_function("() => document.querySelector('[data-order=lowest]').ariaPressed === 'true'")
        scores = page.locator("#view-gallery .score")
        page.wait_for_function(
            "() => { const scores = document.querySelectorAll('#view-gallery .score');"
            " const all = [...scores].map(element => +element.innerText);"
            " return all.length === 5 && all.every((score, index) => !index || score >= all[index - 1]); }"
        )
        assert scores.count() == 5
        page.locator("#view-gallery .crop").nth(2).click()
        assert page.is_visible("#view-images")
        assert page.get_attribute(".entry[data-landmark='3']", "aria-current") == "true"
        page.click("#tab-mirror")
        page.wait_for_selector("#confirm-3")
        act_and_wait(page, lambda: page.click("#confirm-3"))
        assert read_card_of(toy).confirmed == (3, 4)
        act_and_wait(page, lambda: page.select_option("#partner-0", "0"))
        assert read_card_of(toy).mirror[:2] == (0, 1)
        assert "to see the landmarks that moved" in page.inner_text("#view-mirror .note")
        assert find_problems(visited) == []


def test_mirror_view_lists_an_unlearned_pair_only_once(browser: Any, tmp_path: Path) -> None:
    """The user paired landmarks 0 and 2; the detector learned another pair. Nobody has confirmed the pair."""
    card = replace(CARD, mirror=(2, 1, 0, 4, 3, 5), trained_mirror=CARD.mirror)
    shown = make_toy_folder(tmp_path / "cats", card)
    with serve(tmp_path / "cats", shown) as running, visit(browser, running.address) as visited:
        page = wait_until_ready(visited)
        page.click("#tab-mirror")
        page.wait_for_selector("#confirm-0")
        card_labels = page.locator("#view-mirror .pair").evaluate_all(
            "all => all.map(card => card.ariaLabel)"
        )
        assert card_labels == [
            "0 · landmark_0 and 2 · landmark_2",
            "3 · landmark_3 and 4 · landmark_4",
            "5 · landmark_5, its own mirror partner",
            "1 · landmark_1, its own mirror partner",
        ]
        assert find_problems(visited) == []


# --- trust and verdict ------------------------------------------------------------------------------


VERDICTS = {
    "good": "This run is good: the landmarks mark the same parts on different individuals.",
    "usable": "This run is usable: check each landmark before you rely on it.",
    "failed": "This run failed: the landmarks do not mark the same parts on different individuals.",
}


@pytest.fixture(params=VERDICTS)
def judged_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToyServer]:
    """Serve a run with a verdict; landmarks 1, 3 and 5 have a trust below the limit of 0.25."""
    trust = (0.9, 0.214, 0.5, 0.0, 1.0, 0.15)
    folder = tmp_path / "judged"
    card = replace(CARD, trust=trust, verdict=request.param, hidden=(5,))
    with serve(folder, make_toy_folder(folder, card)) as running:
        yield running


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_trust_and_verdict_are_shown(browser: Any, judged_server: ToyServer, scheme: str) -> None:
    with visit(browser, judged_server.address, color_scheme=scheme) as visited:
        page = wait_until_ready(visited)
        verdict = VERDICTS[str(read_card_of(judged_server).verdict)]
        assert page.inner_text("#verdict") == f"{verdict} 3 of 6 landmarks are trustworthy."
        shown = page.locator(".entry .trust")
        assert shown.all_inner_texts() == ["0.90", "0.21", "0.50", "0.00", "1.00", "0.15"]
        assert shown.nth(0).get_attribute("title") == "trust 0.90"
        assert shown.nth(1).get_attribute("title") == "trust 0.21: do not rely on this landmark"
        hollow = page.locator(".entry:has(.badge.hollow)")
        assert hollow.evaluate_all("all => all.map(entry => entry.dataset.landmark)") == ["1", "3", "5"]
        color = page.locator(".entry[data-landmark='1'] .badge").evaluate(
            "badge => getComputedStyle(badge).borderTopColor"
        )
        assert color == f"rgb{to_rgb(landmark_colors(CARD)[1])}"
        name = page.locator(".entry[data-landmark='3']").inner_text()
        assert "do not rely on this landmark" in name, "screen readers announce it"
        for landmark, text in ((1, "Trust 0.21: do not rely on this landmark"), (2, "Trust 0.50")):
            select(page, landmark)
            assert page.inner_text("#trust") == text
        for width in (1280, 768, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert find_problems(visited) == []
            assert page.evaluate(_LOW_CONTRAST) == []


def test_a_run_without_trust_shows_neither_trust_nor_verdict(browser: Any, shared_server: ToyServer) -> None:
    with visit(browser, shared_server.address) as visited:
        page = wait_until_ready(visited)
        assert not page.is_visible("#verdict")
        assert page.locator(".trust, #trust, .hollow").count() == 0


# --- errors -----------------------------------------------------------------------------------------


def test_duplicate_name_is_reported_next_to_the_field(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address) as visited:
        page = wait_until_ready(visited)
        page.fill("#name", "landmark_4")
        with page.expect_response("**/api/edits") as response:
            page.press("#name", "Enter")
        assert response.value.status == 409
        page.wait_for_function("() => document.getElementById('name-error').textContent")
        assert "landmark 4 is already called 'landmark_4'" in page.inner_text("#name-error")
        assert page.get_attribute("#name", "aria-invalid") == "true"
        assert page.input_value("#name") == "landmark_4", "the user can correct what was typed"
        assert read_card_of(toy) == CARD


def test_two_windows_show_each_others_edits(browser: Any, toy: ToyServer) -> None:
    with visit(browser, toy.address) as first, visit(browser, toy.address) as second:
        wait_until_ready(first), wait_until_ready(second)
        first.page.fill("#name", "nose")
        act_and_wait(first.page, lambda: first.page.press("#name", "Enter"))
        select(second.page, 1)
        act_and_wait(second.page, lambda: second.page.click("#hide"))
        assert second.page.inner_text(".entry[data-landmark='0'] .name") == "nose"
        first.page.wait_for_selector(".entry.off[data-landmark='1']")
        # Each window undoes its own edits.
        first.page.evaluate("document.activeElement.blur()")
        act_and_wait(first.page, lambda: first.page.click("#undo"))
        assert read_card_of(toy) == replace(CARD, hidden=(1,))


def test_stopped_server_is_reported(browser: Any, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    with StoppableVisit(browser, folder) as (visited, stop):
        page = wait_until_ready(visited)
        stop()
        page.keyboard.press("h")
        page.wait_for_selector("#error:not([hidden])")
        assert "Start 'selfmark name' again" in page.inner_text("#error")


class StoppableVisit:
    """A visit to a server that can be stopped while the page stays open."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.server = serve(folder, make_toy_folder(folder))
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


@pytest.mark.parametrize("inject", [False, True])
def test_user_text_never_runs_as_code(browser: Any, tmp_path: Path, inject: bool) -> None:
    # The content security policy is off, so the page itself must treat text as text.
    card = replace(CARD, names=(INJECTION, *CARD.names[1:]), skeleton=((0, 1),))
    folder = tmp_path / "<script>window.attacked=1<"
    shown = make_toy_folder(folder, card, name="<script>window.attacked=1<{}>.jpg")
    with serve(folder, shown) as running, visit(browser, running.address, bypass_csp=True) as visited:
        page = wait_until_ready(visited)
        assert page.inner_text(".entry[data-landmark='0'] .name") == INJECTION
        page.fill("#name", "<img src=x onerror=window.attacked=1>")
        act_and_wait(page, lambda: page.press("#name", "Enter"))
        for key in ("Escape", "2", "3", "1"):
            page.keyboard.press(key)
            page.wait_for_timeout(60)
        if inject:  # This shows that the check can fail.
            page.evaluate(
                "text => { const box = document.createElement('div'); document.body.append(box);"
                " box.innerHTML = text; }",
                INJECTION,
            )
            page.wait_for_function("() => window.attacked === 1")
        assert visited.was_attacked() is inject


def test_content_security_policy_blocks_injections(browser: Any, shared_server: ToyServer) -> None:
    with visit(browser, shared_server.address) as visited:
        page = wait_until_ready(visited)
        blocked = page.evaluate(
            "text => { try { document.body.innerHTML += text; return 'no'; } catch { return 'yes'; } }",
            INJECTION,
        )
        assert blocked == "yes"
        with page.expect_console_message(lambda message: "Content Security Policy" in message.text):
            page.evaluate("() => document.querySelector('.photo').src = 'http://127.0.0.1:9/'")
        assert not visited.was_attacked()


# --- appearance and accessibility -------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_has_no_problems(browser: Any, shared_server: ToyServer, scheme: str) -> None:
    with visit(browser, shared_server.address, 1280, color_scheme=scheme) as visited:
        page = wait_until_ready(visited)
        for width in (1280, 768, 360):
            page.set_viewport_size({"width": width, "height": 800})
            for key in "231":
                page.keyboard.press(key)
                assert find_problems(visited) == []
                assert page.evaluate(_WITHOUT_LABEL) == []
                assert page.evaluate(_LOW_CONTRAST) == []


# JavaScript function that returns the controls without a label for screen readers.
_WITHOUT_LABEL = """() => [...document.querySelectorAll('button, select, input')]
    .filter(node => node.offsetParent)
    .filter(node => !(node.ariaLabel || node.textContent.trim() || (node.labels && node.labels.length)))
    .map(node => node.outerHTML.slice(0, 120))"""

# JavaScript function that returns the text whose contrast is below 4.5, which WCAG requires.
_LOW_CONTRAST = """() => {
  const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
  const background = node => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(node).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const ratio = node => {
    const both = [light(channels(getComputedStyle(node).color)), light(background(node))];
    return (Math.max(...both) + .05) / (Math.min(...both) + .05);
  };
  const hasText = node => [...node.childNodes].some(part => part.nodeType === 3 && part.data.trim());
  return [...document.querySelectorAll('body *')]
    .filter(node => node.offsetParent && !node.disabled && hasText(node))
    .filter(node => !node.closest('svg, .score, #saved, .visually-hidden') && ratio(node) < 4.5)
    .map(node => `${node.className}: ${node.textContent.slice(0, 40)}`);
}"""


def test_contrast_check_can_fail(browser: Any, shared_server: ToyServer) -> None:
    with visit(browser, shared_server.address) as visited:
        page = wait_until_ready(visited)
        page.evaluate("() => document.body.style.setProperty('--muted', '#bbb')")
        assert len(page.evaluate(_LOW_CONTRAST)) > 3


def test_tab_reaches_the_controls_and_outlines_the_focused_one(
    browser: Any, shared_server: ToyServer
) -> None:
    with visit(browser, shared_server.address) as visited:
        page = wait_until_ready(visited)
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(
                page.evaluate(
                    "() => { const node = document.activeElement; return node.id || node.className; }"
                )
            )
        outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
        assert {"name", "partner", "connect", "hide", "tab-images", "row", "entry"} <= reached
        assert re.match("solid|auto", outline)
