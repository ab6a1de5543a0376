"""Measure whether the checks across individuals notice landmarks that have nothing to do with their images.

    PYTHONPATH=src:benchmarks:benchmarks/quality:benchmarks/features \
        python benchmarks/trust/shuffled_landmarks.py WORK OUT OUTPUT.json [NAME--VARIANT ...]

WORK and OUT are those of `calibration_runs.py`. The recorded landmarks of each run are replaced in two ways:
every image gets the landmarks of another image, or every landmark gets independent positions with the same
mean and spread. Both have errors like guessing, so they should have an appearance error of about 1. They are
judged as if they followed every deformation.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import provenance
import torch
from recorded_checks import _parse_ref

from selfmark.config import Config, Evaluation, from_dict
from selfmark.evaluation.individuals import check_individuals
from selfmark.evaluation.trust import TrustEvidence, judge_landmarks
from selfmark.evaluation.verdict import judge_run
from selfmark.images.store import load_store
from selfmark.points import FloatArray
from selfmark.run.files import read_json, write_json


def main() -> None:
    """Check the replaced landmarks of the runs that are named on the command line."""
    work, out, output = (Path(argument) for argument in sys.argv[1:4])
    rows = []
    for title in sys.argv[4:]:
        config = from_dict(read_json(out / f"{title}.json")["config"])
        recorded = np.load(out / f"{title}.npz")
        refs = [_parse_ref(name, work) for name in recorded["names"]]
        pixels = load_store(refs, config.images, float("inf"), None).pixels
        for way, xy in replace_landmarks(recorded["xy"].astype(np.float64)).items():
            rows.append({"run": title, "landmarks": way} | judge(xy, pixels, config))
            print(rows[-1], flush=True)
    about = {
        "script": "benchmarks/trust/shuffled_landmarks.py",
        "commit": provenance.read_commit(),
        "seed": 0,
    }
    versions = {"torch": torch.__version__, "device": "1 CPU core"}
    write_json(about | versions | {"rows": rows}, output)


def replace_landmarks(xy: FloatArray) -> dict[str, FloatArray]:
    """Return landmarks [N, K, 2] that have nothing to do with their images, made in two ways."""
    random = np.random.default_rng(0)
    return {
        "of another image": xy[random.permutation(len(xy))],
        "independent": xy.mean(axis=0) + random.normal(0, 1, xy.shape) * xy.std(axis=0),
    }


def judge(xy: FloatArray, pixels: torch.Tensor, config: Config) -> dict[str, Any]:
    """Return the results of the checks on landmarks [N, K, 2] of images [N, 3, S, S]."""
    checks = check_individuals(xy, pixels, config, torch.device("cpu"))
    ones = np.ones(xy.shape[1])
    evidence = TrustEvidence(ones, checks.appearance_error, checks.unexplained, ones)
    trust = judge_landmarks(evidence, Evaluation())
    verdict, expected = judge_run(trust.expected_error, checks.missed_movement, Evaluation())
    return {
        "appearance_error": round(float(np.median(checks.appearance_error)), 3),
        "highest_trust": round(float(trust.trust.max()), 3),
        "expected_forward": expected,
        "verdict": verdict,
    }


if __name__ == "__main__":
    main()
