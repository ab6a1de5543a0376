"""Test corrected landmarks: edits and their inverse, the label file, and the choice of images."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfmark.errors import InputError
from selfmark.evaluation.label_files import read_ground_truth
from selfmark.image_ref import ImageRef
from selfmark.model.card import write_card
from selfmark.naming.correction_choice import choose_for_correction
from selfmark.naming.corrections import (
    Correction,
    CorrectionFile,
    ImageCorrection,
    MovePoint,
    ResetPoint,
    SetAbsent,
    SetDone,
    apply_correction,
    corrections_from_json,
    corrections_to_json,
    invert_correction,
)
from selfmark.naming.server import order_for_correction
from tests.naming.toy_server import CARD, K, ToyServer, make_toy_folder

PREDICTED = [(float(index), float(10 * index)) for index in range(K)]
landmarks = st.integers(0, K - 1)
edits = st.one_of(
    st.builds(MovePoint, st.just(0), landmarks, st.integers(0, 99), st.integers(0, 99)),
    st.builds(ResetPoint, st.just(0), landmarks),
    st.builds(SetAbsent, st.just(0), landmarks),
    st.builds(SetDone, st.just(0), st.booleans()),
)


@given(st.lists(edits, max_size=12), edits)
def test_every_edit_can_be_undone(before: list[Correction], edit: Correction) -> None:
    hidden_landmarks = (4,)
    state = ImageCorrection()
    for earlier in before:
        state = apply_correction(state, earlier, PREDICTED, hidden_landmarks)
    after = apply_correction(state, edit, PREDICTED, hidden_landmarks)
    assert apply_correction(after, invert_correction(state, edit), PREDICTED, hidden_landmarks) == state
    assert corrections_from_json(corrections_to_json([edit])) == [edit]
    if after.done:  # then every landmark that is not hidden has a place or is absent
        assert set(after.places) | after.absent >= set(range(K)) - set(hidden_landmarks)
    assert not set(after.places) & after.absent, "no absent landmark has a place"


def test_label_file_is_read_by_evaluate_and_map(tmp_path: Path) -> None:
    shown = make_toy_folder(tmp_path / "run", images=2)
    (tmp_path / "run" / "images" / "v.mp4").touch()
    video = ImageRef(tmp_path / "run" / "images" / "v.mp4", frame=7, box=(10.0, 0.0, 60.0, 60.0), track=2)
    refs, sizes = [*shown.refs, video], [(120, 80)] * 3
    predicted = [PREDICTED] * 3
    file = CorrectionFile(tmp_path / "run")
    card = replace(CARD, names=("left ear", "right ear", *CARD.names[2:]), skeleton=((0, 2),))
    write_card(card, tmp_path / "run" / "model")
    undo = file.edit([MovePoint(0, 1, 33.25, 44.5), SetDone(2, True)], card, refs, sizes, predicted)
    assert undo == [SetDone(2, False), ResetPoint(0, 1)]
    truth = read_ground_truth(file.path, refs)
    assert truth.names == card.names
    assert truth.mirror == card.mirror
    assert [(ref.path, ref.frame, ref.box, ref.track) for ref in truth.refs] == [
        (refs[0].path, None, None, None),
        (video.path, 7, video.box, 2),
    ]
    assert truth.xy[0, 1].tolist() == [33.25, 44.5]
    assert truth.visible.tolist() == [[False, True, *[False] * 4], [True] * 6]
    assert np.array_equal(truth.xy[1], PREDICTED)
    content = json.loads(file.path.read_text())
    assert content["categories"][0]["skeleton"] == [[1, 3]]
    file.edit(undo, card, refs, sizes, predicted)
    assert file.read(K) == []
    with pytest.raises(InputError, match="was made for a detector with 6 landmarks, but this detector has 5"):
        file.read(5)


def test_requests_are_checked_and_simultaneous_ones_are_all_kept(toy: ToyServer) -> None:
    move = {"kind": "move", "row": 0, "landmark": 0, "x": 1, "y": 2.5}
    for wrong, message in (
        ({**move, "row": 5}, "there is no image 5"),
        ({**move, "landmark": 6}, "there is no landmark 6"),
        ({**move, "x": "1"}, "needs row (int), landmark (int), x (float), y (float)"),
        ({**move, "x": 1e300}, "cannot be moved to"),
        ({**move, "kind": "rename"}, "must be one of move, reset, absent, done"),
    ):
        response = toy.correct(wrong)
        assert response.status_code == 409
        assert message in response.json()["error"]
    assert not (toy.folder / "corrections" / "labels.json").exists()
    assert toy.client.post("/api/corrections", json={"edits": [move]}).status_code == 403, (
        "the request lacks the page's header"
    )
    with ThreadPoolExecutor(4) as threads:
        all_moves = [{**move, "row": row, "landmark": landmark} for row in range(5) for landmark in range(K)]
        statuses = list(threads.map(lambda edit: toy.correct(edit).status_code, all_moves))
    assert statuses == [200] * len(all_moves)
    corrections = toy.client.get("/api/card").json()["corrections"]
    assert [sorted(map(int, corrections[str(row)]["places"])) for row in range(5)] == [list(range(K))] * 5
    assert os.listdir(toy.folder / "corrections") == ["labels.json"], "no temporary file stays behind"


def test_uncertain_images_with_distinct_poses_are_chosen_first() -> None:
    rng = np.random.default_rng(0)
    pose = rng.normal(size=(3, K, 2)) * 20
    xy = pose[np.arange(30) % 3] + rng.normal(size=(30, K, 2)) * 0.1 + rng.uniform(0, 50, (30, 1, 2))
    score = rng.uniform(0.4, 0.9, (30, K))
    score[[4, 8, 12]] = 0.1  # one image of each pose
    sides = np.full(30, 100.0)
    no_rows = np.array([], dtype=np.int64)
    first = choose_for_correction(xy, score, sides, 3, no_rows)
    assert set(first) == {4, 8, 12}
    next_rows = choose_for_correction(xy, score, sides, 100, np.array(first))
    assert sorted(next_rows) == sorted(set(range(30)) - set(first)), (
        "all images that were not shown first, each once"
    )
    assert {row % 3 for row in choose_for_correction(xy, np.ones((30, K)), sides, 3, no_rows)} == {0, 1, 2}


def test_begun_images_come_first_and_finished_ones_last(tmp_path: Path) -> None:
    shown = make_toy_folder(tmp_path / "run", images=5)
    file = CorrectionFile(tmp_path / "run")
    sizes, predicted = [(120, 80)] * 5, [PREDICTED] * 5
    file.edit([SetDone(3, True), MovePoint(1, 0, 5.0, 5.0)], CARD, shown.refs, sizes, predicted)
    ordered = order_for_correction(shown, file.read(K), 2)
    names = [ref.path.name for ref in ordered.refs]
    assert (names[0], names[2:]) == ("image 1.jpg", ["image 3.jpg"])
    row = int(names[1].split()[1][0])
    assert np.array_equal(ordered.xy[1], shown.xy[row])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("annotations", "selfmark", "absent"), [-1]),
        (("annotations", "selfmark", "absent"), [K]),
        (("annotations", "selfmark", "moved"), [10**40]),
        (("annotations", "selfmark", "moved"), "12"),
        (("annotations", "selfmark", "done"), "no"),
        (("annotations", "selfmark"), []),
        (("images", "width"), 0),
        (("images", "width"), -5),
        (("images", "height"), "128"),
        (("images", "height"), 10**40),
        (("images", "frame"), -1),
    ],
)
def test_impossible_numbers_in_the_file_are_refused(
    place: tuple[str, ...], value: Any, tmp_path: Path
) -> None:
    shown = make_toy_folder(tmp_path / "run", images=1)
    file = CorrectionFile(tmp_path / "run")
    file.edit([SetDone(0, True)], CARD, shown.refs, [(120, 80)], [PREDICTED])
    content = json.loads(file.path.read_text())
    entry = content[place[0]][0]
    for name in place[1:-1]:
        entry = entry[name]
    entry[place[-1]] = value
    file.path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="was not written by 'selfmark correct'"):
        file.read(K)
