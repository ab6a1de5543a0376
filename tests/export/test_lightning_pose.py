"""Label files read back by Lightning Pose itself, and by pandas with the options it uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfmark.errors import InputError
from selfmark.export.lightning_pose import write_lightning_pose
from tests.export.fakes import CARD, CLIP, FRAMES, NAMES, SEVERAL, STILLS, expected, predictions


@pytest.mark.filterwarnings("ignore:register_new_resolver")
def test_lightning_pose_reads_the_labels(tmp_path: Path) -> None:
    io: Any = pytest.importorskip("lightning_pose.utils.io")
    batches = predictions(STILLS)
    path = write_lightning_pose(batches, CARD, tmp_path)
    labels = io.parse_label_csv(str(path))
    found = list(expected(batches))
    assert labels.keypoint_names == list(NAMES)
    assert labels.image_names == [str(one.ref.path) for one in found]
    np.testing.assert_allclose(labels.keypoints.numpy(), [one.xy for one in found], atol=6e-4)
    assert labels.visibility is None


def test_pandas_reads_it_with_lightning_poses_options(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    batches = predictions(STILLS)
    path = write_lightning_pose(batches, CARD, tmp_path)
    assert path.name == "CollectedData.csv", "the name its configuration expects"
    table = pandas.read_csv(path, header=[0, 1, 2], index_col=0)
    assert table.columns.names == ["scorer", "bodyparts", "coords"]
    assert list(table.columns) == [("selfmark", name, c) for name in NAMES for c in "xy"]
    for one in expected(batches):
        values = table.loc[str(one.ref.path)].to_numpy(float).reshape(-1, 2)
        np.testing.assert_allclose(values, one.xy, atol=6e-4)


def test_videos_and_several_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"image files, and {CLIP} is a video"):
        write_lightning_pose(predictions(FRAMES), CARD, tmp_path)
    with pytest.raises(InputError, match=r"one object per image, and set/b\.jpg has several"):
        write_lightning_pose(predictions(SEVERAL), CARD, tmp_path)
    assert list(tmp_path.iterdir()) == []
