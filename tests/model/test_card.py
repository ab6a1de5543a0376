"""Test model cards: reading and writing, older and invalid files, colors, hidden landmarks.

Psi is the network that locates landmarks.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from selfmark.config import Images, Network
from selfmark.detector import Detector, detector_fingerprint
from selfmark.errors import InputError
from selfmark.model.card import (
    SMOOTHING,
    ModelCard,
    landmarks_without_partner,
    read_card,
    untrusted_landmarks,
    visible_card,
    visible_landmarks,
    write_card,
)
from selfmark.model.colors import landmark_colors, palette, to_rgb
from selfmark.model.network import Psi

NETWORK = Network(channels=32, depth=2, descriptor=8, norm_groups=4)
CARD = ModelCard(("a", "b", "c"), (1, 0, 2), ((0, 1),), Images(size=64), NETWORK, "parabola", True, {})
EDITED = replace(
    CARD, names=("x", "y", "z"), skeleton=((1, 2),), colors=("", "#102030", ""), hidden=(2,), confirmed=(0, 1)
)
JUDGED = replace(EDITED, trust=(0.9, 0.25, 0.0), verdict="usable", unpaired=(1,), trained_mirror=(1, 0, 2))


@pytest.mark.parametrize("card", [EDITED, JUDGED])
def test_an_edited_card_is_written_and_read(card: ModelCard, tmp_path: Path) -> None:
    write_card(card, tmp_path)
    assert read_card(tmp_path) == card


def test_the_trust_of_hidden_landmarks_is_left_out() -> None:
    assert visible_card(JUDGED).trust == (0.9, 0.25)
    assert visible_card(EDITED).trust == ()


def test_a_user_can_give_a_partner_to_a_landmark_without_one() -> None:
    card = replace(CARD, mirror=(0, 1, 2), unpaired=(0, 2))
    assert landmarks_without_partner(card) == [0, 2]
    assert landmarks_without_partner(replace(card, mirror=(1, 0, 2))) == [2]
    assert landmarks_without_partner(replace(card, confirmed=(0, 2))) == [], (
        "landmarks 0 and 2 are on the midline"
    )
    assert visible_card(replace(card, hidden=(0,))).unpaired == (1,)


def test_landmarks_are_averaged_only_with_learned_partners() -> None:
    card = replace(CARD, trained_mirror=CARD.mirror)
    assert landmarks_without_partner(card) == []
    separated = replace(card, mirror=(0, 1, 2), confirmed=(0,))
    assert landmarks_without_partner(separated) == [0, 1]
    assert landmarks_without_partner(replace(separated, trained_mirror=())) == [], (
        "cards of older versions lack it"
    )
    assert visible_card(replace(separated, hidden=(2,))).trained_mirror == (1, 0)


def test_landmarks_below_the_limit_are_untrusted() -> None:
    card = replace(CARD, trust=(0.25, 0.24, 1.0))
    assert untrusted_landmarks(card) == [1]
    assert untrusted_landmarks(card, 0.6) == [0, 1]
    assert untrusted_landmarks(card, 0) == []
    assert untrusted_landmarks(CARD, 1) == [], "trust was not measured"


def test_a_card_of_an_older_version_with_fewer_fields_is_read(tmp_path: Path) -> None:
    write_card(CARD, tmp_path)
    path = tmp_path / "model.json"
    values = json.loads(path.read_text())
    for field in ("colors", "hidden", "confirmed", "trust", "verdict", "unpaired"):
        del values[field]
    path.write_text(json.dumps(values))
    assert read_card(tmp_path) == CARD


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colors": ["#102030"]}, "1 colors for 3 landmarks"),
        ({"colors": ["red", "", ""]}, "'red' is not a color"),
        ({"colors": [3, "", ""]}, "3 is not a color"),
        ({"colors": ["#10203", "", ""]}, "is not a color"),
        ({"colors": ["url(x)", "", ""]}, "is not a color"),
        ({"hidden": [3]}, "'hidden' must be a list of landmarks from 0 to 2"),
        ({"hidden": [-1]}, "'hidden' must be a list of landmarks"),
        ({"hidden": [True]}, "'hidden' must be a list of landmarks"),
        ({"hidden": 1}, "valid model description"),
        ({"hidden": [0, 1, 2]}, "all landmarks are hidden"),
        ({"confirmed": ["a"]}, "'confirmed' must be a list of landmarks"),
        ({"mirror": [1, 2, 0]}, "are not mutual"),
        ({"mirror": []}, "there are no mirror partners"),
        ({"trained_mirror": [0, 1]}, "are not a permutation"),
        ({"unpaired": [3]}, "'unpaired' must be a list of landmarks"),
        ({"skeleton": [[0, 3]]}, "connects landmarks that do not exist"),
        ({"skeleton": [[-1, 0]]}, "connects landmarks that do not exist"),
        ({"trust": [0.5]}, "'trust' must have 3 values, not 1"),
        ({"trust": [0.5, 1.5, 0]}, "trust must be between 0 and 1"),
        ({"trust": [0.5, None, 0]}, "valid model description"),
        ({"verdict": "great"}, "unknown value 'great' of 'verdict'"),
        ({"provenance": [["seed", 0]]}, "a JSON object was expected"),
        ({"provenance": {"features": {"name": "\ud800"}}}, "not a valid value of 'features'"),
        ({"provenance": {"images": -1}}, "not a valid value of 'images'"),
    ],
)
def test_an_invalid_card_raises(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_card(CARD, tmp_path)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError, match=message):
        read_card(tmp_path)


def test_a_card_cannot_claim_that_landmarks_were_smoothed(tmp_path: Path) -> None:
    write_card(replace(CARD, provenance={"seed": 3, SMOOTHING: "kalman"}), tmp_path)
    assert read_card(tmp_path).provenance == {"seed": 3}


def test_a_deeply_nested_card_is_refused(tmp_path: Path) -> None:
    write_card(CARD, tmp_path)
    path = tmp_path / "model.json"
    nested = '"provenance": {"x": ' + "[" * 900 + "]" * 900
    path.write_text(path.read_text().replace('"provenance": {', nested))
    with pytest.raises(InputError, match="not valid JSON: it is nested too deeply"):
        read_card(tmp_path)


def test_repeated_edges_of_a_skeleton_are_read_once(tmp_path: Path) -> None:
    write_card(replace(CARD, skeleton=((2, 0), (0, 1), (0, 2), (1, 1)) * 1_000), tmp_path)
    assert read_card(tmp_path).skeleton == ((2, 0), (0, 1))


def test_colors_are_chosen_by_the_user_or_from_the_palette() -> None:
    assert landmark_colors(CARD) == palette(3)
    assert landmark_colors(EDITED) == (palette(3)[0], "#102030", palette(3)[2])
    assert to_rgb("#102030") == (16, 32, 48)


def test_a_detector_predicts_hidden_landmarks_and_keeps_its_fingerprint() -> None:
    torch.manual_seed(0)
    psi = Psi(NETWORK, 3)
    original_detector, edited_detector = Detector(psi, CARD), Detector(psi, EDITED)
    image = np.random.default_rng(0).integers(0, 255, (80, 60, 3), dtype=np.uint8)
    found = edited_detector(image)
    assert found.names == ("x", "y", "z")
    np.testing.assert_array_equal(found.xy, original_detector(image).xy)
    assert visible_landmarks(edited_detector.card) == [0, 1]
    assert detector_fingerprint(edited_detector) == detector_fingerprint(original_detector), (
        "maps and ONNX files stay valid"
    )
    other_mirror = Detector(psi, replace(CARD, mirror=(0, 1, 2)))
    assert detector_fingerprint(other_mirror) != detector_fingerprint(original_detector), (
        "landmarks move, so these files are invalid"
    )
