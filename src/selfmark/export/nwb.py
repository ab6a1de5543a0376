"""Neurodata Without Borders: pose estimates as ndx-pose describes them, written by pynwb."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np

from selfmark._version import __version__
from selfmark.detector import Prediction
from selfmark.errors import InputError, need
from selfmark.export.pose_tables import (
    PoseTable,
    atomic_output,
    gather_tables,
    require_distinct,
    require_writable,
)
from selfmark.images.video import count_frames, probe_video
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray

_INSTALL = "pynwb ndx-pose"
_ORIGIN = "(0, 0) is the center of the top left pixel; x grows to the right, y downwards"


def write_nwb(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.nwb: in the module `behavior` one PoseEstimation per video and object.

    Times are seconds from the start of the video. Still images, which have no time, stand one second apart.
    """
    pynwb, ndx_pose = need("pynwb", _INSTALL), need("ndx_pose", _INSTALL)
    require_distinct(map(_object_name, card.names), "NWB")
    require_writable(folder)
    media = gather_tables(predictions)

    file = pynwb.NWBFile(
        session_description=f"Landmarks found by selfmark {__version__}",
        identifier=str(uuid4()),
        session_start_time=datetime.now(UTC),  # nothing says when the recording was made
    )
    behavior = file.create_processing_module(name="behavior", description="Landmarks of every object")
    skeleton = ndx_pose.Skeleton(
        name="object",
        nodes=list(card.names),
        edges=np.array(card.skeleton, dtype=np.min_scalar_type(len(card.names))).reshape(-1, 2),
    )
    behavior.add(ndx_pose.Skeletons(skeletons=[skeleton]))
    alone = sum(len(np.unique(one.instance)) for one in media) == 1
    for number, one in enumerate(media):
        times, rate = _times(one)
        source = _image_series(pynwb, one, number, rate)
        file.add_acquisition(source)
        for instance in np.unique(one.instance).tolist():
            pose = ndx_pose.PoseEstimation(
                # The name readers look for, where there is nothing to choose from.
                name="PoseEstimation" if alone else f"PoseEstimation_{number:03d}_{_name(one, instance)}",
                description=f"Object {_name(one, instance, first=1)} of {_describe(one)}",
                pose_estimation_series=_series(ndx_pose, one, instance, times, card.names),
                skeleton=skeleton,
                source_video=source,
                scorer="selfmark",
                source_software="selfmark",
                source_software_version=__version__,
            )
            behavior.add(pose)
    path = folder / "landmarks.nwb"
    with atomic_output(path) as temporary, pynwb.NWBHDF5IO(str(temporary), "w") as handle:
        handle.write(file)
    return path


def _series(
    ndx_pose: ModuleType, media: PoseTable, instance: int, times: FloatArray, names: tuple[str, ...]
) -> list[Any]:
    """One series per landmark; all share the times of the first, which are stored once."""
    rows = np.flatnonzero(media.instance == instance)
    series: list[Any] = []
    for index, name in enumerate(names):
        series.append(
            ndx_pose.PoseEstimationSeries(
                name=_object_name(name),
                description=f"Landmark {name}",
                data=media.xy[rows, index],
                unit="pixels",
                reference_frame=_ORIGIN,
                timestamps=series[0] if series else times[rows],
                confidence=media.score[rows, index],
                confidence_definition="Height of the peak in the landmark's heatmap, 0 to 1",
            )
        )
    return series


def _image_series(pynwb: ModuleType, media: PoseTable, number: int, rate: float) -> Any:
    name = _object_name(media.paths[0].stem) if media.is_video else "images"
    return pynwb.image.ImageSeries(
        name=f"{number:03d}_{name}",
        description=f"Source of the landmarks: {_describe(media)}",
        external_file=[path.absolute().as_posix() for path in media.paths],
        format="external",
        starting_frame=list(range(len(media.paths))),
        dimension=list(media.size),
        rate=rate,
        num_samples=count_frames(media.paths[0]) if media.is_video else len(media.paths),
        unit="n.a.",
    )


def _describe(media: PoseTable) -> str:
    width, height = media.size
    what = media.paths[0].name if media.is_video else f"{len(media.paths)} still images"
    return f"{what} ({width} x {height} pixels)"


def _name(media: PoseTable, instance: int, first: int = 0) -> str:
    """An object's track where it is known, else its number, counted from `first`."""
    return f"track_{media.tracks[instance]}" if media.tracks else str(instance + first)


def _times(media: PoseTable) -> tuple[FloatArray, float]:
    """When each row was seen, in seconds, and how many frames a second there are."""
    if not media.is_video:
        return media.frame.astype(np.float64), 1.0
    video = probe_video(media.paths[0])
    if not video.rate:
        raise InputError(
            f"{media.paths[0]} does not say how many frames a second it has, which NWB needs; convert it"
        )
    return video.seconds[media.frame], video.rate


def _object_name(name: str) -> str:
    """A name fit for an HDF5 object, in which these two characters separate.

    >>> _object_name("tail/tip")
    'tail_tip'
    """
    return name.replace("/", "_").replace(":", "_")
