"""Test the HTTP responses of the naming page: the card, concurrent edits, images and galleries."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
from PIL import Image

from selfmark.model.card import read_card
from selfmark.naming.app import _order_rows
from selfmark.naming.image_renderer import CROP_SIDE
from tests.naming.toy_server import CARD, WRITE_HEADERS, K, ToyServer, make_toy_folder, serve


def test_edits_are_on_disk_when_the_response_arrives(toy: ToyServer) -> None:
    response = toy.edit(
        {"kind": "rename", "landmark": 2, "name": " nose "},
        {"kind": "color", "landmark": 2, "color": "#E69F00"},
        {"kind": "hide", "landmark": 5, "hidden": True},
        {"kind": "connect", "landmark": 2, "other": 0, "connected": True},
        {"kind": "pair", "landmark": 0, "partner": 3},
    )
    assert response.status_code == 200
    card = read_card(toy.folder / "model")
    assert card.names[2] == "nose"
    assert card.colors == ("", "", "#e69f00", "", "", "")
    assert card.hidden == (5,)
    assert card.skeleton == ((0, 2),)
    assert card.mirror == (3, 1, 2, 0, 4, 5)
    assert (card.images, card.network, card.provenance) == (CARD.images, CARD.network, CARD.provenance)
    assert [path.name for path in (toy.folder / "model").iterdir()] == ["model.json"]
    assert toy.edit(*response.json()["undo"]).status_code == 200
    assert read_card(toy.folder / "model") == CARD


def test_rejected_edits_change_nothing_and_give_the_reason(toy: ToyServer) -> None:
    response = toy.edit(
        {"kind": "hide", "landmark": 1, "hidden": True},
        {"kind": "rename", "landmark": 0, "name": "landmark_4"},
    )
    assert response.status_code == 409
    assert response.json() == {"error": "landmark 4 is already called 'landmark_4'; choose another name"}
    assert read_card(toy.folder / "model") == CARD
    for body in ("", "{", "[]", '{"edits": 3}', '{"edits": [{"kind": "rename"}]}'):
        response = toy.client.post(
            "/api/edits", content=body, headers={"x-selfmark": "1", "content-type": "application/json"}
        )
        assert response.status_code in (409, 422), body
    assert read_card(toy.folder / "model") == CARD


def test_eight_concurrent_users_lose_no_edit(tmp_path: Path) -> None:
    """Each user edits landmarks of their own, and all edits end up in one file."""
    users, edits_each = 8, 6
    count = users * edits_each
    card = replace(CARD, names=tuple(f"landmark_{i}" for i in range(count)), mirror=tuple(range(count)))
    folder = tmp_path / "many"
    with serve(folder, make_toy_folder(folder, card)) as running:
        errors: list[str] = []

        def work(user: int) -> None:
            with httpx.Client(
                base_url=running.origin, cookies=running.client.cookies, headers=WRITE_HEADERS
            ) as client:
                for step in range(edits_each):
                    name_and_connect(client, user, step)

        def name_and_connect(client: httpx.Client, user: int, step: int) -> None:
            landmark = user * edits_each + step
            for edit in (
                {"kind": "rename", "landmark": landmark, "name": f"user {user} step {step}"},
                {"kind": "connect", "landmark": landmark, "other": (landmark + 1) % count, "connected": True},
                {"kind": "hide", "landmark": landmark, "hidden": bool(landmark % 2)},
            ):
                response = client.post("/api/edits", json={"edits": [edit]})
                if response.status_code != 200:
                    errors.append(response.text)

        threads = [threading.Thread(target=work, args=(user,)) for user in range(users)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        saved = read_card(folder / "model")
    assert saved.names == tuple(f"user {i // edits_each} step {i % edits_each}" for i in range(count))
    assert {frozenset(edge) for edge in saved.skeleton} == {
        frozenset((i, (i + 1) % count)) for i in range(count)
    }
    assert saved.hidden == tuple(range(1, count, 2))


def test_card_is_sent_only_if_it_has_changed(toy: ToyServer) -> None:
    first = toy.client.get("/api/card").json()
    assert toy.client.get("/api/card", params={"revision": first["revision"]}).status_code == 204
    toy.edit({"kind": "confirm", "landmark": 0, "confirmed": True})
    changed = toy.client.get("/api/card", params={"revision": first["revision"]})
    assert changed.json()["confirmed"] == [0, 1]


def test_trust_and_verdict_are_sent_with_the_run(shared_server: ToyServer, tmp_path: Path) -> None:
    unjudged = shared_server.client.get("/api/run").json()
    assert (unjudged["trust"], unjudged["verdict"]) == ([], None)
    trust = [0.9, 0.31, 0.5, 0.0, 1.0, 0.49]
    folder = tmp_path / "judged"
    card = replace(CARD, trust=tuple(trust), verdict="usable")
    with serve(folder, make_toy_folder(folder, card)) as running:
        values = running.client.get("/api/run").json()
        assert (values["trust"], values["min_trust"], values["verdict"]) == (trust, 0.25, "usable")
        assert running.edit({"kind": "rename", "landmark": 0, "name": "nose"}).status_code == 200
    judged = read_card(folder / "model")
    assert (judged.trust, judged.verdict) == (card.trust, "usable"), "edits keep trust and verdict"


def test_notes_list_outdated_files_when_mirror_partners_change(toy: ToyServer) -> None:
    (toy.folder / "model" / "map.json").write_text("{}")
    assert toy.edit({"kind": "rename", "landmark": 0, "name": "nose"}).json()["notes"] == []
    notes = toy.edit({"kind": "pair", "landmark": 2, "partner": 5}).json()["notes"]
    assert any(f"selfmark map {toy.folder} --labels FILE" in note for note in notes)
    assert not any("ONNX" in note for note in notes)
    assert any("to see the landmarks that moved" in note for note in notes), "the toy uses flip_test"
    assert toy.edit({"kind": "pair", "landmark": 2, "partner": 2}).json()["notes"] == []


# --- images ------------------------------------------------------------------------------------------


def test_images_are_listed_with_their_points(shared_server: ToyServer) -> None:
    response = shared_server.client.get("/api/images", params={"start": 3, "limit": 10}).json()
    assert response["total"] == 5
    assert [image["row"] for image in response["images"]] == [3, 4]
    image = response["images"][0]
    assert image["view"] == [0, 0, 120, 80], "the region that the network sees, clipped to the image"
    assert Path(image["name"]).name == "image 3.jpg"
    assert np.shape(image["xy"]) == (K, 2)


def test_rendered_images_show_the_landmarks_at_the_listed_positions(shared_server: ToyServer) -> None:
    image = shared_server.client.get("/api/images").json()["images"][0]
    pixels = np.asarray(Image.open(io.BytesIO(shared_server.client.get("/images/0/large").content)))
    assert pixels.shape == (80, 120, 3)
    for x, y in image["xy"]:  # pixel corners are at integers
        assert pixels[int(y), int(x)].min() > 200
    assert pixels[2, 2].max() < 90


def test_crops_have_the_landmark_in_their_center(shared_server: ToyServer) -> None:
    for row in range(5):
        for landmark in range(K):
            content = shared_server.client.get(f"/images/{row}/crop/{landmark}").content
            crop = np.asarray(Image.open(io.BytesIO(content))).astype(int)
            assert crop.shape == (CROP_SIDE, CROP_SIDE, 3)
            center = np.argwhere(crop.min(axis=2) > 190).mean(axis=0)
            # The white square at the landmark is 5 pixels wide in the image and about 20 in the crop.
            assert np.abs(center - CROP_SIDE / 2).max() < 4


def test_galleries_are_sorted_as_requested(shared_server: ToyServer) -> None:
    def list_values(order: str, name: str) -> list[float]:
        crops = shared_server.client.get("/api/gallery/1", params={"order": order}).json()["crops"]
        return [crop[name] for crop in crops]

    assert list_values("highest", "score") == sorted(list_values("highest", "score"), reverse=True)
    assert list_values("lowest", "row") == list_values("highest", "row")[::-1]
    assert sorted(list_values("mixed", "row")) == list(range(5))
    assert shared_server.client.get("/api/gallery/1", params={"order": "odd"}).status_code == 422


def test_mixed_galleries_contain_every_image_and_start_with_a_broad_sample() -> None:
    rows = _order_rows(np.zeros(1000), "mixed")
    assert sorted(rows.tolist()) == list(range(1000))
    assert rows[:20].max() > 700


def test_missing_and_broken_images_return_404(toy: ToyServer) -> None:
    (toy.folder / "images" / "image 1.jpg").unlink()
    response = toy.client.get("/images/1/large")
    assert response.status_code == 404
    assert "cannot be read" in response.json()["error"]
    (toy.folder / "images" / "image 2.jpg").write_bytes(b"\xff\xd8\xff broken")
    assert toy.client.get("/images/2/crop/0").status_code == 404


def test_file_names_that_are_not_utf8_are_served(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    shown = make_toy_folder(folder, images=1, name="\udcff<script>{}.jpg")
    with serve(folder, shown) as running:
        name = running.client.get("/api/images").json()["images"][0]["name"]
        assert name.endswith("?<script>0.jpg")
        assert running.client.get("/images/0/thumbnail").status_code == 200


def test_responses_are_small(shared_server: ToyServer) -> None:
    assert len(json.dumps(shared_server.client.get("/api/card").json())) < 2000
    assert shared_server.client.get("/api/images", params={"limit": 201}).status_code == 422
