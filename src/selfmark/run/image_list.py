"""Convert image references to and from the images.json of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfmark.image_ref import ImageRef
from selfmark.run.json_schema import (
    is_count,
    is_int64,
    is_list_of,
    is_none_or,
    is_number,
    is_text,
    require_fields,
)


def refs_to_json(refs: Sequence[ImageRef]) -> list[dict[str, Any]]:
    """Convert image references to JSON values."""
    return [
        {"path": str(ref.path), "frame": ref.frame, "box": ref.box, "track": ref.track}
        | ({"film": ref.clip} if ref.clip else {})  # early versions of selfmark chose this key
        for ref in refs
    ]


def refs_from_json(entries: Any) -> list[ImageRef]:
    """Convert the result of `refs_to_json` back to image references.

    Raises:
        ValueError: if the values are not image references.
    """
    if not isinstance(entries, list):
        raise ValueError("a list of images was expected")
    return [_ref_from_json(entry) for entry in entries]


def _ref_from_json(entry: Any) -> ImageRef:
    require_fields(
        entry,
        {"path": _is_path, "frame": is_none_or(_is_frame), "box": is_none_or(_is_box)},
        {"track": is_none_or(is_int64), "film": is_none_or(_is_clip)},  # early runs lack these fields
    )
    box, clip = entry["box"], entry.get("film")
    return ImageRef(
        Path(entry["path"]),
        entry["frame"],
        tuple(box) if box else None,
        entry.get("track"),
        tuple(clip) if clip else None,
    )


def _is_path(value: Any) -> bool:
    return is_text(value) and value != ""


def _is_frame(value: Any) -> bool:
    return is_int64(value) and value >= 0


def _is_box(value: Any) -> bool:
    return is_list_of(is_number)(value) and len(value) == 4 and min(value[2:]) >= 0


def _is_clip(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and is_text(value[0]) and is_count(value[1])
