"""Measure error, jitter, jumps and lag of the methods that smooth landmarks in videos.

    python benchmarks/smoothing.py --flies FOLDER --mouse FOLDER --out docs/results/smoothing.json \
        [--fly-run RUN --mouse-run RUN]

The folders are the unzipped data sets flies-pair-video and mouse-openfield. The script smooths two kinds of
tracks:

- Known tracks are paths of real animals. The script adds noise, jumps and dropouts and measures the errors
  after smoothing. The paths are the reference points of both flies and the center of the mouse, as
  `--find-animals` finds it.
- Predicted tracks are the predictions of a detector in both videos. Their true positions are unknown. RUN is
  a run folder, made in a few minutes by `selfmark discover VIDEO --find-animals N --method zero-shot`.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import provenance
import torch
from scipy.ndimage import gaussian_filter1d

from selfmark.config import Smoothing, SmoothingMethod, Tracking
from selfmark.detector import Detector
from selfmark.images.video import probe_video
from selfmark.run.files import write_json
from selfmark.tracking.animals import track_animals
from selfmark.tracking.regions import Regions, locate_objects
from selfmark.trajectories.track_smoothing import Track, smooth_track

Floats = npt.NDArray[np.float64]
SEEDS = (0, 1, 2)
NOISE = 0.02  # standard deviation of the added noise, object sizes
JUMP_RATE = 0.03  # fraction of positions that jump away
JUMP = 0.3  # standard deviation of a jump, object sizes
DROPOUT_RATE = 0.02  # fraction of positions at which a dropout of 1 to 8 frames starts
STRENGTHS: dict[SmoothingMethod, tuple[float, ...]] = {  # seconds
    "kalman": (0.03, 0.06, 0.1, 0.2),  # smoothing.time_constant
    "median": (0.2, 0.3, 0.4, 0.6),  # smoothing.window
    "savgol": (0.2, 0.3, 0.4, 0.6),  # smoothing.window
}


def build_settings(method: SmoothingMethod, strength: float) -> Smoothing:
    """Return the settings of a method with a strength in seconds, see `STRENGTHS`."""
    settings = replace(Smoothing(), method=method)
    if method == "kalman":
        return replace(settings, time_constant=strength)
    return replace(settings, window=strength)


def read_fly_tracks(folder: Path) -> list[Track]:
    """Return the reference points of both flies as true tracks, smoothed because they are whole pixels."""
    content = json.loads((folder / "points.json").read_text())
    frame_of = {image["id"]: image["frame"] for image in content["images"]}
    landmarks = len(content["categories"][0]["keypoints"])
    xy = np.full((2, len(content["images"]), landmarks, 2), np.nan)
    for annotation in content["annotations"]:
        if annotation["track"] in (1, 2):
            values = np.array(annotation["keypoints"], float).reshape(-1, 3)
            seen = values[:, 2] > 0
            xy[annotation["track"] - 1, frame_of[annotation["image_id"]], seen] = values[seen, :2]
    seconds = probe_video(folder / "video.mp4").seconds
    return [_build_true_track(points, seconds, 90.0) for points in xy]


def read_mouse_track(folder: Path) -> list[Track]:
    """Return the tracked center of the mouse as a true track."""
    path = folder / "video.mp4"
    tracks = track_animals(path, 1, Tracking(smoothing=0.0))
    return [_build_true_track(tracks.center, probe_video(path).seconds, 120.0)]


def _build_true_track(xy: Floats, seconds: Floats, size: float) -> Track:
    """Fill gaps by interpolation and smooth slightly.

    Args:
        xy: positions [T, K, 2] in pixels, NaN where unknown.
        seconds: time of each frame, [T].
        size: size of the object in pixels.
    """
    known = np.isfinite(xy[..., 0])
    rows = np.arange(len(xy))
    filled = np.empty_like(xy)
    for landmark in range(xy.shape[1]):
        for axis in (0, 1):
            seen = known[:, landmark]
            filled[:, landmark, axis] = np.interp(rows, rows[seen], xy[seen, landmark, axis])
    return Track(gaussian_filter1d(filled, 1.0, axis=0), np.ones(known.shape), seconds, size)


def add_noise(truth: Track, seed: int) -> Track:
    """Return the track as a detector might predict it: with noise, jumps and dropouts.

    Half of the jumps have the score of a correct position. The other jumps and all dropouts have lower
    scores.
    """
    rng = np.random.default_rng(seed)
    shape = truth.score.shape
    xy = truth.xy + rng.normal(0, NOISE * truth.size, truth.xy.shape)
    score = rng.uniform(0.6, 1.0, shape)
    jumps = rng.random(shape) < JUMP_RATE
    xy[jumps] += rng.normal(0, JUMP * truth.size, (int(jumps.sum()), 2))
    unsure = jumps & (rng.random(shape) < 0.5)
    for start, landmark in np.argwhere(rng.random(shape) < DROPOUT_RATE).tolist():
        unsure[start : start + int(rng.integers(1, 9)), landmark] = True
    score[unsure] *= rng.uniform(0.0, 0.5, int(unsure.sum()))
    xy[unsure] += rng.normal(0, JUMP / 2 * truth.size, (int(unsure.sum()), 2))
    return Track(xy, score, truth.seconds, truth.size)


def measure_errors(xy: Floats, truth: Track) -> dict[str, float]:
    """Compare positions [T, K, 2] with the true track.

    Returns:
        A mapping with these keys. `error_*` and `jitter` are in percent of the object's size. `jumps` and
        `known` are fractions of positions. `lag_frames` says how far the positions lag behind the true track.
        `speed_kept` is the top speed divided by the true top speed.
    """
    percent = 100 / truth.size
    error = np.linalg.norm(xy - truth.xy, axis=2)
    known = np.isfinite(error)
    steps, true_steps = np.diff(xy, axis=0), np.diff(truth.xy, axis=0)
    step_error = np.linalg.norm(steps - true_steps, axis=2)
    return {
        "error_rms": float(np.sqrt(np.mean(error[known] ** 2)) * percent),
        "error_p95": float(np.quantile(error[known], 0.95) * percent),
        "jitter": float(np.nanmedian(np.linalg.norm(np.diff(xy, 2, axis=0), axis=2)) * percent),
        "jumps": float(np.nanmean(step_error > 0.1 * truth.size)),
        "lag_frames": measure_lag(xy, truth.xy),
        "speed_kept": float(_measure_top_speed(xy) / _measure_top_speed(truth.xy)),
        "known": float(known.mean()),
    }


def measure_predictions(xy: Floats, track: Track) -> dict[str, float]:
    """Measure smoothed predictions [T, K, 2] whose true positions are unknown.

    Returns:
        A mapping with these keys. `jitter` is in percent of the object's size. `jumps` is the fraction of
        steps that are longer than a fifth of this size. `lag_frames` says how far the positions lag behind
        the track before smoothing. `change_median` is the distance from that track in percent of the object's
        size. `known` is the fraction of positions that are known.
    """
    percent = 100 / track.size
    steps = np.linalg.norm(np.diff(xy, axis=0), axis=2)
    return {
        "jitter": float(np.nanmedian(np.linalg.norm(np.diff(xy, 2, axis=0), axis=2)) * percent),
        "jumps": float(np.nanmean(steps > 0.2 * track.size)),
        "lag_frames": measure_lag(xy, track.xy),
        "change_median": float(np.nanmedian(np.linalg.norm(xy - track.xy, axis=2)) * percent),
        "known": float(np.isfinite(xy[..., 0]).mean()),
    }


def measure_lag(xy: Floats, reference: Floats, max_lag: int = 5) -> float:
    """Return by how many frames `xy` [T, K, 2] lags behind the reference.

    The lag is the shift with the highest correlation of velocities. A parabola through the neighbors of the
    highest correlation refines it to fractions of a frame.

    Args:
        xy: positions in pixels.
        reference: positions without lag, [T, K, 2].
        max_lag: largest lag that is tried, in frames.
    """
    velocity, expected = np.diff(xy, axis=0), np.diff(reference, axis=0)
    limit = np.nanquantile(np.linalg.norm(expected, axis=2), 0.99)  # jumps would dominate the correlation
    velocity, expected = (
        np.where(np.linalg.norm(steps, axis=2, keepdims=True) <= limit, steps, np.nan)
        for steps in (velocity, expected)
    )
    shifts = np.arange(-max_lag, max_lag + 1)
    correlation = np.array(
        [
            np.nanmean(
                velocity[max_lag + shift : len(velocity) - max_lag + shift] * expected[max_lag:-max_lag]
            )
            for shift in shifts
        ]
    )
    best_index = int(np.clip(correlation.argmax(), 1, len(correlation) - 2))
    before, peak, after = correlation[best_index - 1 : best_index + 2]
    return float(shifts[best_index] + (before - after) / (2 * (before - 2 * peak + after)))


def _measure_top_speed(xy: Floats) -> float:
    """Return the 99th percentile of the movement between two frames, which strong smoothing reduces."""
    return float(np.nanquantile(np.linalg.norm(np.diff(xy, axis=0), axis=2), 0.99))


def measure_known(name: str, truths: list[Track]) -> list[dict[str, Any]]:
    """Measure all methods on true tracks with added noise, and return means over tracks and seeds."""
    noisy = [(truth, add_noise(truth, seed)) for truth in truths for seed in SEEDS]
    rows = [_build_mean_row(name, "none", 0.0, [measure_errors(track.xy, truth) for truth, track in noisy])]
    for method, strengths in STRENGTHS.items():
        for strength in strengths:
            settings = build_settings(method, strength)
            measured = [measure_errors(smooth_track(track, settings).xy, truth) for truth, track in noisy]
            rows.append(_build_mean_row(name, method, strength, measured))
    return rows


def predict_tracks(run: Path, video: Path, animals: int, frames: int) -> list[Track]:
    """Predict the landmarks of all animals in the first frames of a video, one track per animal."""
    detector = Detector.load(run)
    refs = [ref for ref in locate_objects([video], 1, Regions(animals=animals)) if (ref.frame or 0) < frames]
    seconds = probe_video(video).seconds[:frames]
    xy = np.full((animals, frames, len(detector.names), 2), np.nan)
    score = np.zeros(xy.shape[:3])
    for batch, _, landmarks in detector.predict(refs):
        for row, ref in enumerate(batch):
            index = (ref.track or 1) - 1, ref.frame or 0
            xy[index], score[index] = landmarks.xy[row], landmarks.score[row]
    box = refs[0].box
    assert box is not None
    return [Track(points, values, seconds, box[2]) for points, values in zip(xy, score, strict=True)]


def measure_predicted(name: str, tracks: list[Track]) -> list[dict[str, Any]]:
    """Measure all methods on the predictions of a detector."""
    rows = [_build_mean_row(name, "none", 0.0, [measure_predictions(track.xy, track) for track in tracks])]
    for method, strengths in STRENGTHS.items():
        for strength in strengths:
            settings = build_settings(method, strength)
            measured = [measure_predictions(smooth_track(track, settings).xy, track) for track in tracks]
            rows.append(_build_mean_row(name, method, strength, measured))
    return rows


def _build_mean_row(
    name: str, method: str, strength: float, measured: list[dict[str, float]]
) -> dict[str, Any]:
    means = {key: round(float(np.mean([row[key] for row in measured])), 4) for key in measured[0]}
    return {"data": name, "method": method, "seconds": strength, **means}


def main() -> None:
    """Run all measurements that the given folders allow and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flies", type=Path, required=True, help="folder of flies-pair-video")
    parser.add_argument("--mouse", type=Path, required=True, help="folder of mouse-openfield")
    parser.add_argument("--fly-run", type=Path, help="run folder of a detector of the flies")
    parser.add_argument("--mouse-run", type=Path, help="run folder of a detector of the mouse")
    parser.add_argument("--frames", type=int, default=400, help="predict this many frames of each video")
    parser.add_argument("--out", type=Path, help="result file; earlier measurements in it are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out: Path | None = arguments.out
    result = json.loads(out.read_text()) if out is not None and out.exists() else {}
    result |= {
        "script": "benchmarks/smoothing.py",
        "commit": provenance.read_commit(),
        "hardware": provenance.describe_processor(),
        "seeds": list(SEEDS),
        "units": "error, jitter and change: percent of the object's size; jumps and known: fractions",
        "known": [
            *measure_known("flies", read_fly_tracks(arguments.flies)),
            *measure_known("mouse", read_mouse_track(arguments.mouse)),
        ],
    }
    runs = (
        ("flies", arguments.fly_run, arguments.flies, 2),
        ("mouse", arguments.mouse_run, arguments.mouse, 1),
    )
    predicted = [
        row
        for name, run, folder, animals in runs
        if run is not None
        for row in measure_predicted(
            name, predict_tracks(run, folder / "video.mp4", animals, arguments.frames)
        )
    ]
    if predicted:
        result["predicted"] = predicted
        result["predicted_frames"] = arguments.frames
    print(json.dumps(result, indent=1))
    if out is not None:
        write_json(result, out)


if __name__ == "__main__":
    main()
