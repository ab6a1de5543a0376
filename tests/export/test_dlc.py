"""Read DeepLabCut tables back with pandas, as DeepLabCut does, and with sleap-io."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import dlc
from selfmark.export.dlc import write_dlc, write_dlc_h5
from selfmark.image_ref import ImageRef
from selfmark.points import Landmarks
from tests.export.fakes import (
    CARD,
    CROWD,
    FRAMES,
    NAMES,
    STILLS,
    TWO_OBJECTS,
    iterate_expected_objects,
    make_predictions,
)

pandas: Any = pytest.importorskip("pandas")

SCORER = "DLC_selfmark"


def _write_csv(batches: Sequence[Prediction], folder: Path) -> Path:
    return write_dlc(batches, CARD, folder)


def _write_h5(batches: Sequence[Prediction], folder: Path) -> Path:
    pytest.importorskip("tables")
    return write_dlc_h5(batches, CARD, folder)


def _read(path: Path, levels: int) -> Any:
    """Read a table as DeepLabCut does; its header has 4 levels with individuals and 3 without."""
    if path.suffix == ".h5":
        return pandas.read_hdf(path, "df_with_missing")
    with open(path, encoding="utf-8") as handle:
        assert ("individuals" in handle.readlines()[1]) == (levels == 4), (
            "DeepLabCut detects individuals by this line"
        )
    return pandas.read_csv(path, header=list(range(levels)), index_col=0)


BOTH_FORMATS = pytest.mark.parametrize("write", [_write_csv, _write_h5])
Write = Callable[[Sequence[Prediction], Path], Path]


@BOTH_FORMATS
def test_one_object_per_frame_needs_no_individuals(write: Write, tmp_path: Path) -> None:
    batches = make_predictions(FRAMES)
    path = write(batches, tmp_path)
    assert path.stem == "clipDLC_selfmark"
    assert path.parent == tmp_path
    table = _read(path, 3)
    assert table.columns.names == ["scorer", "bodyparts", "coords"]
    assert list(table.index) == [0, 2, 10]
    assert table.shape == (3, 3 * len(NAMES))
    for obj in iterate_expected_objects(batches):
        for index, name in enumerate(NAMES):
            x, y, likelihood = (table.loc[obj.ref.frame, (SCORER, name, c)] for c in ("x", "y", "likelihood"))
            np.testing.assert_allclose([x, y], obj.xy[index], atol=1e-4)
            assert likelihood == pytest.approx(obj.score[index], abs=1e-4)


@BOTH_FORMATS
def test_several_objects_add_the_level_individuals(write: Write, tmp_path: Path) -> None:
    batches = make_predictions(CROWD, batch=4)
    table = _read(write(batches, tmp_path), 4)
    assert table.columns.names == ["scorer", "individuals", "bodyparts", "coords"]
    assert list(table.columns.unique("individuals")) == ["individual1", "individual2", "individual3"]
    assert list(table.index) == [5, 6, 7]
    for obj in iterate_expected_objects(batches):
        part = table.loc[obj.ref.frame, (SCORER, f"individual{obj.instance + 1}")]
        values = part.to_numpy(float).reshape(-1, 3)
        np.testing.assert_allclose(values[:, :2], obj.xy, atol=1e-4)
        np.testing.assert_allclose(values[:, 2], obj.score, atol=1e-4)
    assert table.loc[5, (SCORER, "individual2")].isna().all()
    assert table.loc[7, (SCORER, "individual3")].isna().all()
    assert table.notna().to_numpy().sum() == len(CROWD) * 3 * len(NAMES)


@BOTH_FORMATS
def test_images_share_a_table_with_their_paths_as_index(write: Write, tmp_path: Path) -> None:
    batches = make_predictions([*STILLS, *TWO_OBJECTS])
    table = _read(write(batches, tmp_path), 4)
    paths = dict.fromkeys(str(obj.ref.path) for obj in iterate_expected_objects(batches))
    assert list(table.index) == list(paths)
    for obj in iterate_expected_objects(batches):
        part = table.loc[str(obj.ref.path), (SCORER, f"individual{obj.instance + 1}")]
        values = part.to_numpy(float).reshape(-1, 3)
        np.testing.assert_allclose(values[:, :2], obj.xy, atol=1e-4)
        np.testing.assert_allclose(values[:, 2], obj.score, atol=1e-4)


@BOTH_FORMATS
def test_tables_keep_the_folders_of_their_videos(write: Write, tmp_path: Path) -> None:
    videos = ["a/day.mp4", "b/day.mp4", "b/day.avi", "b/images.mp4", "images.mov"]
    objects = [(ImageRef(Path(video), frame), (64, 48)) for video in videos for frame in range(2)]
    assert write(make_predictions([*objects, *STILLS], batch=3), tmp_path) == tmp_path
    # A table keeps the extension of its video if another table has the same name without extension: two
    # videos are called b/day, and the table of still images is called images.
    stems = {"a/day", "b/day.mp4", "b/day.avi", "b/images", "images.mov", "images"}
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {name.split(SCORER)[0] for name in files} == stems
    assert len(files) == len(stems)


@BOTH_FORMATS
def test_long_tables_are_written_in_chunks(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later chunks may contain longer image names; frames are sorted."""
    batches = make_predictions([*FRAMES, *CROWD, *STILLS, *TWO_OBJECTS])[::-1]
    whole_folder, chunked_folder = tmp_path / "whole", tmp_path / "chunked"
    for folder in (whole_folder, chunked_folder):
        folder.mkdir()
        write(batches, folder)
        monkeypatch.setattr(dlc, "_CHUNK_ROWS", 2)  # the second folder is written in chunks
    files = sorted(path.relative_to(whole_folder) for path in whole_folder.rglob("*") if path.is_file())
    assert len(files) == 3
    for file in files:
        levels = 3 if "clip" in file.name else 4
        pandas.testing.assert_frame_equal(
            _read(whole_folder / file, levels), _read(chunked_folder / file, levels)
        )
        if "images" not in file.name:
            assert _read(whole_folder / file, levels).index.is_monotonic_increasing


def test_pandas_2_can_read_the_hdf5_file(tmp_path: Path) -> None:
    """Without the attribute pandas_version, which pandas 3 does not write, pandas 2 assumes an old format."""
    tables: Any = pytest.importorskip("tables")
    path = write_dlc_h5(make_predictions(FRAMES), CARD, tmp_path)
    with tables.open_file(path) as file:
        assert [node._v_name for node in file.root] == ["df_with_missing"], "read_hdf expects one table"
        assert file.root.df_with_missing._v_attrs["pandas_version"] == "0.15.2"
    assert len(pandas.read_hdf(path)) == len(FRAMES)


@pytest.mark.parametrize(("landmarks", "fits"), [(100, True), (400, False)])
def test_an_hdf5_header_has_a_limited_number_of_columns(landmarks: int, fits: bool, tmp_path: Path) -> None:
    pytest.importorskip("tables")
    names = tuple(f"landmark number {number}" for number in range(landmarks))
    values = np.random.default_rng(0).random((len(CROWD), landmarks, 3)).astype(np.float32)
    refs, sizes = zip(*CROWD, strict=True)
    batch = Prediction(refs, np.array(sizes), Landmarks(values[..., :2], values[..., 2], names))
    card = replace(CARD, names=names)
    if not fits:
        with pytest.raises(InputError, match=r"header of 3600 columns .*: write CSV with --format dlc$"):
            write_dlc_h5([batch], card, tmp_path)
        assert list(tmp_path.iterdir()) == []
        return
    table = pandas.read_hdf(write_dlc_h5([batch], card, tmp_path))
    np.testing.assert_allclose(table.loc[5].to_numpy()[: 3 * landmarks], values[0].ravel())


def test_sleap_io_reads_the_csv_of_images(tmp_path: Path) -> None:
    """sleap-io reads such a table as labels of images, so it needs the images next to the table."""
    sleap: Any = pytest.importorskip("sleap_io")
    objects = [*STILLS[1:], *TWO_OBJECTS]
    for ref, size in objects:
        (tmp_path / ref.path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size).save(tmp_path / ref.path)
    batches = make_predictions(objects)
    labels = sleap.load_file(str(write_dlc(batches, CARD, tmp_path)), format="dlc")
    nodes = [node.name for node in labels.skeletons[0].nodes]  # sleap-io sorts them by name
    assert sorted(nodes) == sorted(NAMES)
    read = {
        (str(Path(frame.video.filename[frame.frame_idx]).relative_to(tmp_path)), number): instance.numpy()
        for frame in labels.labeled_frames
        for number, instance in enumerate(frame.instances)
    }
    expected = list(iterate_expected_objects(batches))
    assert set(read) == {(str(obj.ref.path), obj.instance) for obj in expected}
    for obj in expected:
        points = read[str(obj.ref.path), obj.instance][[nodes.index(name) for name in NAMES]]
        np.testing.assert_allclose(points[:, :2], obj.xy, atol=1e-4)


def test_landmark_names_must_be_unique(tmp_path: Path) -> None:
    card = replace(CARD, names=("nose", "nose", "ear", "eye"))
    with pytest.raises(InputError, match="2 landmarks are called 'nose'"):
        write_dlc(make_predictions(FRAMES), card, tmp_path)


def test_only_folders_that_an_export_made_are_removed(tmp_path: Path) -> None:
    own, others = tmp_path / ".rows.0123abcd.part", [tmp_path / ".rows.mine.part", tmp_path / ".rows.part"]
    for folder in (own, *others):
        folder.mkdir()
        (folder / "0").touch()
    _write_csv(make_predictions(FRAMES), tmp_path)
    assert not own.exists()
    assert [sorted(path.name for path in folder.iterdir()) for folder in others] == [["0"], ["0"]]


def test_no_predictions_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of the images could be read"):
        write_dlc([], CARD, tmp_path)
    assert not list(tmp_path.iterdir())
