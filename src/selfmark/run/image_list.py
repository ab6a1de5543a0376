"""The list of image references that a run folder stores as images.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfmark.image_ref import ImageRef


def refs_to_json(refs: Sequence[ImageRef]) -> list[dict[str, Any]]:
    """References as a run folder keeps them."""
    return [
        {"path": str(ref.path), "frame": ref.frame, "box": ref.box, "track": ref.track}
        | ({"film": ref.clip} if ref.clip else {})
        for ref in refs
    ]


def refs_from_json(entries: Any) -> list[ImageRef]:
    """What `refs_to_json` wrote."""
    return [
        ImageRef(
            Path(entry["path"]),
            entry["frame"],
            tuple(entry["box"]) if entry["box"] else None,
            entry.get("track"),  # runs from before there were tracks have none
            tuple(entry["film"]) if entry.get("film") else None,
        )
        for entry in entries
    ]
