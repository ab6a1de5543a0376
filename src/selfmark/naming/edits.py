"""Edit a model card. Applying edits returns a new card and the edits that undo the change.

An edit contains only what it changes. Edits of several users are applied one after the other to the current
card, so they do not overwrite each other.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, cast

from selfmark.errors import InputError
from selfmark.model.card import ModelCard
from selfmark.run.json_schema import MAX_NAME_LENGTH

MAX_EDITS = 200  # largest number of edits in one request
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class SetName:
    """Rename a landmark."""

    landmark: int
    name: str


@dataclass(frozen=True)
class SetColor:
    """Set the color of a landmark: "#rrggbb", or "" for its default color."""

    landmark: int
    color: str


@dataclass(frozen=True)
class SetHidden:
    """Hide or show a landmark."""

    landmark: int
    hidden: bool


@dataclass(frozen=True)
class SetPartner:
    """Make two landmarks mirror partners. A landmark on the midline is its own partner."""

    landmark: int
    partner: int


@dataclass(frozen=True)
class SetConfirmed:
    """Confirm the current mirror partner of a landmark, or withdraw the confirmation."""

    landmark: int
    confirmed: bool


@dataclass(frozen=True)
class SetEdge:
    """Connect two landmarks in the skeleton, or disconnect them."""

    landmark: int
    other: int
    connected: bool


Edit = SetName | SetColor | SetHidden | SetPartner | SetConfirmed | SetEdge

_CLASSES: dict[str, type[Edit]] = {
    "rename": SetName,
    "color": SetColor,
    "hide": SetHidden,
    "pair": SetPartner,
    "confirm": SetConfirmed,
    "connect": SetEdge,
}
# Mapping from the annotation of a field to the types of JSON values that are accepted for the field.
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "str": (str,), "bool": (bool,), "float": (float, int)}

EditType = TypeVar("EditType")


# --- JSON --------------------------------------------------------------------------------------------


def edits_from_json(values: Any) -> list[Edit]:
    """Parse a list of edits such as {"kind": "rename", "landmark": 3, "name": "nose"}.

    >>> edits_from_json([{"kind": "pair", "landmark": 1, "partner": 2}])
    [SetPartner(landmark=1, partner=2)]
    """
    return parse_edits(values, _CLASSES)


def parse_edits(values: Any, classes: Mapping[str, type[EditType]]) -> list[EditType]:
    """Parse a list of edits.

    Args:
        values: JSON objects, each with the kind of an edit and its fields.
        classes: Mapping from kinds of edits to their dataclasses.

    Raises:
        InputError: The list is empty or too long, or an edit has an unknown kind or wrong fields.
    """
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_EDITS:
        raise InputError(f"edits must be a list of 1 to {MAX_EDITS} edits")
    return [_parse_edit(value, classes) for value in values]


def _parse_edit(value: Any, classes: Mapping[str, type[EditType]]) -> EditType:
    kind = str(value.get("kind")) if isinstance(value, dict) else ""
    if kind not in classes:
        raise InputError(f"the kind of an edit must be one of {', '.join(classes)}")
    edit_class = classes[kind]
    expected = {field.name: _TYPES[str(field.type)] for field in fields(cast(Any, edit_class))}
    given = {name: field_value for name, field_value in value.items() if name != "kind"}
    if set(given) != set(expected) or any(type(given[name]) not in expected[name] for name in expected):
        required = ", ".join(f"{name} ({types[0].__name__})" for name, types in expected.items())
        raise InputError(f"an edit of kind '{kind}' needs {required}")
    return edit_class(**given)


def edits_to_json(edits: Sequence[Any], classes: Mapping[str, type] = _CLASSES) -> list[dict[str, Any]]:
    """Convert edits to JSON values; the inverse of `parse_edits`."""
    kinds = {edit_class: kind for kind, edit_class in classes.items()}
    return [{"kind": kinds[type(edit)], **vars(edit)} for edit in edits]


# --- applying edits ----------------------------------------------------------------------------------


def apply_edits(card: ModelCard, edits: Sequence[Edit]) -> tuple[ModelCard, list[Edit]]:
    """Apply edits to a card.

    Returns:
        The new card, and the edits that undo the change.

    Raises:
        InputError: An edit is invalid; no edit is applied.
    """
    after, undo = card, list[Edit]()
    for edit in edits:
        for landmark in _get_edited_landmarks(edit):
            if not 0 <= landmark < len(card.names):
                raise InputError(
                    f"there is no landmark {landmark}; landmarks are numbered from 0 to {len(card.names) - 1}"
                )
        undo = [*_invert(after, edit), *undo]
        after = _apply(after, edit)
    _validate(after, edits)
    return after, undo


def _get_edited_landmarks(edit: Edit) -> tuple[int, ...]:
    match edit:
        case SetPartner(a, b) | SetEdge(a, b, _):
            return a, b
    return (edit.landmark,)


def _apply(card: ModelCard, edit: Edit) -> ModelCard:
    match edit:
        case SetName(landmark, name):
            return replace(card, names=_replace_at(card.names, landmark, clean_name(name)))
        case SetColor(landmark, color):
            if color and not _COLOR.fullmatch(color):
                raise InputError(f"'{color[:20]}' is not a color; write it like #1f77b4")
            colors = _replace_at(card.colors or ("",) * len(card.names), landmark, color.lower())
            return replace(card, colors=colors if any(colors) else ())
        case SetHidden(landmark, hidden):
            return replace(card, hidden=_set_members(card.hidden, [landmark], hidden))
        case SetPartner(landmark, partner):
            return _pair(card, landmark, partner)
        case SetConfirmed(landmark, confirmed):
            pair = [landmark, card.mirror[landmark]]
            return replace(card, confirmed=_set_members(card.confirmed, pair, confirmed))
        case SetEdge(a, b, connected):
            return _connect(card, a, b, connected)


def _pair(card: ModelCard, landmark: int, partner: int) -> ModelCard:
    """Make two landmarks mirror partners and confirm them.

    A former partner of either landmark becomes its own partner and is no longer confirmed.
    """
    mirror = list(card.mirror)
    former = {mirror[landmark], mirror[partner]} - {landmark, partner}
    for index in former:
        mirror[index] = index
    mirror[landmark], mirror[partner] = partner, landmark
    confirmed = _set_members(card.confirmed, former, False)
    confirmed = _set_members(confirmed, [landmark, partner], True)
    return replace(card, mirror=tuple(mirror), confirmed=confirmed)


def _connect(card: ModelCard, a: int, b: int, connected: bool) -> ModelCard:
    if a == b:
        raise InputError("a landmark cannot be connected to itself")
    if connected and _is_connected(card, a, b):
        return card
    other_edges = tuple(edge for edge in card.skeleton if set(edge) != {a, b})
    return replace(card, skeleton=(*other_edges, (min(a, b), max(a, b))) if connected else other_edges)


def _invert(card: ModelCard, edit: Edit) -> list[Edit]:
    """Return the edits that undo `edit` and so restore `card`."""
    match edit:
        case SetName(landmark, _):
            return [SetName(landmark, card.names[landmark])]
        case SetColor(landmark, _):
            return [SetColor(landmark, card.colors[landmark] if card.colors else "")]
        case SetHidden(landmark, _):
            return [SetHidden(landmark, landmark in card.hidden)]
        case SetPartner(landmark, partner):
            pair = (landmark, partner)
            return [
                *(SetPartner(index, card.mirror[index]) for index in pair),
                *(SetConfirmed(index, index in card.confirmed) for index in pair),
            ]
        case SetConfirmed(landmark, _):
            return [SetConfirmed(landmark, landmark in card.confirmed)]
        case SetEdge(a, b, _):
            return [SetEdge(a, b, _is_connected(card, a, b))]


def _is_connected(card: ModelCard, a: int, b: int) -> bool:
    return any(set(edge) == {a, b} for edge in card.skeleton)


def _validate(card: ModelCard, edits: Sequence[Edit]) -> None:
    """Raise if the card is invalid after all edits.

    Names are not checked after each edit, so that two landmarks can swap their names in one request.
    """
    if len(card.hidden) == len(card.names):
        raise InputError("at least one landmark must stay visible")
    for edit in edits:
        if isinstance(edit, SetName):
            name = card.names[edit.landmark]
            for index, other in enumerate(card.names):
                if index != edit.landmark and other.casefold() == name.casefold():
                    raise InputError(f"landmark {index} is already called '{other}'; choose another name")


def clean_name(name: str) -> str:
    """Return a name without surrounding spaces, or raise if it is not a valid name.

    >>> clean_name("  left ear ")
    'left ear'
    """
    cleaned = unicodedata.normalize("NFC", name).strip()
    if not cleaned:
        raise InputError("a name needs at least one character")
    if len(cleaned) > MAX_NAME_LENGTH:
        raise InputError(f"a name can have at most {MAX_NAME_LENGTH} characters, not {len(cleaned)}")
    if not cleaned.isprintable():
        raise InputError("a name must be one line of visible characters")
    return cleaned


def _replace_at(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _set_members(
    members: Sequence[int], changed: Sequence[int] | set[int], included: bool
) -> tuple[int, ...]:
    """Add landmarks to a sorted set, or remove them from it."""
    result = set(members) | set(changed) if included else set(members) - set(changed)
    return tuple(sorted(result))
