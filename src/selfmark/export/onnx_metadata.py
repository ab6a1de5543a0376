"""Build the metadata of an exported ONNX file, so that the file can be used without other files.

ONNX stores the metadata as `metadata_props`. All keys begin with `selfmark.`. The model's fingerprint and the
checksum are plain text; all other values are JSON. The checksum is the last entry and covers all bytes before
it. When selfmark reads the file, it verifies the checksum.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from selfmark._version import __version__
from selfmark.detector import Detector, detector_fingerprint
from selfmark.errors import DamagedFile, require_package
from selfmark.export.trust_entries import trust_entries
from selfmark.run.files import to_json

MODEL = "selfmark.model"  # key for the fingerprint of the exported model
CHECKSUM = "selfmark.sha256"  # key for the checksum


def build_metadata(detector: Detector) -> dict[str, str]:
    """Return the metadata of a detector's ONNX file.

    Hidden landmarks are included, because the ONNX file predicts these, too.
    """
    card = detector.card
    values = {
        "version": __version__,
        "names": card.names,
        "mirror": card.mirror,
        "skeleton": card.skeleton,
        "images": dataclasses.asdict(card.images),
        "refine": card.refine,
        "flip_test": card.flip_test,
        **trust_entries(card),  # trust in each landmark, verdict of the run, smoothing method
    }
    return {MODEL: detector_fingerprint(detector)} | {
        f"selfmark.{name}": to_json(value) for name, value in values.items()
    }


def append_checksum(content: bytes) -> bytes:
    """Return a serialized ONNX model with its checksum as the last entry of the metadata.

    Serialized messages can be concatenated: the result is read as one model that has the entries of
    all messages.
    """
    return content + _serialize_checksum(content)


def remove_checksum(content: bytes, path: Path) -> bytes:
    """Return the bytes before the checksum.

    Args:
        content: Bytes of the file.
        path: Path of the file, for the error message.

    Raises:
        DamagedFile: The file has no checksum, or its content does not match the checksum.
    """
    checksum_length = len(_serialize_checksum(b""))  # the same for every content
    body = content[: max(0, len(content) - checksum_length)]
    if append_checksum(body) != content:
        raise DamagedFile(
            f"{path} has been changed or damaged, or an earlier version of selfmark wrote it: write it again "
            "with 'selfmark export'"
        )
    return body


def _serialize_checksum(content: bytes) -> bytes:
    """Return a serialized ONNX model that contains only the checksum of `content`."""
    onnx: Any = require_package("onnx", "onnx")
    model = onnx.ModelProto()
    model.metadata_props.add(key=CHECKSUM, value=hashlib.sha256(content).hexdigest())
    return bytes(model.SerializeToString())
