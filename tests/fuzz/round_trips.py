"""Write what was read, read it again, and compare: a writer must not lose or change anything."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selfmark.config import Images, Network, from_yaml, to_yaml
from selfmark.detector import Prediction
from selfmark.errors import InputError
from selfmark.export import get_writer
from selfmark.image_ref import ImageRef
from selfmark.model.card import ModelCard, read_card, write_card
from selfmark.naming.edits import edits_from_json, edits_to_json
from selfmark.points import Landmarks
from selfmark.run.config_file import read_config
from selfmark.run.tensor_files import read_tensors, write_tensors


def round_trip_card(path: Path) -> None:
    """Read a model card, write it and read it again."""
    card = read_card(path.parent)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        write_card(card, Path(folder))
        assert read_card(Path(folder)) == card


def round_trip_config(path: Path) -> None:
    """Read settings, convert them to YAML and read them again."""
    config = read_config(path)
    assert from_yaml(to_yaml(config), "written") == config


def round_trip_tensors(path: Path) -> None:
    """Read tensors, write them and read them again."""
    tensors, metadata = read_tensors(path)
    written = path.with_name("written.safetensors")
    write_tensors(tensors, metadata, written)
    reread, reread_metadata = read_tensors(written)
    assert reread.keys() == tensors.keys()
    assert all(torch.equal(reread[name].nan_to_num(), tensors[name].nan_to_num()) for name in tensors)
    assert reread_metadata == metadata
    written.unlink()


def round_trip_edits(path: Path) -> None:
    """Parse the edits of the naming page, convert them to JSON and parse them again."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError("not JSON") from error
    edits = edits_from_json(values)
    assert edits_from_json(edits_to_json(edits)) == edits


def round_trip_tables(path: Path) -> None:
    """Write the prediction of a JSON file as CSV and as COCO, and read it back."""
    card, prediction = _parse_prediction(path)
    xy, score = prediction.landmarks.xy[0], prediction.landmarks.score[0]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        table = get_writer("csv")(iter([prediction]), card, Path(folder))
        with open(table, newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        assert [row["landmark"] for row in rows] == list(card.names)
        assert {row["image"] for row in rows} == {str(prediction.refs[0].path)}
        for column, values in (("x", xy[:, 0]), ("y", xy[:, 1]), ("score", score)):
            assert np.allclose([float(row[column]) for row in rows], values, atol=0.01)
        content = json.loads(
            get_writer("coco")(iter([prediction]), card, Path(folder)).read_text(encoding="utf-8")
        )
    assert content["images"][0]["file_name"] == str(prediction.refs[0].path)
    assert content["categories"][0]["keypoints"] == list(card.names)
    triples = np.array(content["annotations"][0]["keypoints"]).reshape(-1, 3)
    assert np.allclose(triples[:, :2], xy, atol=0.01)


def _parse_prediction(path: Path) -> tuple[ModelCard, Prediction]:
    """Build a model card and a prediction from a JSON file; raise an InputError if its content is invalid."""
    try:
        values: Any = json.loads(path.read_bytes())
        names, image = values["names"], values["image"]
        xy = np.array(values["xy"], np.float32)
        if not isinstance(image, str) or "\0" in image or not image.strip("./"):
            raise ValueError("no image")
        if not names or xy.shape != (len(names), 2) or not (np.abs(xy) < 1e5).all():
            raise ValueError("no points")
        if len(set(names)) != len(names) or not all(isinstance(name, str) and name for name in names):
            raise ValueError("names must be different texts")
        # Lone surrogates are allowed in JSON, but not in UTF-8 files. They raise a ValueError here.
        "".join((image, *names)).encode()
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"not a prediction: {error}") from error
    mirror = tuple(range(len(names)))
    card = ModelCard(tuple(names), mirror, (), Images(), Network(), "parabola", False, {"seed": 0})
    landmarks = Landmarks(xy[None], np.full((1, len(names)), 0.5, np.float32), tuple(names))
    return card, Prediction((ImageRef(Path(image)),), np.array([[100, 80]], np.int64), landmarks)
