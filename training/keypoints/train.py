"""Train selfmark's own first keypoints, from nothing but generated images and public-domain photographs.

    PYTHONPATH=src python -m training.keypoints.photographs --out photos
    PYTHONPATH=src python -m training.keypoints.train --photos photos --out runs/keypoints

1. A detector learns from shapes whose points are known.
2. Homographic adaptation: points it finds again and again in deformed scenes and photographs become labels.
3. Detector and descriptor learn together from pairs of views.
4. Steps 2 and 3 once more, with the better detector.

Leaves in the folder: `selfmark.safetensors` (the weights), the weights after earlier phases, `log.json`, and
`sheet.png`, points found in images that training did not use. A training that was cut off goes on with
`--resume` after the last phase it finished, and ends as if nothing had happened.
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
from training.keypoints.data import draughtsmen, draw_shapes, draw_unlabeled
from training.keypoints.network import Trainee, fold, plain
from training.keypoints.optimize import Log, optimize
from training.keypoints.phases import joint_step, shapes_step
from training.keypoints.settings import FULL, TINY, Settings
from training.keypoints.sheet import contact_sheet, held_out_score
from training.keypoints.speed import measure_speed

CHOICES = {"full": FULL, "tiny": TINY}


def train(
    settings: Settings, photographs: Path, out: Path, device: torch.device, resume: bool, log: Log
) -> dict[str, Any]:
    """The whole training; leaves its files in `out` and returns the scores of each phase.

    Every phase draws from a generator of its own and starts with a new optimizer, so all it takes from the
    phase before is the network.
    """
    torch.manual_seed(settings.seed)
    network = Trainee().to(device)
    rules = settings.training
    rounds = list(zip(rules.joint_iterations, rules.joint_lr, strict=True))
    scores: dict[str, Any] = {}
    done = 0
    if resume:
        done, scores = state.load(network, out, settings)
        log("resumed", phases_done=done)
        if done > len(rounds):
            raise InputError(f"the training in {out} is finished; leave --resume away to start anew")

    def finish(number: int, phase: str, name: str) -> None:
        weights = fold(network.eval())
        save_file(
            weights, out / f"{name}.safetensors", metadata={"license": "MIT", "seed": str(settings.seed)}
        )
        scores[phase] = dataclasses.asdict(held_out_score(weights, settings, photographs, device))
        log(f"{phase} done", **scores[phase])
        state.save(network, number + 1, scores, out, settings)

    with draughtsmen() as pool:
        drawing = draw_shapes(pool, settings.data, settings.seed)
        later = draw_unlabeled(pool, settings.data, settings.seed, photographs)  # while shapes are learnt
        shapes = drawing.ready(device)
        log("shapes drawn", images=len(shapes))
        if done == 0:
            generator = _generator(settings, 0, device)
            step = shapes_step(network, shapes, settings, generator)
            optimize(network, step, rules.shapes_iterations, rules.lr, rules, generator, "shapes", log)
            finish(0, "shapes", "phase0-shapes")
        unlabeled = later.ready(device).images
        log("scenes drawn", images=len(unlabeled))

    for number, (iterations, lr) in enumerate(rounds, start=1):
        if number < done:
            continue
        generator = _generator(settings, number, device)
        labeled = adapt(plain(fold(network.eval()), device), unlabeled, settings, generator)
        log(f"adaptation {number}", points_per_image=labeled.points_per_image())
        step = joint_step(network, labeled, shapes, settings, generator)
        optimize(network, step, iterations, lr, rules, generator, f"joint {number}", log)
        finish(number, f"joint {number}", "selfmark" if number == len(rounds) else f"phase{number}-joint")
    contact_sheet(fold(network.eval()), settings, photographs, labeled, device, out / "sheet.png")
    return scores


def _generator(settings: Settings, phase: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(1_000 * settings.seed + phase)


def lengthened(settings: Settings, factor: float) -> Settings:
    """The same settings with `factor` times the iterations."""
    rules = settings.training
    return replace(
        settings,
        training=replace(
            rules,
            shapes_iterations=max(1, round(rules.shapes_iterations * factor)),
            joint_iterations=tuple(max(1, round(n * factor)) for n in rules.joint_iterations),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the weights, the log and the sheet"
    )
    parser.add_argument("--photos", type=Path, required=True, help="folder with the photographs")
    parser.add_argument(
        "--settings", choices=CHOICES, default="full", help="tiny: two CPU cores, a trial only"
    )
    parser.add_argument("--length", type=float, default=1.0, help="factor on the iterations of all phases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--resume", action="store_true", help="go on after the last finished phase in --out")
    parser.add_argument(
        "--profile",
        type=int,
        metavar="N",
        help="train nothing: where do N joint iterations spend their time?",
    )
    options = parser.parse_args()
    settings = replace(lengthened(CHOICES[options.settings], options.length), seed=options.seed)
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
