"""A map on a real run folder, with its own network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from selfmark.detector import Detector
from selfmark.mapping.learn import learn_map
from selfmark.mapping.state import MappedDetector, load_mapping


def test_a_run_learns_the_points_of_a_label_file(quick_run: Path, labelled: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(quick_run, run)
    labels = labelled / "labels.json"
    named = learn_map(run, labels, [labelled / "images"], device="cpu").mapping
    # The run saw whole images, so the boxes of the label file are not used.
    unnamed = learn_map(run, labels, device="cpu").mapping
    np.testing.assert_array_equal(named.map.weights, unnamed.map.weights)

    content = json.loads(labels.read_text())
    names = tuple(content["categories"][0]["keypoints"])
    detector = Detector.load(run)
    mapped = MappedDetector(detector, load_mapping(run, detector))
    found = mapped(labelled / "images")
    assert found.names == names
    assert found.xy.shape == (len(content["images"]), len(names), 2)
    # The quick run learned nothing, but even so the map knows roughly where the points are.
    truth = np.array([entry["keypoints"] for entry in content["annotations"]]).reshape(-1, len(names), 3)
    distance = np.linalg.norm(found.xy - truth[..., :2], axis=2)[truth[..., 2] > 0]
    assert distance.mean() < 0.25 * content["images"][0]["width"]
    assert ((found.score >= 0) & (found.score <= 1)).all()
