"""Decode a video once for several views, although each view is loaded as a separate set of images.

The first view that is loaded decodes the video and crops every frame to all views. The crops of the other
views stay in memory until these views are loaded. The crops are the same as if each view were read alone. If
the crops of all views do not fit into memory, the video is decoded for each view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

from selfmark.config import Images
from selfmark.image_ref import Box, ImageRef
from selfmark.images.store import ImageStore, load_store

_shared_views: ContextVar[_SharedViews | None] = ContextVar("shared_views", default=None)


@contextmanager
def share_reading(views: Sequence[Box]) -> Iterator[None]:
    """Let `load_shared_store` read videos once for all views, inside the context.

    Args:
        views: boxes of the views, in the order in which they will be loaded.
    """
    token = _shared_views.set(_SharedViews(views))
    try:
        yield
    finally:
        _shared_views.reset(token)


def load_shared_store(
    refs: Sequence[ImageRef],
    images: Images,
    store_gigabytes: float,
    scratch: Path | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ImageStore:
    """Return the same images as `load_store`, which explains the arguments.

    Inside `share_reading`, a video is decoded once for all views, if their crops fit into memory and have the
    same settings.
    """
    shared = _shared_views.get()
    store = None if shared is None else shared.load(refs, images, store_gigabytes, on_progress)
    return load_store(refs, images, store_gigabytes, scratch, on_progress) if store is None else store


class _SharedViews:
    """Crops of views that share their frames."""

    def __init__(self, views: Sequence[Box]) -> None:
        self._waiting = list(views)  # views that were not loaded yet
        self._stores: dict[Box, ImageStore] = {}
        self._images: Images | None = None  # settings of the crops

    def load(
        self,
        refs: Sequence[ImageRef],
        images: Images,
        store_gigabytes: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> ImageStore | None:
        """Return the crops of one view; None if this view must be read alone."""
        boxes = {ref.box for ref in refs}
        view = boxes.pop() if len(boxes) == 1 else None
        if view is None:
            return None
        if view in self._waiting:
            self._waiting = self._waiting[self._waiting.index(view) + 1 :]
            if view not in self._stores and self._can_share(refs, images, store_gigabytes):
                self._read([view, *self._waiting], refs, images, on_progress)
            # Earlier views are finished and need no memory any more.
            kept = (view, *self._waiting)
            self._stores = {box: store for box, store in self._stores.items() if box in kept}
        store = self._stores.get(view)
        if store is None or images != self._images:
            return None
        skipped = {item.name: item for item in store.skipped}
        known = set(store.refs)
        if any(ref not in known and ref.name not in skipped for ref in refs):
            return None
        if len(refs) == len(known) + len(skipped):
            return store
        chosen = tuple(skipped[ref.name] for ref in refs if ref.name in skipped)
        return replace(store.select(refs), skipped=chosen)

    def _can_share(self, refs: Sequence[ImageRef], images: Images, store_gigabytes: float) -> bool:
        """Return True if more views follow, all images are video frames, and the crops fit into memory.

        Still images are not shared: how far a large JPEG is reduced while it is decoded depends on the crops.
        """
        size = 3 * images.size**2 * len(refs) * (1 + len(self._waiting))
        is_small = 2 * size <= store_gigabytes * 1e9  # Crops are copied once, when they are sorted by view.
        return is_small and bool(self._waiting) and all(ref.frame is not None for ref in refs)

    def _read(
        self,
        views: Sequence[Box],
        refs: Sequence[ImageRef],
        images: Images,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        """Decode every frame once, crop it to all views, and sort the crops by view."""

        def report(done: int, total: int) -> None:
            if on_progress is not None:
                on_progress(done // len(views), total // len(views))

        self._images = images
        crops = [replace(ref, box=view) for ref in refs for view in views]
        store = load_store(crops, images, float("inf"), None, report)
        # A frame that cannot be read is skipped in every view. A frame that does not overlap a view is
        # skipped only in that view.
        used = set(store.refs)
        skipped = dict(zip((crop for crop in crops if crop not in used), store.skipped, strict=True))
        for number, view in enumerate(views):
            own_crops = crops[number :: len(views)]
            own_skipped = tuple(skipped[crop] for crop in own_crops if crop in skipped)
            self._stores[view] = replace(store.select(own_crops), skipped=own_skipped)
