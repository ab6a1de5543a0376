"""What a detector knows of itself besides its weights: model.json. Read and written without torch.

What people say of landmarks on the naming page is kept here too: names, colors, mirror partners, the
skeleton, and which landmarks to leave out. A hidden landmark is still found, because the network has as many
outputs as ever; `visible_card` here and `export.writer` take it out of everything that is written.
"""

from __future__ import annotations

import dataclasses
import re
import reprlib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from selfmark._version import __version__
from selfmark.config import Images, Network, Reading, check_model, section_from_dict
from selfmark.errors import InputError
from selfmark.model.colors import landmark_colors
from selfmark.run.files import FORMAT, read_json, require_format, write_json

_MOST_LANDMARKS = 10_000  # a model.json that claims more is not believed
_LONGEST_NAME = 1_000
_MOST_BYTES = 64 << 20  # of model.json; one of that many landmarks is far smaller
_COLOR = re.compile(r"#[0-9a-f]{6}")


@dataclass(frozen=True)
class ModelCard:
    """What a detector knows of itself besides its weights; kept as model.json."""

    names: tuple[str, ...]  # one per landmark, in index order
    mirror: tuple[int, ...]  # the landmark each becomes in a mirrored image
    skeleton: tuple[tuple[int, int], ...]  # pairs of landmarks to connect in drawings
    images: Images  # preprocessing
    network: Network
    refine: Reading  # how a heatmap becomes a position
    flip_test: bool  # average with the mirror image
    provenance: dict[str, Any]
    colors: tuple[str, ...] = ()  # "#rrggbb" of each landmark, "" for the usual one; empty: all the usual
    hidden: tuple[int, ...] = ()  # landmarks left out of all that is written, ascending
    confirmed: tuple[int, ...] = ()  # landmarks whose mirror partner a person has confirmed, ascending


def read_card(folder: Path) -> ModelCard:
    """The description of the model in this model folder."""
    path = folder / "model.json"
    if not path.exists():
        raise InputError(
            f"{folder} holds an unfinished run: finish it with 'selfmark discover -o {folder} --resume'"
            if (folder / "run.json").exists()
            else f"{folder} holds no model"
        )
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path} is too large to be a model description")
    return _card_from_json(read_json(path), path)


def write_card(card: ModelCard, folder: Path) -> None:
    """Write model.json, whole or not at all."""
    values = {"format": FORMAT, "selfmark": __version__, "K": len(card.names), **dataclasses.asdict(card)}
    write_json(values, folder / "model.json")


def model_folder(folder: Path) -> Path:
    """Where the model is: of a run, of a model folder itself, or of the detector that comes with selfmark."""
    if is_packaged(folder):
        return Path(str(resources.files("selfmark.demo") / "model"))
    return folder / "model" if (folder / "model").is_dir() else folder


def is_packaged(folder: Path) -> bool:
    """Whether this names the detector of the demo's toy animal; a folder of the user's comes first."""
    return str(folder) == "demo" and not folder.exists()


def visible_landmarks(card: ModelCard) -> list[int]:
    """The landmarks that are not hidden, ascending."""
    return [index for index in range(len(card.names)) if index not in set(card.hidden)]


def visible_card(card: ModelCard) -> ModelCard:
    """The card of the visible landmarks alone, counted anew, in the colors they have.

    A landmark whose mirror partner is hidden becomes its own.

    >>> card = ModelCard(("a", "b", "c"), (0, 2, 1), ((0, 1), (0, 2)), Images(), Network(), "parabola",
    ...                  True, {}, hidden=(1,))
    >>> smaller = visible_card(card)
    >>> smaller.names, smaller.mirror, smaller.skeleton, smaller.hidden
    (('a', 'c'), (0, 1), ((0, 1),), ())
    """
    kept = visible_landmarks(card)
    new = {old: index for index, old in enumerate(kept)}
    return replace(
        card,
        names=tuple(card.names[old] for old in kept),
        mirror=tuple(new.get(card.mirror[old], new[old]) for old in kept),
        skeleton=tuple((new[a], new[b]) for a, b in card.skeleton if a in new and b in new),
        colors=tuple(landmark_colors(card)[old] for old in kept) if card.hidden else card.colors,
        hidden=(),
        confirmed=tuple(new[old] for old in card.confirmed if old in new),
    )


def _card_from_json(values: Any, path: Path) -> ModelCard:
    require_format(values, path)
    try:
        names = _names(values["names"])
        mirror = tuple(int(partner) for partner in values["mirror"])
        if not 1 <= len(names) <= _MOST_LANDMARKS or values["K"] != len(names):
            raise ValueError(f"{reprlib.repr(values['K'])} landmarks with {len(names)} names")
        if sorted(mirror) != list(range(len(names))):
            raise ValueError("mirror partners are not a permutation")
        if any(mirror[partner] != index for index, partner in enumerate(mirror)):
            raise ValueError("mirror partners do not pair up")
        if values["refine"] not in get_args(Reading):
            raise ValueError(f"refine is {reprlib.repr(values['refine'])}")
        images = section_from_dict(Images, values["images"], str(path))
        network = section_from_dict(Network, values["network"], str(path))
        check_model(images, network)
        return ModelCard(
            names=names,
            mirror=mirror,
            skeleton=_edges(values["skeleton"], len(names)),
            images=images,
            network=network,
            refine=values["refine"],
            flip_test=bool(values["flip_test"]),
            provenance=dict(values["provenance"]),
            colors=_colors(values.get("colors", ()), len(names)),
            hidden=_indices("hidden", values.get("hidden", ()), len(names)),
            confirmed=_indices("confirmed", values.get("confirmed", ()), len(names)),
        )
    except (KeyError, TypeError, ValueError, OverflowError, InputError) as error:
        raise InputError(f"{path} is not a usable model description: {error}") from error


def _names(values: Any) -> tuple[str, ...]:
    names = tuple(values)
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise ValueError(f"{reprlib.repr(name)} is no name of a landmark")
        name.encode()  # halves of characters, which JSON can write, would fail wherever the name is written
    return names


def _edges(values: Any, landmarks: int) -> tuple[tuple[int, int], ...]:
    edges = tuple((int(a), int(b)) for a, b in values)
    if any(not 0 <= end < landmarks for edge in edges for end in edge):
        raise ValueError("the skeleton connects landmarks that are not there")
    return edges


def _colors(values: Any, landmarks: int) -> tuple[str, ...]:
    colors = tuple(values)
    if len(colors) not in (0, landmarks):
        raise ValueError(f"{len(colors)} colors for {landmarks} landmarks")
    for color in colors:
        if not isinstance(color, str) or (color and not _COLOR.fullmatch(color)):
            raise ValueError(f"{reprlib.repr(color)} is no color such as #1f77b4")
    return colors


def _indices(field: str, values: Any, landmarks: int) -> tuple[int, ...]:
    indices = tuple(values)
    if any(type(index) is not int or not 0 <= index < landmarks for index in indices):
        raise ValueError(f"'{field}' must list landmarks from 0 to {landmarks - 1}")
    if len(set(indices)) == landmarks and field == "hidden":
        raise ValueError("all landmarks are hidden")
    return tuple(sorted(set(indices)))
