"""Test edits: their effects, validation, undo and JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfmark.errors import InputError
from selfmark.naming.edits import (
    Edit,
    SetColor,
    SetConfirmed,
    SetEdge,
    SetHidden,
    SetName,
    SetPartner,
    apply_edits,
    clean_name,
    edits_from_json,
    edits_to_json,
)
from selfmark.run.json_schema import MAX_NAME_LENGTH
from tests.naming.toy_server import CARD, K

landmarks = st.integers(0, K - 1)
edits = st.one_of(
    st.builds(SetName, landmarks, st.sampled_from(["nose", "tail", "left ear", "foot", "x"])),
    st.builds(SetColor, landmarks, st.sampled_from(["", "#102030", "#ABCDEF"])),
    st.builds(SetHidden, landmarks, st.booleans()),
    st.builds(SetPartner, landmarks, landmarks),
    st.builds(SetConfirmed, landmarks, st.booleans()),
    st.builds(SetEdge, landmarks, landmarks, st.booleans()),
)


@given(st.lists(st.lists(edits, min_size=1, max_size=4), max_size=8))
def test_all_edits_can_be_undone_and_redone(steps: list[list[Edit]]) -> None:
    card, history = CARD, []
    for step in steps:
        try:
            after, undo = apply_edits(card, step)
        except InputError:
            continue
        undone, redo = apply_edits(after, undo)
        assert undone == replace(card, skeleton=undone.skeleton)
        assert set(undone.skeleton) == set(card.skeleton)
        redone, _ = apply_edits(undone, redo)
        assert redone == replace(after, skeleton=redone.skeleton)  # edges may be in another order
        # Every card is valid.
        assert all(after.mirror[partner] == index for index, partner in enumerate(after.mirror))
        assert len(after.hidden) < K
        assert len({frozenset(edge) for edge in after.skeleton}) == len(after.skeleton)
        history.append(undo)
        card = after
    for undo in reversed(history):
        card, _ = apply_edits(card, undo)
    assert replace(card, skeleton=()) == replace(CARD, skeleton=())
    assert set(card.skeleton) == set(CARD.skeleton)


def test_pairing_frees_former_partners_and_confirms_the_pair() -> None:
    card, _ = apply_edits(CARD, [SetConfirmed(3, True), SetPartner(0, 3)])
    assert card.mirror == (3, 1, 2, 0, 4, 5)  # 1 and 4 are their own partners now
    assert card.confirmed == (0, 3)
    card, _ = apply_edits(card, [SetPartner(0, 0)])
    assert card.mirror == (0, 1, 2, 3, 4, 5)
    assert card.confirmed == (0,)


def test_edges_have_no_direction() -> None:
    card, _ = apply_edits(CARD, [SetEdge(4, 1, True), SetEdge(1, 4, True)])
    assert card.skeleton == ((1, 4),)
    assert apply_edits(card, [SetEdge(4, 1, False)])[0].skeleton == ()


def test_two_landmarks_can_swap_names() -> None:
    named, _ = apply_edits(CARD, [SetName(0, "left"), SetName(1, "right")])
    swapped, _ = apply_edits(named, [SetName(0, "right"), SetName(1, "left")])
    assert swapped.names[:2] == ("right", "left")


@pytest.mark.parametrize(
    ("rejected", "message"),
    [
        ([SetName(0, "landmark_1")], "landmark 1 is already called 'landmark_1'"),
        ([SetName(0, "LANDMARK_1")], "landmark 1 is already called"),
        ([SetName(0, "a"), SetName(1, " A ")], "already called"),
        ([SetName(0, "   ")], "at least one character"),
        ([SetName(0, "a\nb")], "one line of visible characters"),
        ([SetName(0, "a\u202eb")], "one line of visible characters"),
        ([SetName(0, "x" * (MAX_NAME_LENGTH + 1))], "at most 1000 characters, not 1001"),
        ([SetColor(0, "red")], "is not a color"),
        ([SetColor(0, "#12345g")], "is not a color"),
        ([SetEdge(2, 2, True)], "connected to itself"),
        ([SetHidden(index, True) for index in range(K)], "at least one landmark must stay visible"),
        ([SetName(K, "a")], "there is no landmark 6; landmarks are numbered from 0 to 5"),
        ([SetPartner(0, -1)], "there is no landmark -1"),
    ],
)
def test_invalid_edits_are_rejected_with_a_reason(rejected: list[Edit], message: str) -> None:
    with pytest.raises(InputError, match=message):
        apply_edits(CARD, rejected)


def test_names_may_contain_any_visible_text() -> None:
    for name in ("œil gauche", "左耳", "<b>nose</b>", 'a, "b" / c:d', "🐭 nose", "x" * MAX_NAME_LENGTH):
        assert clean_name(f" {name} ") == name
    assert clean_name("e\u0301") == "\u00e9"  # normalized to one character


@given(st.lists(edits, min_size=1, max_size=5))
def test_edits_are_unchanged_after_writing_and_reading_json(given_edits: list[Edit]) -> None:
    assert edits_from_json(edits_to_json(given_edits)) == given_edits


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "rename",
        [None],
        [{}],
        [{"kind": "erase", "landmark": 1}],
        [{"kind": "rename", "landmark": 1}],
        [{"kind": "rename", "landmark": "1", "name": "x"}],
        [{"kind": "rename", "landmark": 1, "name": "x", "more": 1}],
        [{"kind": "hide", "landmark": True, "hidden": True}],
        [{"kind": "hide", "landmark": 1, "hidden": 1}],
        [{"kind": "hide", "landmark": 1.0, "hidden": True}],
        [{"kind": "hide", "landmark": 1, "hidden": True}] * 201,
    ],
)
def test_invalid_json_is_rejected(value: object) -> None:
    with pytest.raises(InputError):
        edits_from_json(value)
