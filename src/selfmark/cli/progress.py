"""Display progress: as bars on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from selfmark.image_ref import ImageRef
from selfmark.run.event_log import Event
from selfmark.run.stage_names import describe_stage
from selfmark.run.time_left import TimeLeft, describe_time_left
from selfmark.terminal import PlainConsole
from selfmark.wording import choose_form, describe_count

if TYPE_CHECKING:
    from selfmark.detector import Prediction

# Without a terminal, minimum time between two progress lines. The start and the end of a stage always get a
# line in a `ProgressDisplay`.
_SECONDS_PER_LINE = 15
# Checkpoint names of these stages. The checkpoint of any other stage is named STAGE-ROUND.
_CHECKPOINTS = {"warm-up": "stage1", "round": "stage1", "stage 2": "stage2", "method": "method"}


class ProgressDisplay:
    """Display of a discovery's stage, round, loss and remaining time.

    It is a listener for events and a context manager.
    """

    def __init__(self, console: PlainConsole) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}
        self.rounds = 0
        self.student_rounds = 0
        self.done: dict[str, int] = {}  # iterations done, by checkpoint name
        self.last_line = 0.0  # time of the last plain line, in seconds of the monotonic clock
        self.time_left = TimeLeft()

    def __enter__(self) -> ProgressDisplay:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def __call__(self, event: Event) -> None:
        """Show an event with its method `_on_EVENT`; ignore events without such a method."""
        self.time_left(event)
        handler = getattr(self, f"_on_{event['event']}", None)
        if handler is not None:
            handler(event)

    # --- one method per event -----------------------------------------------------------------------

    def _on_start(self, event: Event) -> None:
        self.console.print_line(f"preset {event['preset']} on {event['device']}: {event['why']}")
        images = describe_count(event["images"], "image")
        automatic = event["K"] == "auto"
        landmarks = (
            "an automatic number of landmarks" if automatic else describe_count(event["K"], "landmark")
        )
        self.console.print_line(f"{images}, {landmarks}, output {event['output']}")

    def _on_estimate(self, event: Event) -> None:
        self.console.print_line(event["text"])

    def _on_survey(self, event: Event) -> None:
        first, *others = event["sentences"]
        for line in (first, *(f"note: {sentence}" for sentence in others)):
            self.console.print_line(line)

    def _on_note(self, event: Event) -> None:
        self.console.print_line(f"note: {event['text']}")

    def _on_verification(self, event: Event) -> None:
        self.console.print_line(
            f"verifying: a second detector learns from {describe_count(event['images'], 'image')}, and the "
            f"two are compared on {describe_count(event['held_out'], 'other')}",
        )

    def _on_agreement_of_runs(self, event: Event) -> None:
        self.console.print_line(event["text"])

    def _on_verdict(self, event: Event) -> None:
        self.console.print_line(f"verdict: {event['verdict']}. {event['text']}")

    def _on_advice(self, event: Event) -> None:
        self.console.print_line(f"advice: {event['text']}")

    def _on_plan(self, event: Event) -> None:
        self.rounds = event["rounds"]
        self.student_rounds = event.get("student_rounds", 0)
        total = event["stage1"] + event["stage2"] + event.get("student", 0)
        if total:
            self.tasks["all"] = self.progress.add_task("training", total=total, note="")

    def _on_progress(self, event: Event) -> None:
        self._show(event["stage"], event["round"], event["done"], event["of"], "")

    def _on_resumed(self, event: Event) -> None:
        self._count_iterations(event["stage"], event["iteration"])
        self.console.print_line(f"resumed {event['stage']} at iteration {event['iteration']}")

    def _on_damaged(self, event: Event) -> None:
        self.console.print_line(f"{event['reason']}; instead: {event['instead']}")

    def _on_recovery(self, event: Event) -> None:
        is_final_clustering = event["round"] > self.rounds
        purpose = "into landmarks" if is_final_clustering else f"(round {event['round']} of {self.rounds})"
        self.console.print_line(
            f"grouped keypoints {purpose}: {event['found_per_image']} points per image found, "
            f"{event['kept_per_image']} used",
        )

    def _on_features(self, event: Event) -> None:
        self.console.print_line(
            f"features {event['name']} ({event['license']}), learned from {event['training_data']}",
        )

    def _on_orientation(self, event: Event) -> None:
        recipe, found = {
            "upright": ("upright", "the objects are upright"),
            "turned": ("any-orientation", "images are turned so that all objects face the same way"),
            "any": ("any-orientation", "the objects' direction is unclear, so images are not turned"),
        }[event["orientation"]]
        accuracy = event.get("upright_accuracy")
        reason = "" if accuracy is None else f"; upside-down copies are recognized in {accuracy:.0%} of cases"
        self.console.print_line(f"recipe {recipe}: {found}{reason}")

    def _on_places(self, event: Event) -> None:
        found = (
            "the place of a part in the image helps to recognize it"
            if event["places"] == "used"
            else "the place of a part in the image says little about it, and is ignored"
        )
        self.console.print_line(f"{found} (features.places={event['places']})")

    def _on_keypoint_labels(self, event: Event) -> None:
        fraction = f"{event['labeled_fraction']:.0%} of the landmarks"
        self.console.print_line(
            f"keypoints mark {fraction}, enough to train the first rounds"
            if event["is_used"]
            else f"keypoints mark only {fraction}, too few to train the first rounds"
        )

    def _on_agreement(self, event: Event) -> None:
        if event["stage"] == "keypoints":
            verdict = (
                "agree with the first landmarks and are used"
                if event["is_kept"]
                else "contradict the first landmarks and are not used"
            )
            self.console.print_line(f"landmarks from keypoints {verdict}")
        elif event["stage"] == "warm-up":
            if not event["is_kept"]:
                self.console.print_line(
                    "landmarks from keypoints contradict the first landmarks; their training ends early",
                )
        elif not event["is_kept"]:
            self.console.print_line(
                f"round {event['round']} is undone: its landmarks are worse than the first landmarks",
            )

    def _on_preview(self, event: Event) -> None:
        # An event without a step announces the zero-shot landmarks.
        if event.get("step", "zero-shot") == "zero-shot":
            self.console.print_line(f"first landmarks: {event['path']}")

    def _on_landmark_count(self, event: Event) -> None:
        self.console.print_line(event["why"])

    def _on_movement(self, event: Event) -> None:
        if event["skipped"]:
            name = describe_stage(event["stage"], event["round"], self.rounds, self.student_rounds)
            self.console.print_line(
                f"{name}: landmarks stand still, so {describe_count(event['skipped'], 'iteration')} "
                f"{choose_form(event['skipped'], 'is', 'are')} skipped"
            )

    def _on_train(self, event: Event) -> None:
        checkpoint = _CHECKPOINTS.get(event["stage"], f"{event['stage']}-{event['round']}")
        self._count_iterations(checkpoint, event["iteration"])
        note = f"loss {event['loss']['total']:.4f}"
        done, total = event["iteration"] - event["start"], event["stop"] - event["start"]
        self._show(event["stage"], event["round"], done, total, note)

    def _count_iterations(self, checkpoint: str, iteration: int) -> None:
        """Advance the bar of the whole training: the sum of the iterations of all checkpoints."""
        self.done[checkpoint] = iteration
        if "all" in self.tasks:
            self.progress.update(self.tasks["all"], completed=sum(self.done.values()))

    def _show(self, stage: str, round_number: int, done: int, total: int, note: str) -> None:
        """Update the bar of a stage; without a terminal, print a line now and then."""
        name = describe_stage(stage, round_number, self.rounds, self.student_rounds)
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=total, note="")
        self.progress.update(self.tasks[name], completed=done, note=note, visible=done < total)
        if not self.console.is_terminal and (
            done in (0, total) or time.monotonic() - self.last_line > _SECONDS_PER_LINE
        ):
            self.last_line = time.monotonic()
            left = describe_time_left(self.time_left.seconds())
            details = ", ".join(filter(None, (note, left)))
            self.console.print_line(" ".join(filter(None, (f"{name}: {done} of {total}", details))))


class CountDisplay:
    """Display of the number of items done, their total and the rate. It is a context manager."""

    def __init__(self, console: PlainConsole, name: str, unit: str) -> None:
        self._console, self._name, self._unit = console, name, unit
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}", markup=False),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._started = self._last_line = time.monotonic()
        self._done = 0

    def __enter__(self) -> CountDisplay:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    @property
    def rate(self) -> float:
        """Number of items done per second."""
        return self._done / max(time.monotonic() - self._started, 1e-9)

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` items are done."""
        self._done = done
        rate = f"{self.rate:.1f} {self._unit}/s"
        if self._task is None:
            self._task = self._progress.add_task(self._name, total=total, rate=rate)
        self._progress.update(self._task, completed=done, total=total, rate=rate)
        if not self._console.is_terminal and time.monotonic() - self._last_line > _SECONDS_PER_LINE:
            self._last_line = time.monotonic()
            left = describe_time_left((total - done) / self.rate if done else None)
            self._console.print_line(
                ", ".join(filter(None, (f"{self._name}: {done} of {total}", rate, left)))
            )


class CountedPredictions(Iterator["Prediction"]):
    """Iterator over predictions that counts the images of each file and displays the progress."""

    def __init__(self, predictions: Iterator[Prediction], total: int, display: CountDisplay) -> None:
        self._predictions, self._total, self._display = predictions, total, display
        self.predicted: Counter[Path] = Counter()  # number of images or frames predicted, by file

    @property
    def images(self) -> int:
        """Number of images predicted so far."""
        return self.predicted.total()

    def __next__(self) -> Prediction:
        prediction = next(self._predictions)
        self.predicted.update(ref.path for ref in prediction.refs)
        self._display(self.images, self._total)
        return prediction


def describe_unreadable_images(
    refs: Sequence[ImageRef], counted: CountedPredictions, has_views: bool = False
) -> list[str]:
    """Return a sentence for each video with unreadable frames and one for all unreadable still images.

    Args:
        refs: Images and frames that were to be predicted.
        counted: Those that were predicted.
        has_views: Whether images without all views were left out, too.
    """
    problem = "could not be read with all views" if has_views else "could not be read"
    videos = {ref.path for ref in refs if ref.frame is not None}
    requested = Counter(ref.path for ref in refs)
    unreadable = requested - counted.predicted
    sentences = [
        f"{unreadable[path]} of {describe_count(requested[path], 'frame')} of {path} {problem} and "
        f"{choose_form(unreadable[path], 'was', 'were')} left out"
        for path in unreadable
        if path in videos
    ]
    stills = sum(count for path, count in unreadable.items() if path not in videos)
    if stills:
        total = sum(count for path, count in requested.items() if path not in videos)
        sentences.append(
            f"{stills} of {describe_count(total, 'image')} {problem} and "
            f"{choose_form(stills, 'was', 'were')} left out"
        )
    return sentences
