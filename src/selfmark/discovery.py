"""Discover landmarks: open a run folder, train the detector in it, then check and report the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from PIL import Image

from selfmark.argument_types import check_argument_types
from selfmark.config import AUTO_RECIPE, Config, Method
from selfmark.config.schedule import stage_iterations
from selfmark.detector import Detector
from selfmark.errors import InputError, SelfmarkError, report_path_errors
from selfmark.evaluation.familiarity import save_familiarity
from selfmark.evaluation.protocol import Metrics
from selfmark.evaluation.run_evaluation import check_run
from selfmark.evaluation.run_models import RunModels
from selfmark.feature_discovery.feature_pipeline import train_feature_detector
from selfmark.features.loading import resolve_features
from selfmark.image_ref import ImageRef
from selfmark.images.picture_files import encode_image
from selfmark.images.sources import to_input_list
from selfmark.images.store import ImageStore
from selfmark.inspection.run_estimate import describe_estimate, estimate_run
from selfmark.methods.mallis2020 import train_with_merging
from selfmark.methods.training import train_method
from selfmark.model.card import REFINED, read_card, write_card
from selfmark.model_library import compute_model_digest, copy_model, find_model
from selfmark.pipeline import train_detector, train_phi
from selfmark.pipeline_steps import Preview, do_nothing, keep_edits, report_out_of_memory, show_nothing
from selfmark.report.landmark_pictures import draw_contact_sheet
from selfmark.report.run_report import build_report, embed_meanwhile
from selfmark.report.verdict_text import describe_agreement, describe_verdict
from selfmark.run.devices import select_device
from selfmark.run.files import atomic_open
from selfmark.run.folder import Listener, Run, StartingPoint
from selfmark.run.guarded_files import make_folder
from selfmark.run.locks import exclusive_if_possible
from selfmark.run.processes import ProcessGroup, is_restarted
from selfmark.run_plan import RunInputs, RunOptions, check_request, options_to_json, resolve_config
from selfmark.sampling import evenly_spaced
from selfmark.tracking.regions import Regions, locate_objects
from selfmark.train.guards import check_landmarks
from selfmark.train.kernel_compilation import compile_kernels
from selfmark.train.starting_weights import check_start
from selfmark.verification import hold_out, verify_run

_PREVIEW_IMAGES, _PREVIEW_COLUMNS = 12, 4
_FINAL_STEPS = 2  # steps that follow the training: the checks and the report
_MIN_ITERATIONS = 100  # a training with fewer iterations gets no time estimate
_FRAMES_PER_REPORT = 25  # frames between two progress events while animals are tracked


@report_path_errors()
@check_argument_types
def discover(
    inputs: str | Path | Sequence[str | Path] = (),
    landmarks: int | Literal["auto"] | None = None,
    output: str | Path | None = None,
    preset: str = "auto",
    settings: Mapping[str, Any] | None = None,
    every: int = 1,
    regions: Regions | None = None,
    resume: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
    features: str | None = None,
    method: Method | None = None,
    verify: bool | None = None,
    recipe: str = AUTO_RECIPE,
    start_from: str = "",
) -> Detector:
    """Discover K landmarks in unlabeled images and train a detector for them.

    Args:
        inputs: folders, glob patterns, image files, text files that list images, COCO files or videos.
        landmarks: number of landmarks; for `mallis2020`, the maximum number. "auto" chooses the number from
            the images, None uses the number of the preset.
        output: run folder; None uses `runs/NAME`, named after the first input.
        preset: `paper`, `fast`, `tiny`, or `auto` for the one that suits this machine.
        settings: mapping from dotted names to values that differ from the preset, e.g.
            `{"M": 50, "flip.test": False}`.
        every: use every n-th frame of each video.
        regions: where the objects are in the images: a file of boxes, a crop, or animals to track. None uses
            the boxes of COCO files; an image without a box shows one object that fills it.
        resume: continue the run in `output` with the inputs and settings it was created with; `settings` may
            then only change how the run is computed (`runtime`, `optimizer`, ...).
        device: `auto`, `cpu`, `cuda`, ...
        listener: called with every log event.
        features: pretrained features: `efficientnet-lite0`, `dinov2-s`, `onnx:FILE`, ..., or `none` for the
            paper's method; None uses `efficientnet-lite0` with the preset `auto` and no features otherwise.
            Methods of other papers use no features.
        method: `self-training`; `zero-shot` for landmarks of the features alone, without training; or a
            method of another paper: `mallis2020`, `equivariance`, `dve`, `zhang2018`, `jakab2018`,
            `lorenz2019` or `autolink`. None uses `self-training`.
        verify: train a second, shorter detector and compare the two on images that neither was trained on;
            None does so for the preset `auto` on a GPU, if there are enough images
            (`verification.min_images`).
        recipe: settings for a kind of images: `upright`, `any-orientation`, `side-view` or `many-colors`;
            `auto` decides from the images. `settings` override the recipe.
        start_from: detector whose weights the training starts from: a run folder, or a name that
            `selfmark models` lists. Empty for random weights.

    Returns:
        The trained detector, which is also saved in the run folder.

    Raises:
        InputError: if images or settings cannot be used.
        TrainingError: if the training fails.
    """
    options = RunOptions(
        landmarks,
        output,
        preset,
        settings or {},
        resume,
        device,
        features,
        method,
        verify,
        recipe,
        start_from,
    )
    run_inputs = RunInputs(to_input_list(inputs), every, regions)
    with open_run(run_inputs, options, listener) as opened, ExitStack() as stack:
        run = opened.run

        def on_plan() -> None:
            if run.group.is_leader:
                stack.enter_context(compile_kernels(run.config, opened.device))
            if opened.is_new:
                _log_estimate(run, opened.device)

        on_preview = partial(_write_preview, run)
        detector, store = train_run(run, opened.device, opened.is_new, on_preview, on_plan)
        run.group.run_on_leader(lambda: _preview_detector(run, detector, store))
        if run.config.verification.enabled:
            verify_run(
                run,
                detector,
                store,
                lambda second, is_new: train_run(second, opened.device, is_new, show_nothing)[0],
            )
        _finish(run, detector, store)
        return Detector(detector.psi, read_card(run.model_folder), opened.device, run.config.runtime)


def _log_estimate(run: Run, device: torch.device) -> None:
    """Time a few iterations and log how long a new run will take.

    Very short runs and runs of several processes get no estimate.
    """
    if sum(stage_iterations(run.config).values()) < _MIN_ITERATIONS or run.group.size > 1:
        return
    try:
        estimate = estimate_run(run.refs(), run.config, device)
    except (SelfmarkError, torch.OutOfMemoryError):
        return  # If the run itself meets the same problem, the run reports the problem.
    run.log(
        "estimate",
        text=describe_estimate(estimate, device),
        seconds=round(estimate.seconds, 1),
        after=round(estimate.after, 1),
        seconds_per_iteration=estimate.seconds_per_iteration,
    )


def train_run(
    run: Run,
    device: torch.device,
    is_new: bool,
    on_preview: Preview,
    on_plan: Callable[[], None] = do_nothing,
) -> tuple[Detector, ImageStore]:
    """Train the detector of a run with the method of its settings; do not check or save it.

    Args:
        run: the run; its folder must be locked.
        device: device to compute on.
        is_new: whether the run was just created.
        on_preview: called with the landmarks after each step of the training; methods of other papers do not
            call it.
        on_plan: called when it is known which stages the training has.

    Returns:
        The detector and the training images.
    """
    if run.config.uses_features:
        return train_feature_detector(run, device, is_new, on_preview, on_plan)
    on_plan()
    if run.config.merges_clusters:
        return train_with_merging(run, device, is_new)
    if run.config.is_from_another_paper:
        return train_method(run, device, is_new)
    return train_detector(run, device, is_new, on_preview)


def train_stage1(
    inputs: str | Path | Sequence[str | Path] = (),
    output: str | Path | None = None,
    preset: str = "auto",
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    device: str = "auto",
    listener: Listener | None = None,
) -> None:
    """Run only Stage 1, including its last clustering; see `discover` for the arguments.

    `evaluation.stage1_landmarks` reads the landmarks of this run. `discover(resume=True)` continues the run
    with Stage 2.
    """
    options = RunOptions(None, output, preset, settings or {}, resume, device, features="none")
    with open_run(RunInputs(to_input_list(inputs)), options, listener) as opened:
        train_phi(opened.run, opened.device, opened.is_new)


def _write_preview(run: Run, step: str, pixels: torch.Tensor, xy: torch.Tensor) -> None:
    """Draw the landmarks of a step in a few images, and write preview/STEP.jpg unless it exists.

    The previews of all steps show the same images.
    """
    path = run.path / "preview" / f"{step}.jpg"
    if path.exists() or not run.group.is_leader:
        return
    rows = evenly_spaced(len(pixels), _PREVIEW_IMAGES)
    images = pixels[rows].permute(0, 2, 3, 1).cpu().numpy()
    sheet = draw_contact_sheet(images, xy[rows].cpu().numpy(), columns=_PREVIEW_COLUMNS)
    with run.report_disk_errors():
        make_folder(path.parent)
        with atomic_open(path, "wb") as handle:
            handle.write(encode_image(Image.fromarray(sheet), "JPEG", 90))
    run.log("preview", path=str(path), step=step)


def _preview_detector(run: Run, detector: Detector, store: ImageStore) -> None:
    """Write preview/detector.jpg: the images of the other previews with the landmarks of the detector."""
    # With features, the other previews show some of the images that `select_images` chose.
    max_images = run.config.features.max_images if run.config.uses_features else len(store)
    used = evenly_spaced(len(store), max_images)
    rows = used[evenly_spaced(len(used), _PREVIEW_IMAGES)].tolist()
    pixels = store.pixels[rows]
    with report_out_of_memory(run, "runtime.predict_batch", run.config.runtime.predict_batch):
        _write_preview(run, "detector", pixels, detector.locate(pixels).xy)


def _finish(run: Run, detector: Detector, store: ImageStore) -> None:
    """Save a trained detector, check it and write the report; the processes share the checks."""
    group, guards, batch = run.group, run.config.guards, run.config.runtime.predict_batch
    progress = run.progress("checking landmarks")

    def check_and_save() -> None:
        check_landmarks(*detector.locate(store.pixels[: guards.num_samples]), run.config.images.size, guards)
        _save_detector(run, detector)

    with run.report_disk_errors(), report_out_of_memory(run, "runtime.predict_batch", batch):
        group.run_on_leader(check_and_save)
        progress(0, _FINAL_STEPS)
        save_familiarity(detector, store.pixels, run.model_folder, guards, group)
        # Open the run without the process group, because the leader alone writes the report.
        finished_run = group.run_on_all(lambda: Run.open(run.path))
        with ExitStack() as meanwhile:

            def start_embedding() -> None:
                meanwhile.enter_context(embed_meanwhile(RunModels.of(finished_run, detector), store))

            def write_results() -> None:
                meanwhile.close()
                progress(1, _FINAL_STEPS)
                _write_card_and_report(run, finished_run, detector, metrics, store)

            group.run_on_leader(start_embedding)
            metrics = check_run(finished_run, detector, store, group)
            group.run_on_leader(write_results)
        progress(_FINAL_STEPS, _FINAL_STEPS)
    checks = metrics["unlabelled"]
    run.log("verdict", verdict=checks["verdict"], text=describe_verdict(checks))
    run.log("done", landmarks=run.config.K, output=str(run.path))


def _save_detector(run: Run, detector: Detector) -> None:
    """Write the detector of a run to its model folder, with the edits of the card that is there now."""
    make_folder(run.model_folder)
    with exclusive_if_possible(run.model_folder):
        _require_unrefined(run)
        card = keep_edits(run, detector.psi, detector.card)
        Detector(detector.psi, card, detector.device, detector.runtime).save(run.model_folder)


def _write_card_and_report(
    run: Run, finished_run: Run, detector: Detector, metrics: Metrics, store: ImageStore
) -> None:
    """Add the results of the checks to the model card, log them, and write the report."""
    checks = metrics["unlabelled"]
    trust = tuple(round(value, 4) for value in checks["trust"])
    with exclusive_if_possible(run.model_folder):
        _require_unrefined(run)
        # Read the card again, because the user may have named landmarks during the checks.
        card = replace(read_card(run.model_folder), trust=trust, verdict=checks["verdict"])
        write_card(card, run.model_folder)
    if metrics["verification"] is not None:
        run.log("agreement_of_runs", text=describe_agreement(metrics["verification"]))
    for sentence in metrics["advice"]:
        run.log("advice", text=sentence)
    judged_detector = Detector(detector.psi, card, detector.device, detector.runtime)
    build_report(RunModels.of(finished_run, judged_detector), image_store=store)


class OpenedRun(NamedTuple):
    """A locked run, the device to compute on, and whether the run was just created."""

    run: Run
    device: torch.device
    is_new: bool


@contextmanager
def open_run(inputs: RunInputs, options: RunOptions, listener: Listener | None) -> Iterator[OpenedRun]:
    """Create a run folder, or open one to resume it, and lock it inside the context.

    Args:
        inputs: the images; may be empty if a run is resumed.
        options: the options of the discovery.
        listener: called with every log event.

    Raises:
        InputError: if the images or settings of a new run cannot be used, or its folder already contains a
            run; if the run to resume does not exist, has other images or options, or was refined; or if
            another process uses the folder.
    """
    device = select_device(options.device)
    group = ProcessGroup.from_environment(device)
    path = _choose_run_folder(inputs, options)
    # If torchrun restarted the processes, they resume from the last checkpoint.
    resume = options.resume or (is_restarted() and (path / "run.json").exists())
    if not resume:
        group.run_on_leader(lambda: _create_run(path, inputs, options, device, listener))
    run = Run.open(path, listener, group)
    if options.resume:  # After a restart by torchrun, the options are the same and need no check.
        _require_same_options(run, inputs, options)
    if resume and inputs.inputs and _split_inputs(inputs, run.config)[0] != run.refs():
        raise InputError(f"{run.path} was started on other images: leave the inputs out to resume it")
    try:
        with run.lock():
            if resume:  # `refine` holds the lock, too, so the detector cannot be refined from here on.
                group.run_on_leader(lambda: _require_unrefined(run))
            if options.resume:
                run.change_settings(options.settings)
            yield OpenedRun(run, device, not resume)
    finally:
        group.close()


def _split_inputs(inputs: RunInputs, config: Config) -> tuple[list[ImageRef], list[ImageRef]]:
    """Return the images to train on and the held-out images."""
    return hold_out(locate_objects(*inputs, config.tracking), config)


def _require_same_options(run: Run, inputs: RunInputs, options: RunOptions) -> None:
    """Raise if a run is resumed with options that differ from those it was created with.

    Options with their default value count as left out and are not compared.
    """
    config, stored, start = run.config, run.read_options(), run.start_from()
    compared: dict[str, tuple[Any, Any, Any]] = {  # requested value, default, and value of the run
        "--features": (options.features, None, config.features.name),
        "--method": (options.method, None, config.method),
        "--preset": (options.preset, "auto", config.preset),
        "--verify": (options.verify, None, config.verification.enabled),
        "--start-from": (options.start_from, "", start["model"] if start else "random weights"),
    }
    defaults = options_to_json(RunInputs(()), RunOptions())
    for name, requested in options_to_json(inputs, options).items():
        compared[name] = (requested, defaults[name], stored.get(name, "another value"))
    if stored.get("-k") is None:  # The run took K from its preset or from --set.
        compared["-k"] = (options.landmarks, None, config.K or "auto")
    if options.features is not None:
        compared["--features"] = (resolve_features(options.features), None, config.features.name)
    for name, (requested, default, value) in compared.items():
        if requested not in (default, value):
            raise InputError(
                f"{name} cannot change when a run is resumed: {run.path} uses {_describe_option(value)}, not "
                f"{_describe_option(requested)}; leave out {name}, or start a new run"
            )


def _require_unrefined(run: Run) -> None:
    """Raise if the detector of a run was refined, because resuming the run would overwrite it."""
    if (run.model_folder / "model.json").exists() and REFINED in read_card(run.model_folder).provenance:
        raise InputError(
            f"the detector of {run.path} was refined, and resuming would replace it: first put the original "
            f"back with 'selfmark refine {run.path} --undo'"
        )


def _describe_option(value: Any) -> str:
    """Return the value of an option as a user writes it on the command line."""
    if value is None or value is False:
        return "none"
    return ",".join(f"{item:g}" for item in value) if isinstance(value, list) else str(value)


def _choose_run_folder(inputs: RunInputs, options: RunOptions) -> Path:
    """Return the given output folder, or else runs/NAME, named after the first input."""
    if options.output is not None:
        return Path(options.output)
    if options.resume:
        raise InputError("--resume needs --output, the run folder to resume")
    first = next(iter(inputs.inputs), "")  # `check_request` refuses a request without inputs
    return Path("runs") / (Path(first).stem or "discovery")


def _find_start(name: str, config: Config) -> StartingPoint:
    """Return the detector that a run starts from; raise if it does not exist or does not fit the settings."""
    folder = find_model(name)
    check_start(read_card(folder), config, name)
    return StartingPoint(name, compute_model_digest(folder), partial(copy_model, folder))


def _create_run(
    path: Path, inputs: RunInputs, options: RunOptions, device: torch.device, listener: Listener | None
) -> None:
    """Create a run folder, and log the start of the run.

    Progress is passed to the listener only: there is no log yet while animals are tracked.
    """
    # Tracking may take minutes, so check first everything that can be refused without it.
    tracking = check_request(inputs, options, device)
    Run.require_unused(path)
    if options.start_from:
        find_model(options.start_from)

    def on_progress(done: int, total: int) -> None:
        if listener is not None and (done % _FRAMES_PER_REPORT == 0 or done == total):
            listener({"event": "progress", "stage": "finding animals", "round": 0, "done": done, "of": total})

    notes: list[str] = []
    refs = locate_objects(*inputs, tracking, on_progress, notes.append)
    config, reason = resolve_config(inputs, options, len(refs), device)
    training, held_out = hold_out(refs, config)
    start = _find_start(options.start_from, config) if options.start_from else None
    input_names = [str(item) for item in inputs.inputs]
    Run.create(path, config, input_names, training, held_out, start, options_to_json(inputs, options))
    run = Run.open(path, listener)
    for note in notes:
        run.log("note", text=note)
    run.log(
        "start",
        preset=config.preset,
        why=reason,
        device=str(device),
        images=len(refs),
        K=config.K or "auto",
        M=config.M,
        output=str(path),
    )
