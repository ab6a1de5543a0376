"""Train selfmark's own first-keypoint detector on generated images and public-domain photographs.

    PYTHONPATH=src python -m training.keypoints.photographs --out photos
    PYTHONPATH=src python -m training.keypoints.train --photos photos --out runs/keypoints

The first command collects the photographs, the second one trains:

1. Train the detector on shapes with known points.
2. Label scenes, toy animals and photographs by homographic adaptation: points that the detector finds in many
   views of an image become labels of this image.
3. Train detector and descriptor together on pairs of views of the labeled images.
4. Repeat steps 2 and 3 with the better detector.

The output folder contains `selfmark.safetensors` (the weights), the weights after earlier phases, `log.json`,
and `sheet.png`. The sheet shows points in images that training did not use, and labels of training images.
After an interruption, `--resume` continues after the last finished phase. It gives the same result as an
uninterrupted training, apart from rounding on a GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from selfmark.errors import InputError
from training.keypoints import state
from training.keypoints.adapt import adapt
from training.keypoints.data import draw_shapes, draw_unlabeled, open_drawing_pool
from training.keypoints.network import TrainingNetwork, build_superpoint, fold_norms
from training.keypoints.optimize import Log, optimize
from training.keypoints.phases import build_joint_step, build_shapes_step
from training.keypoints.settings import FULL, TINY, Settings
from training.keypoints.sheet import score_held_out, write_contact_sheet
from training.keypoints.speed import measure_speed

CHOICES = {"full": FULL, "tiny": TINY}


def train(
    settings: Settings, photographs: Path, out: Path, device: torch.device, resume: bool, log: Log
) -> dict[str, Any]:
    """Run the whole training, write its files to `out` and return the scores of each phase.

    Every phase has its own random generator and a new optimizer. Only the network carries over from one phase
    to the next, so that a resumed training gives the same result.

    Args:
        settings: Settings of the training.
        photographs: Folder of the photographs.
        out: Output folder.
        device: Device to train on.
        resume: Whether to continue after the last finished phase in `out`.
        log: Log of the run.
    """
    torch.manual_seed(settings.seed)
    network = TrainingNetwork().to(device)
    options = settings.training
    rounds = list(zip(options.joint_iterations, options.joint_lr, strict=True))
    scores: dict[str, Any] = {}
    done = 0
    if resume:
        done, scores = state.load(network, out, settings)
        log("resumed", phases_done=done)
        if done > len(rounds):
            raise InputError(f"the training in {out} is finished; omit --resume to start a new one")

    def finish(number: int, phase: str, name: str) -> None:
        weights = fold_norms(network.eval())
        save_file(
            weights, out / f"{name}.safetensors", metadata={"license": "MIT", "seed": str(settings.seed)}
        )
        scores[phase] = dataclasses.asdict(score_held_out(weights, settings, photographs, device))
        log(f"{phase} done", **scores[phase])
        state.save(network, number + 1, scores, out, settings)

    with open_drawing_pool() as pool:
        shapes_drawing = draw_shapes(pool, settings.data, settings.seed)
        # The pool draws these images while the first phase trains on shapes.
        unlabeled_drawing = draw_unlabeled(pool, settings.data, settings.seed, photographs)
        shapes = shapes_drawing.wait(device)
        log("shapes drawn", images=len(shapes))
        if done == 0:
            generator = _make_generator(settings, 0, device)
            step = build_shapes_step(network, shapes, settings, generator)
            optimize(network, step, options.shapes_iterations, options.lr, options, generator, "shapes", log)
            finish(0, "shapes", "phase0-shapes")
        unlabeled = unlabeled_drawing.wait(device).images
        log("scenes drawn", images=len(unlabeled))

    for number, (iterations, lr) in enumerate(rounds, start=1):
        if number < done:
            continue
        generator = _make_generator(settings, number, device)
        labeled = adapt(build_superpoint(fold_norms(network.eval()), device), unlabeled, settings, generator)
        log(f"adaptation {number}", points_per_image=labeled.compute_points_per_image())
        step = build_joint_step(network, labeled, shapes, settings, generator)
        optimize(network, step, iterations, lr, options, generator, f"joint {number}", log)
        finish(number, f"joint {number}", "selfmark" if number == len(rounds) else f"phase{number}-joint")
    write_contact_sheet(fold_norms(network.eval()), settings, photographs, labeled, device, out / "sheet.png")
    return scores


def _make_generator(settings: Settings, phase: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(1_000 * settings.seed + phase)


def scale_iterations(settings: Settings, factor: float) -> Settings:
    """Return the settings with `factor` times the iterations in all phases."""
    options = settings.training
    return replace(
        settings,
        training=replace(
            options,
            shapes_iterations=max(1, round(options.shapes_iterations * factor)),
            joint_iterations=tuple(max(1, round(count * factor)) for count in options.joint_iterations),
        ),
    )


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="output folder for the weights, the log and the sheet"
    )
    parser.add_argument("--photos", type=Path, required=True, help="folder with the photographs")
    parser.add_argument(
        "--settings", choices=CHOICES, default="full", help="tiny: a trial run for two CPU cores"
    )
    parser.add_argument("--length", type=float, default=1.0, help="factor on the iterations of all phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--resume", action="store_true", help="continue after the last finished phase in --out"
    )
    parser.add_argument(
        "--profile",
        type=int,
        metavar="N",
        help="do not train; show where N joint iterations spend their time",
    )
    options = parser.parse_args()
    settings = replace(scale_iterations(CHOICES[options.settings], options.length), seed=options.seed)
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    if options.profile:
        print(measure_speed(settings, options.profile, device))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    log("start", hardware=name, torch=torch.__version__, seed=options.seed)
    try:
        scores = train(settings, options.photos, options.out, device, options.resume, log)
    except InputError as error:
        parser.error(str(error))
    log("end", weights=str(options.out / "selfmark.safetensors"))
    record = {"settings": dataclasses.asdict(settings), "scores": scores, "events": log.events}
    (options.out / "log.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    print(f"{'phase':10} {'repeatability':>14} {'matching':>9}")
    for phase, score in scores.items():
        print(f"{phase:10} {score['repeatability']:14.3f} {score['matching']:9.3f}")


if __name__ == "__main__":
    main()
