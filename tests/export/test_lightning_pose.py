"""Read label files back with Lightning Pose, and with pandas and the options that Lightning Pose gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.export.lightning_pose import write_lightning_pose
from tests.export.fakes import (
    CARD,
    CLIP,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    iterate_expected_objects,
    make_predictions,
)


@pytest.mark.filterwarnings("ignore:register_new_resolver")
def test_lightning_pose_reads_the_labels(tmp_path: Path) -> None:
    io: Any = pytest.importorskip("lightning_pose.utils.io")
    batches = make_predictions(STILLS)
    path = write_lightning_pose(batches, CARD, tmp_path)
    labels = io.parse_label_csv(str(path))
    expected = list(iterate_expected_objects(batches))
    assert labels.keypoint_names == list(NAMES)
    assert labels.image_names == [str(obj.ref.path) for obj in expected]
    np.testing.assert_allclose(labels.keypoints.numpy(), [obj.xy for obj in expected], atol=6e-4)
    assert labels.visibility is None


def test_pandas_reads_the_labels(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    batches = make_predictions(STILLS)
    path = write_lightning_pose(batches, CARD, tmp_path)
    assert path.name == "CollectedData.csv", "the name that Lightning Pose expects"
    table = pandas.read_csv(path, header=[0, 1, 2], index_col=0)
    assert table.columns.names == ["scorer", "bodyparts", "coords"]
    assert list(table.columns) == [("selfmark", name, c) for name in NAMES for c in "xy"]
    for obj in iterate_expected_objects(batches):
        values = table.loc[str(obj.ref.path)].to_numpy(float).reshape(-1, 2)
        np.testing.assert_allclose(values, obj.xy, atol=6e-4)


def test_each_object_of_an_image_has_its_own_file(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    batches = make_predictions(TWO_OBJECTS)
    assert write_lightning_pose(batches, CARD, tmp_path) == tmp_path
    assert {path.name for path in tmp_path.iterdir()} == {
        "CollectedData_individual1.csv",
        "CollectedData_individual2.csv",
    }
    for obj in iterate_expected_objects(batches):
        path = tmp_path / f"CollectedData_individual{obj.instance + 1}.csv"
        table = pandas.read_csv(path, header=[0, 1, 2], index_col=0)
        values = table.loc[str(obj.ref.path)].to_numpy(float).reshape(-1, 2)
        np.testing.assert_allclose(values, obj.xy, atol=6e-4)


def test_a_missing_video_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=CLIP.name):
        write_lightning_pose(make_predictions(FRAMES), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []
