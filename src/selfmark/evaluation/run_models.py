"""Load the networks of a run that is evaluated, but only if they are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.evaluation.stage1_landmarks import Stage1Finder, load_stage1_finder
from selfmark.model.card import ModelCard, model_folder, read_card
from selfmark.run.folder import Run
from selfmark.run.guarded_files import FileState, read_file_state

_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class RunModels:
    """A run, its model card, and its networks, which are loaded on first use.

    An evaluation whose predictions are all cached needs no network and no GPU.

    Attributes:
        run: The run.
        card: Model card of the run. Its `flip_test` is False if mirrored images must not be used.
        device: Device to compute on.
        loaded: Detector of the run if it is already loaded.
        weights: State of the file with the weights when the card was read; None if it is not known.
    """

    run: Run
    card: ModelCard
    device: torch.device
    loaded: Detector | None = None
    weights: FileState | None = None

    @classmethod
    def open(cls, run: Run, device: torch.device | str, mirror: bool = True) -> RunModels:
        """Read the model card of a run.

        Args:
            run: a finished run.
            device: device to compute on.
            mirror: whether to average with the mirrored image if the model card says so.
        """
        folder = model_folder(run.path)
        weights = read_file_state(folder / _WEIGHTS)
        card = read_card(folder)
        used_card = card if mirror else replace(card, flip_test=False)
        return cls(run, used_card, torch.device(device), weights=weights)

    @classmethod
    def of(cls, run: Run, detector: Detector) -> RunModels:
        """Return the models of a run whose detector is already loaded."""
        return cls(run, detector.card, detector.device, detector)

    def require_unchanged(self) -> None:
        """Raise if the detector of the run has been replaced, for example by `selfmark refine`.

        Results of the detector before it must not be stored as those of the new one.
        """
        current = read_file_state(model_folder(self.run.path) / _WEIGHTS)
        if self.weights is not None and current != self.weights:
            raise InputError(
                f"the detector of {self.run.path} changed while it was used, for example because of "
                "'selfmark refine': run the command again"
            )

    @cached_property
    def detector(self) -> Detector:
        """The detector of the run, with the settings of `card`."""
        detector = self.loaded or Detector.load(self.run.path, self.device)
        if detector.card == self.card:
            return detector
        return Detector(detector.psi, self.card, self.device, detector.runtime)

    @cached_property
    def stage1(self) -> Stage1Finder:
        """Stage 1 of the run."""
        return load_stage1_finder(self.run, self.device)
