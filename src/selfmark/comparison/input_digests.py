"""Notice if labels or images of a comparison change between two calls of the same command."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from selfmark.comparison.comparison_plan import Comparison
from selfmark.errors import InputError
from selfmark.images.input_files import path_is
from selfmark.images.sources import list_images
from selfmark.run.guarded_files import compute_sha256

DIGESTS_KEY = "digests"
"""Key of the digests in comparison.json; missing in comparisons of earlier versions."""


def digest_inputs(comparison: Comparison) -> dict[str, str]:
    """Return a digest of each input of a comparison.

    Labels are compared by their content. Images are compared by their names and file sizes, because reading
    all of them would take long.
    """
    digests = {
        "images": _digest_images(list(comparison.images)),
        "labels": compute_sha256(comparison.labels),
    }
    if comparison.label_images:
        digests["label images"] = _digest_images(list(comparison.label_images))
    if comparison.train_labels is not None:
        digests["train labels"] = compute_sha256(comparison.train_labels)
    return digests


def require_unchanged(stored: Mapping[str, str], current: Mapping[str, str], output: Path) -> None:
    """Raise if an input has changed since a comparison was started.

    Args:
        stored: digests at the start of the comparison; an input without a digest counts as unchanged.
        current: digests now.
        output: folder of the comparison.

    Raises:
        InputError: if a digest differs.
    """
    changed_names = [name for name, digest in current.items() if stored.get(name, digest) != digest]
    if changed_names:
        raise InputError(
            f"the {' and '.join(changed_names)} changed after the comparison in {output} was started, so its "
            "results would not be comparable: restore the files, or choose another folder with -o"
        )


def _digest_images(inputs: list[str]) -> str:
    paths = dict.fromkeys(ref.path for ref in list_images(inputs))
    sizes = [(str(path), path.stat().st_size if path_is(path, Path.is_file) else -1) for path in paths]
    return hashlib.sha256(json.dumps(sizes).encode()).hexdigest()
