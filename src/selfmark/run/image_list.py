"""Convert image references to and from the images.json of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfmark.image_ref import ImageRef


def refs_to_json(refs: Sequence[ImageRef]) -> list[dict[str, Any]]:
    """Convert image references to JSON values."""
    return [
        {"path": str(ref.path), "frame": ref.frame, "box": ref.box, "track": ref.track}
        | ({"film": ref.clip} if ref.clip else {})
        for ref in refs
    ]


def refs_from_json(entries: Any) -> list[ImageRef]:
    """Convert the result of `refs_to_json` back to image references."""
    return [
        ImageRef(
            Path(entry["path"]),
            entry["frame"],
            tuple(entry["box"]) if entry["box"] else None,
            entry.get("track"),  # missing in early runs
            tuple(entry["film"]) if entry.get("film") else None,
        )
        for entry in entries
    ]
