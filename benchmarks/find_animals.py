r"""Measure detection and tracking of animals in front of a fixed camera, and the memory for an hour of video.

    python benchmarks/find_animals.py --flies flies-pair-video --mouse mouse-openfield \
      --touches --crossings --hour --out find_animals.json

The folders are the unzipped data sets. The reference points of the flies come from a model, not from a
person. The labeled frames of the mouse are separate images of one recording, in random order. The script
joins them into a video. This video shows whether the mouse is detected, but not whether it is tracked.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import provenance
import torch

from selfmark.config import Images, Tracking
from selfmark.detector import Detector, NetworkLandmarks
from selfmark.export import get_writer
from selfmark.images.video import probe_video, video_reader
from selfmark.run.files import write_json
from selfmark.tracking.animals import AnimalTracks, track_animals
from selfmark.tracking.regions import Regions, locate_objects
from selfmark.tracking.tracker import AnimalTracker

Floats = npt.NDArray[np.float64]
FRAME_RATE = 30  # frames per second of the generated videos
BODY = (16, 8)  # half axes of a generated elliptical animal, pixels
CROSSINGS = ("one runs over the other", "one covers the other and goes back")
CONTACTS = ("meet and part again", "pass side by side", "one runs over the other")


def measure_flies(folder: Path) -> dict[str, Any]:
    """Compare two tracked flies with the reference points of the data set (its tracks 1 and 2)."""
    content = json.loads((folder / "points.json").read_text())
    names = content["categories"][0]["keypoints"]
    frame_of = {image["id"]: image["frame"] for image in content["images"]}
    points = np.full((len(content["images"]), 2, len(names), 2), np.nan)
    for annotation in content["annotations"]:
        if annotation["track"] in (1, 2):
            values = np.array(annotation["keypoints"], float).reshape(-1, 3)
            seen = values[:, 2] > 0
            points[frame_of[annotation["image_id"]], annotation["track"] - 1, seen] = values[seen, :2]
    tracks, speed = _track(folder / "video.mp4", 2, Tracking())
    thorax = points[:, :, names.index("thorax")]
    distance = np.linalg.norm(tracks.center - thorax, axis=2)  # [frames, 2]
    exchanged_distance = np.linalg.norm(
        tracks.center[:, ::-1] - thorax, axis=2
    )  # distance with exchanged identities
    known = np.isfinite(distance).all(axis=1)
    is_swapped = (exchanged_distance.sum(axis=1) < distance.sum(axis=1))[known]
    if is_swapped.mean() > 0.5:  # the tracker numbered the flies in the other order
        tracks, distance, is_swapped = (
            AnimalTracks(tracks.center[:, ::-1], tracks.side),
            exchanged_distance,
            ~is_swapped,
        )
    # Side of a square with the area of the box around all points of a fly.
    size = np.sqrt(np.prod(np.nanmax(points, axis=2) - np.nanmin(points, axis=2), axis=2))
    return {
        "data": "flies-pair-video",
        "frames": len(points),
        "animals": 2,
        "frames_found": round(float(np.isfinite(tracks.center).all(axis=(1, 2)).mean()), 4),
        "identity_changes": int(np.abs(np.diff(is_swapped.astype(int))).sum()),
        "frames_of_the_other_fly": round(float(is_swapped.mean()), 4),
        "center_to_thorax_median_px": round(float(np.nanmedian(distance)), 2),
        "center_to_thorax_median_percent": round(float(np.nanmedian(distance / size) * 100), 2),
        "center_to_thorax_worst_px": round(float(np.nanmax(distance)), 2),
        **_measure_coverage(tracks, points),
        "frames_per_second": speed,
    }


def measure_mouse(folder: Path) -> list[dict[str, Any]]:
    """Track the mouse in the labeled frames, joined into a video, and in the unlabeled video."""
    pictures, labels = [], []
    for part in ("train", "test"):
        content = json.loads((folder / f"{part}.json").read_text())
        by_image = {annotation["image_id"]: annotation for annotation in content["annotations"]}
        for image in content["images"]:
            pictures.append(folder / "images" / part / Path(image["file_name"]).name)
            labels.append(np.array(by_image[image["id"]]["keypoints"], float).reshape(-1, 3)[:, :2])
    points = np.stack(labels)[:, None]  # [frames, 1 animal, 4 points, 2]
    with tempfile.TemporaryDirectory() as scratch:
        video = Path(scratch, "frames.avi")
        size = cv2.imread(str(pictures[0])).shape[1::-1]
        video_writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"MJPG"), FRAME_RATE, size)
        for picture in pictures:
            video_writer.write(cv2.imread(str(picture)))
        video_writer.release()
        # The images are in random order, so positions are not smoothed and may change by any distance.
        tracks, _ = _track(video, 1, Tracking(max_step=1e6, smoothing=0.0, max_gap=0.0))
    snout, tail_base = points[:, :, 0], points[:, :, 3]
    distance = np.linalg.norm(tracks.center - (snout + tail_base) / 2, axis=2)
    length = np.linalg.norm(snout - tail_base, axis=2)
    labeled_row = {
        "data": "mouse-openfield, labeled frames",
        "frames": len(points),
        "animals": 1,
        "frames_found": round(float(np.isfinite(distance).mean()), 4),
        "center_to_middle_median_px": round(float(np.nanmedian(distance)), 2),
        "center_to_middle_worst_px": round(float(np.nanmax(distance)), 2),
        "center_to_middle_median_percent_of_length": round(float(np.nanmedian(distance / length) * 100), 2),
        **_measure_coverage(tracks, points),
    }
    tracks, speed = _track(folder / "video.mp4", 1, Tracking())
    steps = np.linalg.norm(np.diff(tracks.center[:, 0], axis=0), axis=1)
    video_row = {
        "data": "mouse-openfield, video",
        "frames": len(tracks.center),
        "animals": 1,
        "frames_found": round(float(np.isfinite(tracks.center[:, 0, 0]).mean()), 4),
        "largest_step_px": round(float(np.nanmax(steps)), 2),
        "side_px": round(tracks.side, 1),
        "frames_per_second": speed,
    }
    return [labeled_row, video_row]


def measure_contact(kind: str, frames: int, trials: int = 50) -> dict[str, Any]:
    """Measure how often two generated animals keep their identities after a contact of `frames` frames."""
    kept = 0
    for trial in range(trials):
        positions, angles = _generate_contact(kind, frames, np.random.default_rng([frames, trial]))
        tracker = AnimalTracker(2, np.pi * BODY[0] * BODY[1], Tracking())
        centers = np.stack(
            [tracker.update(_draw_mask(*pose)).center for pose in zip(positions, angles, strict=True)]
        )
        # Find the animal that is nearest to track 0 before the contact (frame 3), and the nearest at the end.
        before, after = (
            np.linalg.norm(centers[frame, 0] - positions[frame], axis=1).argmin() for frame in (3, -1)
        )
        kept += int(before == after)
    return {"contact": kind, "frames": frames, "trials": trials, "identities_kept": kept / trials}


def _generate_contact(kind: str, frames: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Generate the movement of two animals that meet, touch for about `frames` frames, and part.

    Returns:
        Positions [T, 2, 2] in pixels of images of 200 x 150 pixels, and angles [T, 2] in degrees.
    """
    direction = rng.uniform(0, 2 * np.pi)
    along = np.array([np.cos(direction), np.sin(direction)])
    across = np.array([-along[1], along[0]])
    if kind == "meet and part again":
        # Each animal approaches the image center to 13 pixels, where the two usually touch, and goes back.
        to_center = np.concatenate(  # distance of each animal from the image center, pixels, [T]
            [np.linspace(70, 13, 25), np.full(frames, 13), np.linspace(13, 70, 25)]
        )
        positions = np.array([100, 75]) + np.stack([-to_center, to_center], axis=1)[..., None] * along
        heading = np.array([rng.uniform(-30, 30), rng.uniform(90, 270)])
        angles = np.degrees(direction) + heading + np.cumsum(rng.normal(0, 3, (len(to_center), 2)), axis=0)
        positions = positions + np.cumsum(rng.normal(0, 0.5, (len(to_center), 1, 2)), axis=0)
    else:
        # Each animal moves by its length in `frames` frames, on a path beside the other's path.
        progress = np.arange(-70, 70, 2 * BODY[0] / frames)
        sideways = BODY[1] if kind == "pass side by side" else 2.0
        positions = np.array([100, 75]) + np.stack([progress, -progress], axis=1)[..., None] * along
        positions = positions + np.array([[sideways], [-sideways]]) * across
        angles = np.degrees(direction) + rng.normal(0, 3, (len(progress), 2))
    return positions + rng.normal(0, 0.4, positions.shape), angles


def _draw_mask(positions: Floats, angles: Floats) -> npt.NDArray[np.uint8]:
    """Return a mask [150, 200] of elliptical animals at positions [A, 2] with angles [A] in degrees."""
    mask = np.zeros((150, 200), np.uint8)
    for position, angle in zip(positions, angles, strict=True):
        # With shift=4, the last argument, OpenCV takes coordinates in units of 2**-4 pixels.
        center = tuple(int(value) for value in np.round(position * 16))
        axes = (BODY[0] * 16, BODY[1] * 16)
        cv2.ellipse(mask, center, axes, float(angle), 0, 360, 1, -1, cv2.LINE_8, 4)
    return mask


def measure_crossing(
    kind: str, shades: tuple[int, int], frames: int, ratio: float, trials: int = 20
) -> dict[str, Any]:
    """Measure how often two rendered animals keep their identities after one has covered the other.

    Args:
        kind: one of `CROSSINGS`.
        shades: gray level of each animal; equal for animals that look the same.
        frames: duration of the contact in frames.
        ratio: `tracking.max_appearance_ratio`; with 0, the tracker ignores the animals' appearance.
        trials: number of videos.
    """
    kept = 0
    for trial in range(trials):
        rng = np.random.default_rng([frames, trial])
        positions, angles = _generate_contact("one runs over the other", frames, rng)
        if kind == CROSSINGS[1]:
            middle = len(positions) // 2
            positions, angles = (  # The animals move until the middle and then back to the start.
                np.concatenate([movement[:middle], movement[middle::-1]]) for movement in (positions, angles)
            )
        with tempfile.TemporaryDirectory() as scratch:
            video = Path(scratch, "crossing.avi")
            writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"MJPG"), FRAME_RATE, (200, 150))
            upper = int(rng.integers(2))  # the animal that covers the other
            for number in range(len(positions)):
                writer.write(_render_frame(positions[number], angles[number], shades, upper, rng))
            writer.release()
            centers = track_animals(video, 2, Tracking(max_appearance_ratio=ratio)).center
        before, after = (
            np.nanargmin(np.linalg.norm(centers[frame, 0] - positions[frame], axis=1)) for frame in (3, -4)
        )
        kept += int(before == after)
    return {
        "contact": kind,
        "shades": list(shades),
        "frames": frames,
        "trials": trials,
        "max_appearance_ratio": ratio,
        "identities_kept": kept / trials,
    }


def _render_frame(
    positions: Floats, angles: Floats, shades: tuple[int, int], upper: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Draw two ellipses on a noisy floor; the one with index `upper` covers the other."""
    picture = np.full((150, 200), 190.0)
    for animal in (1 - upper, upper):
        layer = np.zeros((150, 200), np.uint8)
        center = tuple(int(value) for value in np.round(positions[animal] * 16))
        axes = (BODY[0] * 16, BODY[1] * 16)
        cv2.ellipse(layer, center, axes, float(angles[animal]), 0, 360, 1, -1, cv2.LINE_8, 4)
        picture[layer > 0] = shades[animal]
    noisy = picture + rng.normal(0, 8, picture.shape)
    return np.repeat(noisy.clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def _track(video: Path, animals: int, settings: Tracking) -> tuple[AnimalTracks, float]:
    """Track animals and return their tracks and the frames per second."""
    started = time.monotonic()
    tracks = track_animals(video, animals, settings)
    return tracks, round(probe_video(video).frames / (time.monotonic() - started), 1)


def _measure_coverage(tracks: AnimalTracks, points: Floats) -> dict[str, float]:
    """Return the fractions of reference points inside the animal's square and inside its crop with margins.

    Args:
        tracks: tracked animals.
        points: reference points in pixels, [frames, animals, L, 2].
    """
    distance = np.abs(points - tracks.center[:, :, None]).max(axis=3)  # along x or y, whichever is larger
    known = np.isfinite(distance)
    half_square = tracks.side / 2
    half_crop = half_square * (1 + 2 * Images().margin)
    return {
        "side_px": round(tracks.side, 1),
        "points_in_square": round(float((distance[known] <= half_square).mean()), 4),
        "points_in_crop": round(float((distance[known] <= half_crop).mean()), 4),
    }


# --- memory ----------------------------------------------------------------------------------------


class InstantDetector(Detector):
    """Detector without a network, to measure the memory of everything else."""

    def locate(self, pixels: torch.Tensor) -> NetworkLandmarks:
        """Return the same position for every landmark."""
        count, landmarks = len(pixels), len(self.names)
        return NetworkLandmarks(torch.full((count, landmarks, 2), 20.0), torch.ones(count, landmarks))


def measure_memory() -> list[dict[str, Any]]:
    """Measure the peak memory of tracking, predicting and writing CSV for a minute and an hour of video."""
    rows = []
    for minutes in (1, 60):
        command = [sys.executable, __file__, "--minutes", str(minutes)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(result.stdout.splitlines()[-1]))
    return rows


def measure_video(minutes: int) -> dict[str, Any]:
    """Measure peak memory and time for a generated video of one moving square.

    The peak counts the whole process, so each video needs a process of its own.
    """
    with tempfile.TemporaryDirectory() as scratch:
        video, frames = Path(scratch, "long.avi"), minutes * 60 * FRAME_RATE
        video_writer = cv2.VideoWriter(str(video), cv2.VideoWriter.fourcc(*"MJPG"), FRAME_RATE, (160, 120))
        for number in range(frames):
            picture = np.full((120, 160, 3), 200, np.uint8)
            x, y = int(70 + 60 * np.sin(number / 50)), int(50 + 45 * np.cos(number / 37))
            picture[y : y + 16, x : x + 16] = 30
            video_writer.write(picture)
        video_writer.release()
        detector = InstantDetector.load("demo")
        started = time.monotonic()
        refs = locate_objects([video], 1, Regions(animals=1))
        get_writer("csv")(detector.predict(refs), detector.card, Path(scratch))
        seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"minutes": minutes, "frames": frames, "peak_MiB": round(peak), "seconds": round(seconds, 1)}


def main() -> None:
    """Run the requested measurements and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flies", type=Path, help="folder of flies-pair-video; needs --mouse")
    parser.add_argument("--mouse", type=Path, help="folder of mouse-openfield; needs --flies")
    parser.add_argument("--touches", action="store_true", help="also measure contacts of generated animals")
    parser.add_argument(
        "--crossings", action="store_true", help="also measure generated animals that cover each other"
    )
    parser.add_argument("--hour", action="store_true", help="also measure the memory for an hour of video")
    parser.add_argument("--out", type=Path, help="result file; earlier measurements in it are kept")
    parser.add_argument(
        "--minutes", type=int, default=0, help="only measure the memory for this many minutes of video"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.minutes:
        print(json.dumps(measure_video(arguments.minutes)))
        return
    out: Path | None = arguments.out
    result = json.loads(out.read_text()) if out is not None and out.exists() else {}
    result |= {
        "script": "benchmarks/find_animals.py",
        "commit": provenance.read_commit(),
        "hardware": f"{platform.machine()} CPU, 2 cores shared with other work: speeds are lower bounds",
        "python": platform.python_version(),
        "opencv": cv2.__version__,
        "reader": video_reader().__name__.rpartition("_")[2],
        "seed": "touches and crossings: [frames, trial]; nothing else is random",
        "settings": "config.Tracking, as in docs/settings.md",
    }
    if arguments.flies and arguments.mouse:
        result["rows"] = [measure_flies(arguments.flies), *measure_mouse(arguments.mouse)]
    if arguments.touches:
        result["touches"] = [measure_contact(kind, frames) for kind in CONTACTS for frames in (5, 15, 50)]
    if arguments.crossings:
        result["crossings"] = [
            measure_crossing(kind, shades, frames, ratio)
            for kind in CROSSINGS
            for shades in ((40, 40), (40, 55), (40, 90))
            for frames in (5, 15)
            for ratio in (0.0, Tracking().max_appearance_ratio)
        ]
        result["crossings_commit"] = provenance.read_commit()
    if arguments.hour:
        result["memory"] = measure_memory()
    print(json.dumps(result, indent=1))
    if out is not None:
        write_json(result, out)


if __name__ == "__main__":
    main()
