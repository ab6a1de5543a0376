"""Load images of a finished run, and check that they are still those that the run was started with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from selfmark.config import Images
from selfmark.errors import InputError
from selfmark.image_ref import ImageRef
from selfmark.images.decode import compute_content_digest
from selfmark.images.store import ImageStore, load_store
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors


def load_run_images(run: Run, refs: Sequence[ImageRef], images: Images) -> ImageStore:
    """Load some images of a run into memory, to look at them again after the training.

    The paths of a run may be relative to the folder in which it was started, and another folder may have
    other images of the same names. So their sizes are compared with those in points/images.safetensors.

    Args:
        run: the run.
        refs: images of the run.
        images: size of the crops, crop rule and limits.

    Raises:
        InputError: if none of the images can be read, or if an image has another size than before.
    """
    store = load_store(refs, images, float("inf"), None)
    path = run.path / "points" / "images.safetensors"
    if not path.exists():  # early versions of selfmark did not write it
        return store
    sizes, run_refs = read_tensors(path)[0].get("size"), run.refs()
    if sizes is None or sizes.shape != (len(run_refs), 2):
        raise InputError(f"{path} does not belong to this run: delete it")
    size_of = dict(zip(run_refs, sizes.tolist(), strict=True))
    for ref, size in zip(store.refs, store.sizes.tolist(), strict=True):
        if any(size_of[ref]) and size_of[ref] != size:
            raise InputError(
                f"{ref.name} {describe_size_change(size_of[ref], size)}: restore the images of the run"
                + _explain_relative_path(ref.path)
            )
    return store


def _explain_relative_path(path: Path) -> str:
    """Return what to do about a relative path; empty for an absolute one."""
    if path.is_absolute():
        return ""
    return ", or run the command in the folder in which the run was started, because its paths are relative"


def compute_content_digests(
    refs: Sequence[ImageRef], compute_digest: Callable[[Path], int] = compute_content_digest
) -> Tensor:
    """Return the digest [N] int64 of the file of each image.

    Args:
        refs: N images.
        compute_digest: computes the digest of a file, see `images.decode`.
    """
    digests = {path: compute_digest(path) for path in {ref.path for ref in refs}}
    return torch.tensor([digests[ref.path] for ref in refs], dtype=torch.int64)


def describe_size_change(before: list[int], now: list[int]) -> str:
    """Say how the size of an image (width, height) differs from before; 0 means that it cannot be read."""
    if not any(before):
        return "could not be read when the run started, but can be read now"
    if not any(now):
        return "could be read when the run started, but cannot be read now"
    was, is_now = (f"{width} x {height} pixels" for width, height in (before, now))
    return f"had {was} when the run started and has {is_now} now"
