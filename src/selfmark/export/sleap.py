"""Write SLEAP files with sleap-io: a project file (.slp), or an analysis file (HDF5) for each video."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from selfmark._version import __version__
from selfmark.detector import Prediction
from selfmark.errors import InputError, require_package
from selfmark.export.hdf5_files import save_hdf5
from selfmark.export.output_files import output_file, require_unique_names, require_writable
from selfmark.export.pose_tables import PoseTable, gather_tables
from selfmark.export.trust_entries import trust_entries
from selfmark.images.video import count_frames
from selfmark.model.card import ModelCard


def write_slp(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.slp, a SLEAP project.

    Still images of the same size form one video of the project. The objects of a video belong to tracks. If
    tracks are unknown, the first object of every frame belongs to `track_0`, the second to `track_1`, and so
    on. Objects in still images have no track.
    """
    sio = require_package("sleap_io", "sleap-io")
    require_unique_names(card.names, "SLEAP")
    require_writable(folder)
    labels = _build_labels(sio, gather_tables(predictions), card)
    path = folder / "landmarks.slp"
    with output_file(path) as temporary:
        save_hdf5(temporary, partial(_save_project, sio, labels))
    return path


def write_analysis(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write one analysis file per video: `folder`/landmarks.000_VIDEO.analysis.h5, named as SLEAP names them.

    Returns:
        The file, or the folder if there are several files.
    """
    sio = require_package("sleap_io", "sleap-io")
    require_unique_names(card.names, "SLEAP")
    require_writable(folder)
    tables = gather_tables(_require_videos(predictions))
    labels = _build_labels(sio, tables, card)
    paths = [
        folder / f"landmarks.{number:03d}_{table.paths[0].stem}.analysis.h5"
        for number, table in enumerate(tables)
    ]
    with ExitStack() as files:  # All files get their final names together, at the end.
        for number, path in enumerate(paths):
            temporary = files.enter_context(output_file(path))
            save_hdf5(temporary, partial(_save_analysis, sio, labels, number))
    return paths[0] if len(paths) == 1 else folder


def _save_project(sio: ModuleType, labels: Any, path: Path) -> None:
    try:
        sio.save_slp(labels, str(path), verbose=False)
    except ValueError as error:
        if "attribute limit" not in str(error):
            raise
        raise InputError(
            "the names and edges of this skeleton need more than the 64,000 bytes that a SLEAP project has "
            "for them; use shorter names or fewer edges, or another format"
        ) from error


def _save_analysis(sio: ModuleType, labels: Any, video: int, path: Path) -> None:
    sio.save_analysis_h5(labels, str(path), video=video)


def _require_videos(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """Yield the predictions; raise at the first still image."""
    for prediction in predictions:
        if any(ref.frame is None for ref in prediction.refs):
            raise InputError(
                "SLEAP analysis files are made from videos only; write still images with --format sleap"
            )
        yield prediction


def _build_labels(sio: ModuleType, tables: list[PoseTable], card: ModelCard) -> Any:
    skeleton = sio.Skeleton(
        nodes=list(card.names),
        edges=[(card.names[a], card.names[b]) for a, b in card.skeleton],
        symmetries=[(card.names[a], card.names[b]) for a, b in _find_mirror_pairs(card)],
        name="object",
    )
    numbers = sorted({number for table in tables if table.is_video for number in _get_track_numbers(table)})
    tracks = {number: sio.Track(f"track_{number}") for number in numbers}
    videos = [_build_video(sio, table) for table in tables]
    frames = [
        frame
        for table, video in zip(tables, videos, strict=True)
        for frame in _build_frames(
            sio, table, video, skeleton, [tracks.get(n) for n in _get_track_numbers(table)]
        )
    ]
    return sio.Labels(
        labeled_frames=frames,
        videos=videos,
        skeletons=[skeleton],
        tracks=list(tracks.values()),
        provenance={"source": f"selfmark {__version__}", **trust_entries(card)},
    )


def _find_mirror_pairs(card: ModelCard) -> list[tuple[int, int]]:
    """Return each pair of mirror partners once, lower index first."""
    return [(a, b) for a, b in enumerate(card.mirror) if a < b and card.mirror[b] == a]


def _get_track_numbers(table: PoseTable) -> Sequence[int]:
    """Return the track of each instance; if tracks are unknown, use the instance numbers."""
    return table.tracks or range(int(table.instance.max()) + 1)


def _build_video(sio: ModuleType, table: PoseTable) -> Any:
    """Return a video that refers to its files by absolute path.

    The video has metadata, so that sleap-io need not open the files.
    """
    width, height = table.size
    names = [path.absolute().as_posix() for path in table.paths]
    length = count_frames(table.paths[0]) if table.is_video else len(names)
    metadata = {"filename": names[0], "shape": [length, height, width, 3], "grayscale": False}
    if table.is_video:
        metadata |= {"type": "MediaVideo"}
    else:
        metadata |= {
            "type": "ImageVideo",
            "filenames": names,
            "height_": height,
            "width_": width,
            "channels_": 3,
        }
    return sio.Video(
        filename=names[0] if table.is_video else names, backend_metadata=metadata, open_backend=False
    )


def _build_frames(
    sio: ModuleType, table: PoseTable, video: Any, skeleton: Any, tracks: list[Any]
) -> list[Any]:
    numbers, first = np.unique(table.frame, return_index=True)
    ends = [*first[1:].tolist(), len(table.frame)]
    return [
        sio.LabeledFrame(
            video=video,
            frame_idx=int(number),
            instances=[_build_instance(sio, table, row, skeleton, tracks) for row in range(start, end)],
        )
        for number, start, end in zip(numbers, first.tolist(), ends, strict=True)
    ]


def _build_instance(sio: ModuleType, table: PoseTable, row: int, skeleton: Any, tracks: list[Any]) -> Any:
    return sio.PredictedInstance.from_numpy(
        points_data=table.xy[row].astype(np.float64),
        skeleton=skeleton,
        point_scores=table.score[row].astype(np.float64),
        score=float(table.score[row].mean()),
        track=tracks[table.instance[row]] if table.is_video else None,
    )
