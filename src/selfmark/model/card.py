"""Read and write model cards: everything about a detector except the weights, stored in model.json.

The card also stores what users edit on the naming page: names, colors, mirror partners, the skeleton, and
hidden landmarks. The network still predicts hidden landmarks, and so does its ONNX export, but `visible_card`
and `export.get_writer` omit them from all files with predictions. This module does not need torch.
"""

from __future__ import annotations

import dataclasses
import json
import re
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from selfmark._version import __version__
from selfmark.config import (
    STRIDE,
    Features,
    Images,
    Network,
    PeakMethod,
    Softmax,
    Student,
    check_model,
    section_from_dict,
)
from selfmark.config.limits import check_limits
from selfmark.config.memory import ENCODER_CHANNELS, check_image_memory
from selfmark.errors import InputError
from selfmark.model.colors import landmark_colors
from selfmark.run.files import (
    FORMAT,
    read_json,
    require_folder,
    require_format,
    require_run,
    to_json,
    view_folders,
    write_text,
)
from selfmark.run.guarded_files import build_link_error
from selfmark.run.json_schema import is_count, is_dict_of, is_point_name, is_text, require_fields

_MAX_LANDMARKS = 10_000  # a model.json with more landmarks is rejected
_MAX_BYTES = 64 << 20  # size limit of model.json; even _MAX_LANDMARKS landmarks need far less
ONNX_FEATURES = "features.safetensors"
"""File in a model folder that contains a copy of the ONNX model, for features `onnx:FILE`."""

REFINED = "refined"
"""Key of `provenance` that only the cards of refined detectors have."""

SMOOTHING = "smoothing"
"""Key of `provenance` in the card of smoothed landmarks; such a card is never written to model.json."""

_SHOWN_PROVENANCE = {"features": is_dict_of(is_text), "images": is_count, "landmarks": is_text}

Architecture = Literal["hourglass", "encoder", "zero-shot", "soft-argmax", "embedding"]
"""The kind of network.

hourglass:   the paper's network, `network.Psi`
encoder:     a trained head on a pretrained encoder, `feature_network.FeaturePsi`
zero-shot:   similarity of an encoder's features to centroids, `feature_network.ZeroShotPsi`
soft-argmax: an hourglass whose maps become distributions, `soft_argmax.SoftArgmaxPsi`; for the methods of
             other papers
embedding:   an hourglass that embeds every cell, `soft_argmax.EmbeddingPsi`; for the methods of other papers
"""

Verdict = Literal["good", "usable", "failed"]
"""How a run turned out, judged without labels; see `evaluation.verdict`."""

MIN_TRUST = 0.25
"""Users should not rely on landmarks with a lower trust."""
GOOD_TRUST = 0.5
"""Landmarks with at least this trust are trustworthy."""

_COLOR = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True)
class ModelCard:
    """Description of a detector, stored in model.json next to its weights."""

    names: tuple[str, ...]  # one per landmark, in index order
    mirror: tuple[int, ...]  # the landmark that each landmark becomes in a mirrored image
    skeleton: tuple[tuple[int, int], ...]  # pairs of landmarks to connect in drawings
    images: Images  # preprocessing
    network: Network
    refine: PeakMethod  # how a position is read from a heatmap
    flip_test: bool  # average the heatmaps of an image and of its mirror image (Sec. 3.7 of the paper)
    provenance: dict[str, Any]  # how the detector was trained: preset, seed, features, versions, ...
    colors: tuple[str, ...] = ()  # "#rrggbb" per landmark, "" for its default color; () if all are default
    hidden: tuple[int, ...] = ()  # landmarks omitted from files with predictions, ascending
    confirmed: tuple[int, ...] = ()  # landmarks whose mirror partner the user has confirmed, ascending
    architecture: Architecture = "hourglass"
    features: Features = field(default_factory=Features)  # settings of the encoder, unused by an hourglass
    student: Student = field(default_factory=Student)  # settings of the head on an encoder
    trust: tuple[float, ...] = ()  # 0..1 per landmark, see `evaluation.trust`; () if it was not measured
    verdict: Verdict | None = None  # None if it was not measured
    unpaired: tuple[int, ...] = ()  # landmarks for which training found no mirror partner, ascending
    softmax: Softmax = "space"  # how the maps of a soft-argmax network become distributions
    trained_mirror: tuple[int, ...] = ()  # `mirror` as the detector has learned it; () if unknown


def read_card(folder: Path) -> ModelCard:
    """Read the model card of a model folder."""
    path = folder / "model.json"
    if not path.exists():
        if view_folders(folder):
            require_run(folder)
        require_folder(folder)
        if (folder / "run.json").exists():
            raise InputError(
                f"{folder} is an unfinished run; finish it with 'selfmark discover -o {folder} --resume'"
            )
        raise InputError(f"{folder} contains no model")
    return _card_from_json(read_json(path, _MAX_BYTES), path)


def write_card(card: ModelCard, folder: Path) -> None:
    """Write model.json atomically."""
    write_text(serialize_card(card), folder / "model.json")


def serialize_card(card: ModelCard) -> str:
    """Return the content of model.json."""
    values = {"format": FORMAT, "selfmark": __version__, "K": len(card.names), **dataclasses.asdict(card)}
    return to_json(values, indent=1)


def model_folder(folder: Path) -> Path:
    """Return the model folder for a run folder, for a model folder itself, or for the packaged "demo".

    Raises:
        UnsafeFile: if the model folder of a run folder is a link.
    """
    if is_packaged(folder):
        return Path(str(resources.files("selfmark") / "demo" / "model"))
    model = folder / "model"
    if model.is_symlink():  # Without a run.json, `guarded_files` would not recognize the run folder.
        raise build_link_error(model)
    return model if model.is_dir() else folder


def is_packaged(folder: Path) -> bool:
    """Return True for "demo", the packaged demo detector, unless a folder of that name exists."""
    return str(folder) == "demo" and not folder.exists()


def visible_landmarks(card: ModelCard) -> list[int]:
    """Return the indices of the landmarks that are not hidden, ascending."""
    return [index for index in range(len(card.names)) if index not in set(card.hidden)]


def untrusted_landmarks(card: ModelCard, min_trust: float = MIN_TRUST) -> list[int]:
    """Return the landmarks with a trust below `min_trust`, ascending; empty if trust was not measured."""
    return [index for index, trust in enumerate(card.trust) if trust < min_trust]


def landmarks_without_partner(card: ModelCard) -> list[int]:
    """Return the landmarks whose mirror partner the detector does not know, ascending.

    There are two kinds. For some landmarks, training found no partner, and the user has neither chosen a
    partner nor confirmed that the landmark is its own partner. For others, training found a partner, but the
    user has chosen another one: in mirrored images, the detector still finds the partner that it has learned.
    """
    unpaired, confirmed = set(card.unpaired), set(card.confirmed)
    learned = card.trained_mirror or card.mirror

    def lacks_partner(index: int, partner: int) -> bool:
        if index in unpaired:
            return partner == index and index not in confirmed
        return partner != learned[index]

    return [index for index, partner in enumerate(card.mirror) if lacks_partner(index, partner)]


def visible_card(card: ModelCard) -> ModelCard:
    """Return a card of the visible landmarks only, with new indices and unchanged colors.

    A landmark whose mirror partner is hidden becomes its own partner in `mirror`.

    >>> card = ModelCard(("a", "b", "c"), (0, 2, 1), ((0, 1), (0, 2)), Images(), Network(), "parabola",
    ...                  True, {}, hidden=(1,))
    >>> smaller = visible_card(card)
    >>> smaller.names, smaller.mirror, smaller.skeleton, smaller.hidden
    (('a', 'c'), (0, 1), ((0, 1),), ())
    """
    kept = visible_landmarks(card)
    new_index = {old: new for new, old in enumerate(kept)}
    return replace(
        card,
        names=tuple(card.names[old] for old in kept),
        mirror=tuple(new_index.get(card.mirror[old], new_index[old]) for old in kept),
        skeleton=tuple(
            (new_index[a], new_index[b]) for a, b in card.skeleton if a in new_index and b in new_index
        ),
        colors=tuple(landmark_colors(card)[old] for old in kept) if card.hidden else card.colors,
        hidden=(),
        confirmed=tuple(new_index[old] for old in card.confirmed if old in new_index),
        trust=tuple(card.trust[old] for old in kept) if card.trust else (),
        unpaired=tuple(new_index[old] for old in card.unpaired if old in new_index),
        trained_mirror=tuple(
            new_index.get(card.trained_mirror[old], new_index[old]) for old in kept if card.trained_mirror
        ),
    )


def distinct_edges(edges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the edges of a skeleton once each; an edge from a landmark to itself is left out.

    >>> distinct_edges([(2, 0), (0, 1), (0, 2), (1, 1)])
    ((2, 0), (0, 1))
    """
    unique: dict[tuple[int, int], tuple[int, int]] = {}
    for a, b in edges:
        if a != b:
            unique.setdefault((min(a, b), max(a, b)), (a, b))
    return tuple(unique.values())


def _card_from_json(values: Any, path: Path) -> ModelCard:
    """Check the content of model.json and convert it to a card; raise an InputError if it is not valid."""
    require_format(values, path)
    try:
        names = _parse_names(values["names"])
        if not 1 <= len(names) <= _MAX_LANDMARKS:
            raise ValueError(f"{len(names)} landmark names; 1 to {_MAX_LANDMARKS:,} are allowed")
        if values["K"] != len(names):
            raise ValueError(f"K is {reprlib.repr(values['K'])}, but there are {len(names)} names")
        mirror = _parse_partners(values["mirror"], len(names))
        if not mirror:
            raise ValueError("there are no mirror partners")
        if values["refine"] not in get_args(PeakMethod):
            raise ValueError(f"unknown value {reprlib.repr(values['refine'])} of 'refine'")
        images = section_from_dict(Images, values["images"], str(path))
        network = section_from_dict(Network, values["network"], str(path))
        features = section_from_dict(Features, values.get("features", {}), str(path))
        student = section_from_dict(Student, values.get("student", {}), str(path))
        check_model(images, network)
        check_limits(features, "features.")
        check_limits(student, "student.")
        architecture = values.get("architecture", "hourglass")  # missing in cards of selfmark 0.1
        if architecture not in get_args(Architecture):
            raise ValueError(f"unknown value {reprlib.repr(architecture)} of 'architecture'")
        channels = ENCODER_CHANNELS if architecture in ("encoder", "zero-shot") else network.channels
        passes = 1 + bool(values["flip_test"])
        check_image_memory(len(names), images.size, channels, images.size // STRIDE, passes)
        softmax = values.get("softmax", "space")
        if softmax not in get_args(Softmax):
            raise ValueError(f"unknown value {reprlib.repr(softmax)} of 'softmax'")
        return ModelCard(
            names=names,
            mirror=mirror,
            skeleton=_parse_edges(values["skeleton"], len(names)),
            images=images,
            network=network,
            refine=values["refine"],
            flip_test=bool(values["flip_test"]),
            provenance=_parse_provenance(values["provenance"]),
            colors=_parse_colors(values.get("colors", ()), len(names)),
            hidden=_parse_indices("hidden", values.get("hidden", ()), len(names)),
            confirmed=_parse_indices("confirmed", values.get("confirmed", ()), len(names)),
            architecture=architecture,
            features=features,
            student=student,
            trust=_parse_trust(values.get("trust", ()), len(names)),
            verdict=_parse_verdict(values.get("verdict")),
            unpaired=_parse_indices("unpaired", values.get("unpaired", ()), len(names)),
            softmax=softmax,
            trained_mirror=_parse_partners(values.get("trained_mirror", ()), len(names)),
        )
    except (KeyError, TypeError, ValueError, OverflowError, InputError) as error:
        raise InputError(f"{path} is not a valid model description: {error}") from error


def _parse_partners(values: Any, landmarks: int) -> tuple[int, ...]:
    mirror = tuple(int(partner) for partner in values)
    if mirror and sorted(mirror) != list(range(landmarks)):
        raise ValueError("the mirror partners are not a permutation of the landmarks")
    if any(mirror[partner] != index for index, partner in enumerate(mirror)):
        raise ValueError("the mirror partners are not mutual")
    return mirror


def _parse_provenance(values: Any) -> dict[str, Any]:
    require_fields(values, {}, _SHOWN_PROVENANCE)
    # Only `predict --smooth` may state this: tables get columns because of it.
    provenance = {name: value for name, value in values.items() if name != SMOOTHING}
    json.dumps(provenance, allow_nan=False)  # raises for NaN and infinity, which selfmark never writes
    return provenance


def _parse_names(values: Any) -> tuple[str, ...]:
    names = tuple(values)
    for name in names:
        if not is_point_name(name):
            raise ValueError(f"{reprlib.repr(name)} is not a valid landmark name")
    return names


def _parse_edges(values: Any, landmarks: int) -> tuple[tuple[int, int], ...]:
    edges = tuple((int(a), int(b)) for a, b in values)
    if any(not 0 <= end < landmarks for edge in edges for end in edge):
        raise ValueError("the skeleton connects landmarks that do not exist")
    return distinct_edges(edges)


def _parse_colors(values: Any, landmarks: int) -> tuple[str, ...]:
    colors = tuple(values)
    if len(colors) not in (0, landmarks):
        raise ValueError(f"{len(colors)} colors for {landmarks} landmarks")
    for color in colors:
        if not isinstance(color, str) or (color and not _COLOR.fullmatch(color)):
            raise ValueError(f"{reprlib.repr(color)} is not a color like #1f77b4")
    return colors


def _parse_trust(values: Any, landmarks: int) -> tuple[float, ...]:
    trust = tuple(float(value) for value in values)
    if len(trust) not in (0, landmarks):
        raise ValueError(f"'trust' must have {landmarks} values, not {len(trust)}")
    if not all(0 <= value <= 1 for value in trust):
        raise ValueError("trust must be between 0 and 1")
    return trust


def _parse_verdict(value: Any) -> Verdict | None:
    verdicts: dict[Any, Verdict] = {name: name for name in get_args(Verdict)}
    if value is not None and value not in verdicts:
        raise ValueError(f"unknown value {reprlib.repr(value)} of 'verdict'")
    return verdicts.get(value)


def _parse_indices(field: str, values: Any, landmarks: int) -> tuple[int, ...]:
    indices = tuple(values)
    if any(type(index) is not int or not 0 <= index < landmarks for index in indices):
        raise ValueError(f"'{field}' must be a list of landmarks from 0 to {landmarks - 1}")
    if len(set(indices)) == landmarks and field == "hidden":
        raise ValueError("all landmarks are hidden")
    return tuple(sorted(set(indices)))
