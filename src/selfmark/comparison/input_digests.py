"""Notice if labels or images of a comparison change between two calls of the same command."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from selfmark.comparison.comparison_plan import Comparison
from selfmark.errors import InputError
from selfmark.images.decode import compute_content_digest
from selfmark.images.input_files import path_is
from selfmark.images.sources import list_images
from selfmark.run.guarded_files import compute_sha256

DIGESTS_KEY = "digests"
"""Key of the digests in comparison.json; missing in comparisons of earlier versions."""


def digest_inputs(
    comparison: Comparison, digest_image: Callable[[Path], int] = compute_content_digest
) -> dict[str, str]:
    """Return a digest of each input of a comparison.

    Args:
        comparison: the comparison. Its labels are compared by their content.
        digest_image: computes a number for the content of an image or video. Images are compared by their
            names and these numbers.
    """
    digests = {
        "images": _digest_images(list(comparison.images), digest_image),
        "labels": compute_sha256(comparison.labels),
    }
    if comparison.label_images:
        digests["label images"] = _digest_images(list(comparison.label_images), digest_image)
    if comparison.train_labels is not None:
        digests["train labels"] = compute_sha256(comparison.train_labels)
    return digests


def require_unchanged(
    stored: Mapping[str, str], current: Mapping[str, str], comparison: Comparison, output: Path
) -> None:
    """Raise if an input has changed since a comparison was started.

    Args:
        stored: digests at the start of the comparison; an input without a digest counts as unchanged. Earlier
            versions stored digests of the names and sizes of the images.
        current: digests now.
        comparison: the comparison.
        output: folder of the comparison.

    Raises:
        InputError: if a digest differs.
    """
    changed_names = [name for name, digest in current.items() if stored.get(name, digest) != digest]
    if changed_names:
        earlier = digest_inputs(comparison, _read_size)
        changed_names = [name for name in changed_names if stored[name] != earlier[name]]
    if changed_names:
        raise InputError(
            f"the {' and '.join(changed_names)} changed after the comparison in {output} was started, so its "
            "results would not be comparable: restore the files, or choose another folder with -o"
        )


def _digest_images(inputs: list[str], digest_image: Callable[[Path], int]) -> str:
    paths = dict.fromkeys(ref.path for ref in list_images(inputs))
    entries = [(str(path), digest_image(path)) for path in paths]
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def _read_size(path: Path) -> int:
    """Return the size of a file in bytes; -1 if there is no such file."""
    return path.stat().st_size if path_is(path, Path.is_file) else -1
