"""Test the report page as a file: its structure, escaping and error messages."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from selfmark.errors import DiskError
from selfmark.report import ReportCurves, ReportTable, write_report
from tests.report.example import ATTACK, E, K, make_evaluated_data, make_example_data


class Page(HTMLParser):
    """All elements of a page with their attributes, and all visible text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def find_facts(self, name: str) -> list[str]:
        """Return the text after a term, for each occurrence of the term."""
        return re.findall(rf"^\s*{name}(.*)$", self.text, re.MULTILINE)

    def find_all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = write_report(make_example_data(), tmp_path / "report")
    assert path == tmp_path / "report" / "index.html"
    assert [entry.name for entry in path.parent.iterdir()] == ["index.html"]  # There are no temporary files.
    return path.read_text(encoding="utf-8")


def test_the_page_loads_nothing(source: str) -> None:
    page = Page(source)
    assert not page.find_all("script")
    assert not page.find_all("link")
    assert not re.search(r"url\(|@import|https?://", source)
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "xlink:href", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:image/"))


def test_every_picture_decodes(source: str) -> None:
    images = Page(source).find_all("img")
    assert len(images) == E + K * E
    for image in images:
        payload = image["src"].removeprefix("data:image/jpeg;base64,")
        decoded = cv2.imdecode(
            np.frombuffer(base64.b64decode(payload, validate=True), np.uint8), cv2.IMREAD_COLOR
        )
        assert decoded is not None
        assert min(decoded.shape[:2]) >= 64
        assert image["alt"]


def test_untrusted_text_is_escaped(source: str) -> None:
    page = Page(source)
    assert "<script" not in source
    assert "<b>" not in source
    assert ATTACK in page.text  # The name is shown as text.
    assert "left <b>eye</b>" in page.text
    assert f"Landmarks found in {ATTACK}" in [image["alt"] for image in page.find_all("img")]
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    (policy,) = [
        meta["content"] for meta in page.find_all("meta") if "content-security-policy" in str(meta).lower()
    ]
    assert "default-src 'none'" in policy


def test_each_landmark_has_a_section_with_partner_and_detection_rate(source: str) -> None:
    page = Page(source)
    assert [section["id"] for section in page.find_all("article")] == [
        f"landmark-{index}" for index in range(K)
    ]
    partners = [link["href"] for link in page.find_all("a") if link["href"].startswith("#landmark-")]
    assert partners == ["#landmark-2", "#landmark-1"]
    assert page.find_facts("mirror partner") == [
        "itself",
        "2 · right eye",
        "1 · left <b>eye</b>",
        "none found",
    ]
    assert page.find_facts("found in") == ["91%", "50%", "25%", "0%"]


def test_headline_numbers_and_settings_are_listed(source: str) -> None:
    text = Page(source).text
    assert "4.83%" in text
    assert "In percent of the object's size." in text
    assert "images.deeply.nested" in text
    assert "[1, 2]" in text


def test_each_stage_and_loss_has_a_chart(source: str) -> None:
    labels = [svg["aria-label"] for svg in Page(source).find_all("svg")]
    assert labels == [
        "Stage 1: loss: value by iteration",
        "Stage 1: detector loss: value by iteration",
        "Stage 2: loss: value by iteration",
    ]


def test_a_landmark_without_examples_has_a_note(tmp_path: Path) -> None:
    xy = make_example_data().example_xy.copy()
    xy[:, 3] = np.nan
    page = Page(write_report(make_example_data(example_xy=xy), tmp_path).read_text(encoding="utf-8"))
    assert page.text.count("Not found in any of the examples.") == 1
    assert len(page.find_all("img")) == E + (K - 1) * E


def test_a_run_without_history_or_headline_numbers_still_has_a_report(tmp_path: Path) -> None:
    page = Page(
        write_report(make_example_data(history=(), headline_numbers=()), tmp_path).read_text(encoding="utf-8")
    )
    assert not page.find_all("svg")
    assert len(page.find_all("article")) == K


def test_evaluation_sections_appear_only_after_an_evaluation(source: str) -> None:
    sections = [section["id"] for section in Page(source).find_all("section")]
    assert sections == ["examples", "landmarks", "training", "words", "settings"]
    assert not Page(source).find_all("table")


@pytest.fixture
def evaluated_page(tmp_path: Path) -> Page:
    return Page(write_report(make_evaluated_data(), tmp_path).read_text(encoding="utf-8"))


def test_an_evaluation_adds_sections_with_links(evaluated_page: Page) -> None:
    sections = [section["id"] for section in evaluated_page.find_all("section")]
    assert sections == [
        *("trust", "examples", "evaluation", "landmarks", "clusters", "training", "words", "settings")
    ]
    ids = [attributes["id"] for _, attributes in evaluated_page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [link["href"].removeprefix("#") for link in evaluated_page.find_all("a")]
    assert set(links) <= set(ids)
    assert set(sections) <= set(links)


def test_landmarks_are_ordered_and_grouped_by_trust(evaluated_page: Page) -> None:
    order = [article["id"] for article in evaluated_page.find_all("article")]
    assert order == ["landmark-1", "landmark-0", "landmark-2", "landmark-3"]
    phrases = ("trustworthy", "use with care", "do not rely on", "not measured")
    # The heading of a group is a capitalized phrase. The heading of a landmark ends with its trust as a
    # number, if the trust was measured, and as a phrase.
    positions = [evaluated_page.text.index(phrase.capitalize()) for phrase in phrases]
    assert positions == sorted(positions)
    lines = [line.strip() for line in evaluated_page.text.split("\n")]
    assert [line for line in lines if line.endswith(phrases)] == [
        *("0.90trustworthy", "0.30use with care", "0.10do not rely on", "not measured")
    ]
    widths = re.findall(r"width: (\d+)%", " ".join(e.get("style", "") for e in evaluated_page.find_all("i")))
    # The bars are in the table of all landmarks and in the sections.
    assert widths == ["90", "30", "10", "0"] * 2


def test_landmarks_keep_the_order_in_which_they_are_given(tmp_path: Path) -> None:
    data = make_evaluated_data(order=np.array([3, 0, 2, 1]))
    page = Page(write_report(data, tmp_path).read_text(encoding="utf-8"))
    assert [article["id"] for article in page.find_all("article")] == [f"landmark-{i}" for i in (3, 0, 2, 1)]


def test_trust_limits_can_be_set(tmp_path: Path) -> None:
    data = make_evaluated_data(trust=np.full(K, 0.5), trust_limits=(0.5, 0.6))
    text = Page(write_report(data, tmp_path).read_text(encoding="utf-8")).text
    assert "Use with care4 of 4" in text
    assert "Trustworthy" not in text


def test_notes_tables_and_facts_are_shown_as_text(evaluated_page: Page) -> None:
    assert f"No label for {ATTACK}." in evaluated_page.text
    for text in ("6.10 ± 0.2", "quite a long body part 15", "deformation error", "3.5 %", "2 of 7 images"):
        assert text in evaluated_page.text
    assert not evaluated_page.find_all("b")
    assert not evaluated_page.find_all("script")
    # There are two tables of the evaluation, one that compares landmarks, and one of the rounds.
    assert len(evaluated_page.find_all("table")) == 2 + 1 + 1


def test_a_note_on_the_cluster_plot_is_shown_below_it(tmp_path: Path) -> None:
    page = Page(
        write_report(make_evaluated_data(cluster_note=f"A projection of {ATTACK}."), tmp_path).read_text()
    )
    assert f"numbered by landmark. A projection of {ATTACK}." in page.text
    assert not page.find_all("script")


def test_numeric_columns_are_aligned_right(tmp_path: Path) -> None:
    table = ReportTable(
        "t", "", ("a", "b", "c"), (("1", "2.5 ± 0.1", "word"), ("2", "none", "3"), ("3", "-1", "4"))
    )
    page = Page(write_report(make_example_data(tables=(table,)), tmp_path).read_text(encoding="utf-8"))
    assert [cell.get("class", "") for cell in page.find_all("td")] == ["number", ""] * 3


def test_values_that_are_not_finite_are_handled(tmp_path: Path) -> None:
    not_finite = np.full((3, 2), np.nan)
    curve = ReportCurves("empty", "", "x", "y", (("line", np.array([1.0]), np.array([np.nan])),))
    data = make_evaluated_data(
        detection=np.full(K, np.nan),
        example_xy=np.full((E, K, 2), np.inf),
        example_score=np.full((E, K), np.nan),
        trust=np.full(K, np.nan),
        curves=(curve,),
        cluster_xy=not_finite,
        cluster_label=np.zeros(3, int),
    )
    source = write_report(data, tmp_path).read_text(encoding="utf-8")
    assert Page(source).find_facts("found in") == ["not measured"] * K
    body = source[source.index("</style>") :]
    assert not re.search(r"\b(nan|inf)\b", body)
    assert "clusters" not in [section["id"] for section in Page(source).find_all("section")]


def test_a_run_without_example_images_still_has_a_report(tmp_path: Path) -> None:
    data = make_evaluated_data(
        examples=np.zeros((0, 64, 64, 3), np.uint8),
        example_xy=np.zeros((0, K, 2)),
        example_score=np.zeros((0, K)),
        example_names=(),
    )
    page = Page(write_report(data, tmp_path).read_text(encoding="utf-8"))
    assert "There are no example images." in page.text
    assert page.find_all("img") == []


def test_a_large_report_is_of_reasonable_size(tmp_path: Path) -> None:
    # Smooth images with some noise compress like photographs.
    rng = np.random.default_rng(0)
    count, landmarks, size = 24, 30, 256
    coarse = rng.integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)
    images = np.stack([cv2.resize(image, (size, size), interpolation=cv2.INTER_CUBIC) for image in coarse])
    images = np.clip(images + rng.normal(0, 4, images.shape), 0, 255).astype(np.uint8)
    data = make_evaluated_data(
        names=tuple(f"landmark {index}" for index in range(landmarks)),
        examples=images,
        example_xy=rng.uniform(0, size - 1, (count, landmarks, 2)),
        example_score=rng.uniform(0, 1, (count, landmarks)),
        example_names=tuple(f"{index}.png" for index in range(count)),
        mirror=tuple(range(landmarks)),
        detection=rng.uniform(0, 1, landmarks),
        trust=rng.uniform(0, 1, landmarks),
        facts=(),
    )
    path = write_report(data, tmp_path)
    assert 1e6 < path.stat().st_size < 6e6
    assert len(Page(path.read_text(encoding="utf-8")).find_all("img")) == count + 12 * landmarks


def test_writing_again_replaces_the_report(tmp_path: Path) -> None:
    write_report(make_example_data(), tmp_path)
    path = write_report(make_example_data(title="second"), tmp_path)
    assert "<h1>second</h1>" in path.read_text(encoding="utf-8")
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unwritable_folder_is_a_disk_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(DiskError, match=r"cannot write .*index\.html"):
        write_report(make_example_data(), tmp_path / "file")


@pytest.mark.parametrize(
    "change",
    [
        {"example_names": ("a",)},
        {"example_score": np.zeros((E, K + 1))},
        {"mirror": (0, 1)},
        {"detection": np.zeros(2)},
        {"trust": np.zeros(K + 1)},
        {"facts": ((),)},
        {"order": np.array([0, 1, 2, 2])},
        {"cluster_xy": np.zeros((5, 2))},
        {"cluster_label": np.zeros(5, int)},
        {"cluster_xy": np.zeros((5, 3)), "cluster_label": np.zeros(5, int)},
    ],
)
def test_arrays_of_wrong_shape_are_value_errors(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        make_example_data(**change)


def test_tables_and_curves_check_their_shape() -> None:
    with pytest.raises(ValueError, match="must have 2 cells"):
        ReportTable("t", "", ("a", "b"), (("1", "2"), ("1",)))
    with pytest.raises(ValueError, match="of equal length"):
        ReportCurves("t", "", "x", "y", (("line", np.zeros(3), np.zeros(4)),))


def test_hidden_landmarks_are_left_out_and_others_keep_number_and_color(tmp_path: Path) -> None:
    names = ("nose", "wobble", "right eye", "tail")
    colors = ("#111111", "#222222", "#333333", "#444444")
    data = make_evaluated_data(
        names=names, mirror=(0, 2, 1, 3), hidden=(1,), colors=colors, skeleton=((0, 1), (0, 3))
    )
    page = write_report(data, tmp_path).read_text()
    assert "3 landmarks that selfmark found" in page
    assert "left out here and in exported files" in page
    assert 'id="landmark-1"' not in page
    for index in (0, 2, 3):
        assert f"<h3>{index} · {names[index]}</h3>" in page
        assert colors[index] in page
    assert "#222222" not in page, "the color of the hidden landmark appears somewhere"
    assert page.count("wobble") == 1, "the name must appear only in the note on hidden landmarks"
    assert "1 · hidden" in page, "the mirror partner of the right eye is not shown as hidden"
