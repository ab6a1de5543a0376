"""What can be said of landmarks: small edits, each with the edits that take it back.

An edit names what it changes and nothing else, so edits of several people at once do not undo each other:
they are applied one after the other to whatever the model card says by then.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from selfmark.errors import InputError
from selfmark.model.card import ModelCard

LONGEST_NAME = 60  # characters
MOST_EDITS = 200  # at once
_COLOR = re.compile(r"#[0-9a-fA-F]{6}")


@dataclass(frozen=True)
class SetName:
    landmark: int
    name: str


@dataclass(frozen=True)
class SetColor:
    landmark: int
    color: str  # "#rrggbb", or "" for the usual one


@dataclass(frozen=True)
class SetHidden:
    landmark: int
    hidden: bool


@dataclass(frozen=True)
class SetPartner:
    """Two landmarks are each other's mirror image; one landmark given twice is its own."""

    landmark: int
    partner: int


@dataclass(frozen=True)
class SetConfirmed:
    """A person says that the landmark and its present partner belong together, or takes it back."""

    landmark: int
    confirmed: bool


@dataclass(frozen=True)
class SetEdge:
    landmark: int
    other: int
    connected: bool


Edit = SetName | SetColor | SetHidden | SetPartner | SetConfirmed | SetEdge

_KINDS: dict[str, type[Edit]] = {
    "rename": SetName,
    "color": SetColor,
    "hide": SetHidden,
    "pair": SetPartner,
    "confirm": SetConfirmed,
    "connect": SetEdge,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TYPES = {"int": int, "str": str, "bool": bool}


# --- from and to the wire ----------------------------------------------------------------------------


def edits_from_json(values: Any) -> list[Edit]:
    """A list of edits such as {"kind": "rename", "landmark": 3, "name": "nose"}.

    >>> edits_from_json([{"kind": "pair", "landmark": 1, "partner": 2}])
    [SetPartner(landmark=1, partner=2)]
    """
    if not isinstance(values, list) or not 1 <= len(values) <= MOST_EDITS:
        raise InputError(f"edits come as a list of 1 to {MOST_EDITS}")
    return [_edit_from_json(value) for value in values]


def _edit_from_json(value: Any) -> Edit:
    kind = _KINDS.get(str(value.get("kind"))) if isinstance(value, dict) else None
    if kind is None:
        raise InputError(f"an edit is one of {', '.join(_KINDS)}")
    wanted = {field.name: _TYPES[str(field.type)] for field in fields(kind)}
    given = {name: part for name, part in value.items() if name != "kind"}
    if set(given) != set(wanted) or any(type(given[name]) is not wanted[name] for name in wanted):
        described = ", ".join(f"{name} ({type_.__name__})" for name, type_ in wanted.items())
        raise InputError(f"'{_NAMES[kind]}' needs {described}")
    return kind(**given)


def edits_to_json(edits: Sequence[Edit]) -> list[dict[str, Any]]:
    """The inverse of `edits_from_json`."""
    return [{"kind": _NAMES[type(edit)], **vars(edit)} for edit in edits]


# --- what they do ------------------------------------------------------------------------------------


def apply_edits(card: ModelCard, edits: Sequence[Edit]) -> tuple[ModelCard, list[Edit]]:
    """The card after all of the edits, and the edits that lead back; one that cannot be refuses them all."""
    after, back = card, list[Edit]()
    for edit in edits:
        for landmark in _landmarks(edit):
            if not 0 <= landmark < len(card.names):
                raise InputError(
                    f"there is no landmark {landmark}; they count from 0 to {len(card.names) - 1}"
                )
        back = [*_inverse(after, edit), *back]
        after = _apply(after, edit)
    _check(after, edits)
    return after, back


def _landmarks(edit: Edit) -> tuple[int, ...]:
    match edit:
        case SetPartner(one, other) | SetEdge(one, other, _):
            return one, other
    return (edit.landmark,)


def _apply(card: ModelCard, edit: Edit) -> ModelCard:
    match edit:
        case SetName(landmark, name):
            return replace(card, names=_put(card.names, landmark, clean_name(name)))
        case SetColor(landmark, color):
            if color and not _COLOR.fullmatch(color):
                raise InputError(f"'{color[:20]}' is no color such as #1f77b4")
            colors = _put(card.colors or ("",) * len(card.names), landmark, color.lower())
            return replace(card, colors=colors if any(colors) else ())
        case SetHidden(landmark, hidden):
            return replace(card, hidden=_with(card.hidden, [landmark], hidden))
        case SetPartner(landmark, partner):
            return _pair(card, landmark, partner)
        case SetConfirmed(landmark, confirmed):
            both = [landmark, card.mirror[landmark]]
            return replace(card, confirmed=_with(card.confirmed, both, confirmed))
        case SetEdge(one, other, connected):
            return _connect(card, one, other, connected)


def _pair(card: ModelCard, landmark: int, partner: int) -> ModelCard:
    """Whoever was a partner of one of the two is left as its own, to be looked at again."""
    mirror = list(card.mirror)
    left = {mirror[landmark], mirror[partner]} - {landmark, partner}
    for one in left:
        mirror[one] = one
    mirror[landmark], mirror[partner] = partner, landmark
    confirmed = _with(_with(card.confirmed, left, False), [landmark, partner], True)
    return replace(card, mirror=tuple(mirror), confirmed=confirmed)


def _connect(card: ModelCard, one: int, other: int, connected: bool) -> ModelCard:
    if one == other:
        raise InputError("a landmark cannot be connected to itself")
    ends = {one, other}
    if connected and _connected(card, one, other):
        return card
    others = tuple(edge for edge in card.skeleton if set(edge) != ends)
    return replace(card, skeleton=(*others, (min(ends), max(ends))) if connected else others)


def _inverse(card: ModelCard, edit: Edit) -> list[Edit]:
    """What leads back to `card` after the edit."""
    match edit:
        case SetName(landmark, _):
            return [SetName(landmark, card.names[landmark])]
        case SetColor(landmark, _):
            return [SetColor(landmark, card.colors[landmark] if card.colors else "")]
        case SetHidden(landmark, _):
            return [SetHidden(landmark, landmark in card.hidden)]
        case SetPartner(landmark, partner):
            both = (landmark, partner)
            return [
                *(SetPartner(one, card.mirror[one]) for one in both),
                *(SetConfirmed(one, one in card.confirmed) for one in both),
            ]
        case SetConfirmed(landmark, _):
            return [SetConfirmed(landmark, landmark in card.confirmed)]
        case SetEdge(one, other, _):
            return [SetEdge(one, other, _connected(card, one, other))]


def _connected(card: ModelCard, one: int, other: int) -> bool:
    return any(set(edge) == {one, other} for edge in card.skeleton)


def _check(card: ModelCard, edits: Sequence[Edit]) -> None:
    """What must hold once all edits are done; two landmarks may so exchange their names."""
    if len(card.hidden) == len(card.names):
        raise InputError("at least one landmark must stay visible")
    for edit in edits:
        if isinstance(edit, SetName):
            name = card.names[edit.landmark]
            for index, other in enumerate(card.names):
                if index != edit.landmark and other.casefold() == name.casefold():
                    raise InputError(f"landmark {index} is already called '{other}'; choose another name")


def clean_name(name: str) -> str:
    """A name without blanks around it, or one sentence about what is wrong with it.

    >>> clean_name("  left ear ")
    'left ear'
    """
    cleaned = unicodedata.normalize("NFC", name).strip()
    if not cleaned:
        raise InputError("a name needs at least one letter")
    if len(cleaned) > LONGEST_NAME:
        raise InputError(f"a name has at most {LONGEST_NAME} characters, not {len(cleaned)}")
    if not cleaned.isprintable():
        raise InputError("a name is one line of visible characters")
    return cleaned


def _put(values: tuple[str, ...], index: int, value: str) -> tuple[str, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _with(members: Sequence[int], changed: Sequence[int] | set[int], inside: bool) -> tuple[int, ...]:
    return tuple(sorted(set(members) | set(changed) if inside else set(members) - set(changed)))
