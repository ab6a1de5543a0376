"""SLEAP: a project file (.slp) of everything, or one analysis file (HDF5) per video; both by sleap-io."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from selfmark._version import __version__
from selfmark.detector import Prediction
from selfmark.errors import InputError, need
from selfmark.export.pose_tables import (
    PoseTable,
    atomic_output,
    gather_tables,
    mirror_pairs,
    require_distinct,
    require_writable,
)
from selfmark.images.video import count_frames
from selfmark.model.card import ModelCard


def write_slp(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.slp: each video, and the still images of each size, as a video of the project.

    Objects of a video belong to their tracks; where none are known, to tracks by their order in the frame.
    Objects in still images have no track.
    """
    sio = need("sleap_io", "sleap-io")
    require_distinct(card.names, "SLEAP")
    require_writable(folder)
    labels = _labels(sio, gather_tables(predictions), card)
    path = folder / "landmarks.slp"
    with atomic_output(path) as temporary:
        sio.save_slp(labels, str(temporary), verbose=False)
    return path


def write_analysis(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.000_VIDEO.analysis.h5 and so on, named as SLEAP names them.

    Returns:
        The file, or the folder if there are several.
    """
    sio = need("sleap_io", "sleap-io")
    require_distinct(card.names, "SLEAP")
    require_writable(folder)
    media = gather_tables(_of_videos(predictions))
    labels = _labels(sio, media, card)
    paths = [
        folder / f"landmarks.{number:03d}_{one.paths[0].stem}.analysis.h5" for number, one in enumerate(media)
    ]
    with ExitStack() as files:  # renamed when all are written
        for number, path in enumerate(paths):
            sio.save_analysis_h5(labels, str(files.enter_context(atomic_output(path))), video=number)
    return paths[0] if len(paths) == 1 else folder


def _of_videos(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
    """The predictions as they come, up to the first still image."""
    for prediction in predictions:
        if any(ref.frame is None for ref in prediction.refs):
            raise InputError("SLEAP's analysis files are of videos; write still images with --format sleap")
        yield prediction


def _labels(sio: ModuleType, media: list[PoseTable], card: ModelCard) -> Any:
    skeleton = sio.Skeleton(
        nodes=list(card.names),
        edges=[(card.names[a], card.names[b]) for a, b in card.skeleton],
        symmetries=[(card.names[a], card.names[b]) for a, b in mirror_pairs(card)],
        name="object",
    )
    numbers = sorted({number for one in media if one.is_video for number in _track_numbers(one)})
    tracks = {number: sio.Track(f"track_{number}") for number in numbers}
    videos = [_video(sio, one) for one in media]
    frames = [
        frame
        for one, video in zip(media, videos, strict=True)
        for frame in _frames(sio, one, video, skeleton, [tracks.get(n) for n in _track_numbers(one)])
    ]
    return sio.Labels(
        labeled_frames=frames,
        videos=videos,
        skeletons=[skeleton],
        tracks=list(tracks.values()),
        provenance={"source": f"selfmark {__version__}"},
    )


def _track_numbers(media: PoseTable) -> Sequence[int]:
    """The track of each instance."""
    return media.tracks or range(int(media.instance.max()) + 1)


def _video(sio: ModuleType, media: PoseTable) -> Any:
    """A reference by absolute path, with what sleap-io would else open the files for."""
    width, height = media.size
    names = [path.absolute().as_posix() for path in media.paths]
    length = count_frames(media.paths[0]) if media.is_video else len(names)
    about = {"filename": names[0], "shape": [length, height, width, 3], "grayscale": False}
    if media.is_video:
        about |= {"type": "MediaVideo"}
    else:
        about |= {
            "type": "ImageVideo",
            "filenames": names,
            "height_": height,
            "width_": width,
            "channels_": 3,
        }
    return sio.Video(
        filename=names[0] if media.is_video else names, backend_metadata=about, open_backend=False
    )


def _frames(sio: ModuleType, media: PoseTable, video: Any, skeleton: Any, tracks: list[Any]) -> list[Any]:
    numbers, first = np.unique(media.frame, return_index=True)
    ends = [*first[1:].tolist(), len(media.frame)]
    return [
        sio.LabeledFrame(
            video=video,
            frame_idx=int(number),
            instances=[_instance(sio, media, row, skeleton, tracks) for row in range(start, end)],
        )
        for number, start, end in zip(numbers, first.tolist(), ends, strict=True)
    ]


def _instance(sio: ModuleType, media: PoseTable, row: int, skeleton: Any, tracks: list[Any]) -> Any:
    return sio.PredictedInstance.from_numpy(
        points_data=media.xy[row].astype(np.float64),
        skeleton=skeleton,
        point_scores=media.score[row].astype(np.float64),
        score=float(media.score[row].mean()),
        track=tracks[media.instance[row]] if media.is_video else None,
    )
