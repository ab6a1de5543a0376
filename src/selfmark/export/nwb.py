"""Write Neurodata Without Borders files: pose estimates as defined by ndx-pose, written with pynwb."""

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
from selfmark.errors import InputError, require_package
from selfmark.export.hdf5_files import save_hdf5
from selfmark.export.output_files import output_file, require_unique_names, require_writable
from selfmark.export.pose_tables import PoseTable, gather_tables
from selfmark.export.trust_entries import describe_smoothing, format_trust
from selfmark.images.video import count_frames, probe_video
from selfmark.model.card import ModelCard
from selfmark.points import FloatArray

_INSTALL = "pynwb ndx-pose"
_RESERVED_NAMES = {
    *(".", "..", "namespace", "neurodata_type", "object_id"),  # in every object of an NWB file
    *("description", "device", "dimensions", "scorer", "source_software"),  # in a `PoseEstimation`
    *("labeled_video", "labeled_videos", "original_videos", "source_video"),
}
_ORIGIN = "(0, 0) is the center of the top left pixel; x grows to the right, y downwards"


def write_nwb(predictions: Iterable[Prediction], card: ModelCard, folder: Path) -> Path:
    """Write `folder`/landmarks.nwb with one PoseEstimation per video and object in the module `behavior`.

    Times are seconds from the start of the video. Still images have no time and are placed one second apart.
    """
    pynwb, ndx_pose = require_package("pynwb", _INSTALL), require_package("ndx_pose", _INSTALL)
    require_unique_names(map(_to_series_name, card.names), "NWB")
    require_writable(folder)
    tables = gather_tables(predictions)

    file = pynwb.NWBFile(
        session_description=f"Landmarks found by selfmark {__version__}",
        identifier=str(uuid4()),
        session_start_time=datetime.now(UTC),  # required, but the time of the recording is unknown
    )
    behavior = file.create_processing_module(name="behavior", description="Landmarks of every object")
    skeleton = ndx_pose.Skeleton(
        name="object",
        nodes=list(card.names),
        edges=np.array(card.skeleton, dtype=np.min_scalar_type(len(card.names))).reshape(-1, 2),
    )
    behavior.add(ndx_pose.Skeletons(skeletons=[skeleton]))
    is_single = sum(len(np.unique(table.instance)) for table in tables) == 1
    for number, table in enumerate(tables):
        times, rate = _compute_times(table)
        source = _build_image_series(pynwb, table, number, rate)
        file.add_acquisition(source)
        for instance in np.unique(table.instance).tolist():
            name = f"PoseEstimation_{number:03d}_{_make_instance_name(table, instance)}"
            pose = ndx_pose.PoseEstimation(
                # Readers look for the plain name if there is only one pose.
                name="PoseEstimation" if is_single else name,
                description=_describe_object(table, instance, card),
                pose_estimation_series=_build_series(ndx_pose, table, instance, times, card),
                skeleton=skeleton,
                source_video=source,
                scorer="selfmark",
                source_software="selfmark",
                source_software_version=__version__,
            )
            behavior.add(pose)
    path = folder / "landmarks.nwb"

    def save(temporary: Path) -> None:
        with pynwb.NWBHDF5IO(str(temporary), "w") as handle:
            handle.write(file)

    with output_file(path) as temporary:
        save_hdf5(temporary, save)
    return path


def _build_series(
    ndx_pose: ModuleType, table: PoseTable, instance: int, times: FloatArray, card: ModelCard
) -> list[Any]:
    """Return one series per landmark; only the first series stores the times, and the others refer to it."""
    rows = np.flatnonzero(table.instance == instance)
    series: list[Any] = []
    for index, name in enumerate(card.names):
        trust = format_trust(card, index)
        series.append(
            ndx_pose.PoseEstimationSeries(
                name=_to_series_name(name),
                description=f"Landmark {name}, {trust}" if trust else f"Landmark {name}",
                data=table.xy[rows, index],
                unit="pixels",
                reference_frame=_ORIGIN,
                timestamps=series[0] if series else times[rows],
                confidence=table.score[rows, index],
                confidence_definition="Height of the peak in the landmark's heatmap, 0 to 1",
            )
        )
    return series


def _build_image_series(pynwb: ModuleType, table: PoseTable, number: int, rate: float) -> Any:
    name = _to_hdf5_name(table.paths[0].stem) if table.is_video else "images"
    return pynwb.image.ImageSeries(
        name=f"{number:03d}_{name}",
        description=f"Source of the landmarks: {_describe_source(table)}",
        external_file=[path.absolute().as_posix() for path in table.paths],
        format="external",
        starting_frame=list(range(len(table.paths))),
        dimension=list(table.size),
        rate=rate,
        num_samples=count_frames(table.paths[0]) if table.is_video else len(table.paths),
        unit="n.a.",
    )


def _describe_source(table: PoseTable) -> str:
    width, height = table.size
    source = table.paths[0].name if table.is_video else f"{len(table.paths)} still images"
    return f"{source} ({width} x {height} pixels)"


def _describe_object(table: PoseTable, instance: int, card: ModelCard) -> str:
    """Return the object's name and source, then the verdict and the smoothing if the card has them."""
    verdict = "" if card.verdict is None else f", verdict of the run: {card.verdict}"
    return (
        f"Object {_make_instance_name(table, instance, first=1)} of {_describe_source(table)}{verdict}"
        f"{describe_smoothing(card)}"
    )


def _make_instance_name(table: PoseTable, instance: int, first: int = 0) -> str:
    """Return the track of an object if it is known, otherwise its number, counted from `first`."""
    return f"track_{table.tracks[instance]}" if table.tracks else str(instance + first)


def _compute_times(table: PoseTable) -> tuple[FloatArray, float]:
    """Return the time of each row in seconds and the frame rate in frames per second."""
    if not table.is_video:
        return table.frame.astype(np.float64), 1.0
    video = probe_video(table.paths[0])
    if not video.rate:
        raise InputError(
            f"{table.paths[0]} does not state its frame rate, which NWB needs; convert the video first"
        )
    return video.seconds[table.frame], video.rate


def _to_series_name(name: str) -> str:
    """Return the name of a landmark's series, which must differ from other names in its `PoseEstimation`.

    >>> _to_series_name("scorer"), _to_series_name("nose")
    ('scorer_', 'nose')
    """
    series_name = _to_hdf5_name(name)
    return f"{series_name}_" if series_name in _RESERVED_NAMES else series_name


def _to_hdf5_name(name: str) -> str:
    """Replace the two characters that names of objects in an NWB file must not contain.

    >>> _to_hdf5_name("tail/tip")
    'tail_tip'
    """
    return name.replace("/", "_").replace(":", "_")
