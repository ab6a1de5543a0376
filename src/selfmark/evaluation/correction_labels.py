"""Give the points of corrections the current names of the landmarks that they belong to.

`selfmark correct` stores corrections in the folder of a run or model, with the names that the landmarks had
at the last correction. Later, the user may rename, swap, pair or connect landmarks. Corrections belong to
landmarks by number, so every command that reads them as labels uses the landmarks as they are now.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from selfmark.errors import InputError
from selfmark.images.coco import CocoFile
from selfmark.model.card import ModelCard, model_folder, read_card
from selfmark.wording import describe_count

CORRECTIONS = Path("corrections", "labels.json")
"""Path of the corrections in a run folder or model folder."""


def use_current_landmarks(file: CocoFile) -> CocoFile:
    """Return corrections with the names, mirror partners and skeleton that their landmarks have now.

    A file is recognized by its place in the folder of a run or model, and by what `selfmark correct` adds to
    its annotations. All other files are returned as they are.

    Raises:
        InputError: If the detector in this folder has another number of landmarks than the corrections.
    """
    if not any(isinstance(annotation.values.get("selfmark"), dict) for annotation in file.annotations):
        return file
    card = _read_card_beside(file.path)
    if card is None:
        return file
    category = file.category(file.annotations)
    require_same_count(file.path, len(category.point_names(file.annotations[0])), len(card.names))
    return replace(
        file, content={**file.content, "categories": [{**category.values, **build_point_entries(card)}]}
    )


def require_same_count(path: Path, corrected: int, current: int) -> None:
    """Raise if corrections were made for a detector with another number of landmarks than the current one."""
    if corrected != current:
        raise InputError(
            f"{path} was made for a detector with {describe_count(corrected, 'landmark')}, but this detector "
            f"has {current}: move the file elsewhere"
        )


def build_point_entries(card: ModelCard) -> dict[str, Any]:
    """Return the entries of a COCO category that describe the landmarks of a detector."""
    return {
        "keypoints": list(card.names),
        "skeleton": [[a + 1, b + 1] for a, b in card.skeleton],
        "flip_idx": list(card.mirror),
    }


def _read_card_beside(path: Path) -> ModelCard | None:
    """Return the card of the detector in whose folder corrections are stored; None if there is none."""
    for labels in (path.absolute(), path.resolve()):  # The file may be named by a link.
        if labels.parts[-2:] == CORRECTIONS.parts:
            target = model_folder(labels.parent.parent)
            if (target / "model.json").exists():
                return read_card(target)
    return None
