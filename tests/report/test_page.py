from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.report import ReportData, write_report

K, E, S = 4, 5, 64
ATTACK = '<script>alert("x")</script>.png'


class Page(HTMLParser):
    """All elements with their attributes, and all visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def example_data(**changes: Any) -> ReportData:
    rng = np.random.default_rng(0)
    history: list[dict[str, Any]] = [{"event": "start"}, {"event": "images", "used": 5}]
    history += [
        {"stage": "warm-up", "round": 0, "iteration": i, "loss": {"total": 1 / i, "detector": 0.1}}
        for i in range(10, 60, 10)
    ]
    history += [
        {"stage": "round", "round": 1, "start": 50, "iteration": i, "loss": {"total": 0.5}} for i in (60, 70)
    ]
    history += [{"stage": "stage 2", "iteration": i, "loss": 0.01 * i} for i in (10, 20)]
    data = ReportData(
        title="cats & dogs",
        names=("nose", "left <b>eye</b>", "right eye", "tail"),
        examples=rng.integers(0, 255, (E, S, S, 3), dtype=np.uint8),
        example_xy=rng.uniform(5, 58, (E, K, 2)),
        example_score=rng.uniform(0, 1, (E, K)),
        example_names=("a.png", ATTACK, "b.png", 'quote".png', "bad\udcff.png"),
        mirror=(0, 2, 1, 3),
        detection=np.array([0.914, 0.5, 0.25, 0.0]),
        history=tuple(history),
        figures=(("Forward error", "4.83%", "In percent of the object's size."),),
        settings={"K": 4, "images": {"size": 64, "deep": {"er": [1, 2]}}},
    )
    return replace(data, **changes)


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = write_report(example_data(), tmp_path / "report")
    assert path == tmp_path / "report" / "index.html"
    assert [entry.name for entry in path.parent.iterdir()] == [
        "index.html"
    ]  # nothing else, nothing half-written
    return path.read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(source: str) -> None:
    page = Page(source)
    assert not page.all("script")
    assert not page.all("link")
    assert not re.search(r"url\(|@import|https?://", source)
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "xlink:href", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))


def test_every_picture_decodes(source: str) -> None:
    images = Page(source).all("img")
    assert len(images) == E + K * E
    for image in images:
        payload = image["src"].removeprefix("data:image/jpeg;base64,")
        decoded = cv2.imdecode(
            np.frombuffer(base64.b64decode(payload, validate=True), np.uint8), cv2.IMREAD_COLOR
        )
        assert decoded is not None
        assert min(decoded.shape[:2]) >= 64
        assert image["alt"]


def test_untrusted_text_stays_text(source: str) -> None:
    page = Page(source)
    assert "<script" not in source
    assert "<b>" not in source
    assert ATTACK in page.text  # shown as it is, as text
    assert "left <b>eye</b>" in page.text
    assert f"Landmarks found in {ATTACK}" in [image["alt"] for image in page.all("img")]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    (policy,) = [
        meta["content"] for meta in page.all("meta") if "content-security-policy" in str(meta).lower()
    ]
    assert "default-src 'none'" in policy


def test_each_landmark_has_a_section_with_partner_and_detection_rate(source: str) -> None:
    page = Page(source)
    sections = [section["id"] for section in page.all("section")]
    assert sections == [f"landmark-{index}" for index in range(K)]
    assert [link["href"] for link in page.all("a")] == ["#landmark-2", "#landmark-1"]
    assert page.text.count("its own mirror image") == 2
    for share in ("91%", "50%", "25%", "0%"):
        assert f"found in {share} of the training images" in page.text


def test_figures_and_settings_are_listed(source: str) -> None:
    text = Page(source).text
    assert "4.83%" in text
    assert "In percent of the object's size." in text
    assert "images.deep.er" in text
    assert "[1, 2]" in text


def test_a_chart_for_each_stage_and_loss(source: str) -> None:
    labels = [svg["aria-label"] for svg in Page(source).all("svg")]
    assert labels == [
        "Stage 1: loss over the iterations",
        "Stage 1: detector loss over the iterations",
        "Stage 2: loss over the iterations",
    ]


def test_a_landmark_missing_everywhere_is_said_so(tmp_path: Path) -> None:
    xy = example_data().example_xy.copy()
    xy[:, 3] = np.nan
    page = Page(write_report(example_data(example_xy=xy), tmp_path).read_text(encoding="utf-8"))
    assert page.text.count("In none of the examples.") == 1
    assert len(page.all("img")) == E + (K - 1) * E


def test_a_run_without_history_or_figures_still_has_a_report(tmp_path: Path) -> None:
    page = Page(write_report(example_data(history=(), figures=()), tmp_path).read_text(encoding="utf-8"))
    assert not page.all("svg")
    assert len(page.all("section")) == K


def test_writing_again_replaces_the_report(tmp_path: Path) -> None:
    write_report(example_data(), tmp_path)
    path = write_report(example_data(title="second"), tmp_path)
    assert "<h1>second</h1>" in path.read_text(encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unwritable_folder_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot write .*index\.html"):
        write_report(example_data(), tmp_path / "file")


@pytest.mark.parametrize(
    "change",
    [
        {"example_names": ("a",)},
        {"example_score": np.zeros((E, K + 1))},
        {"mirror": (0, 1)},
        {"detection": np.zeros(2)},
    ],
)
def test_arrays_that_do_not_fit_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        example_data(**change)
