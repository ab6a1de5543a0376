"""What the server answers: names, edits of many at once, images, galleries."""

from __future__ import annotations

import io
import json
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from selfmark.errors import InputError
from selfmark.model.card import read_card
from selfmark.naming import image_renderer
from selfmark.naming.card_editor import CardEditor
from selfmark.naming.edits import SetHidden, SetName
from selfmark.naming.image_renderer import CROP, BoundedCache, ImageRenderer
from selfmark.naming.shown_images import ShownImages
from tests.naming.toy_server import CARD, WRITE, K, Served, served, toy_folder


def test_edits_are_in_the_file_when_they_are_answered(toy: Served) -> None:
    answer = toy.edit(
        {"kind": "rename", "landmark": 2, "name": " nose "},
        {"kind": "color", "landmark": 2, "color": "#E69F00"},
        {"kind": "hide", "landmark": 5, "hidden": True},
        {"kind": "connect", "landmark": 2, "other": 0, "connected": True},
        {"kind": "pair", "landmark": 0, "partner": 3},
    )
    assert answer.status_code == 200
    card = read_card(toy.folder / "model")
    assert card.names[2] == "nose"
    assert card.colors == ("", "", "#e69f00", "", "", "")
    assert card.hidden == (5,)
    assert card.skeleton == ((0, 2),)
    assert card.mirror == (3, 1, 2, 0, 4, 5)
    assert (card.images, card.network, card.provenance) == (CARD.images, CARD.network, CARD.provenance)
    assert [path.name for path in (toy.folder / "model").iterdir()] == ["model.json"]
    # And taken back.
    assert toy.edit(*answer.json()["back"]).status_code == 200
    assert read_card(toy.folder / "model") == CARD


def test_a_refused_edit_changes_nothing_and_says_why(toy: Served) -> None:
    answer = toy.edit(
        {"kind": "hide", "landmark": 1, "hidden": True},
        {"kind": "rename", "landmark": 0, "name": "landmark_4"},
    )
    assert answer.status_code == 409
    assert answer.json() == {"error": "landmark 4 is already called 'landmark_4'; choose another name"}
    assert read_card(toy.folder / "model") == CARD
    for body in ("", "{", "[]", '{"edits": 3}', '{"edits": [{"kind": "rename"}]}'):
        answer = toy.client.post(
            "/api/edits", content=body, headers={"x-selfmark": "1", "content-type": "application/json"}
        )
        assert answer.status_code in (409, 422), body
    assert read_card(toy.folder / "model") == CARD


def test_eight_people_at_once_lose_no_edit(tmp_path: Path) -> None:
    """Each renames landmarks of its own and adds edges of its own; all meet in one file."""
    people, each = 8, 6
    count = people * each
    card = replace(CARD, names=tuple(f"landmark_{i}" for i in range(count)), mirror=tuple(range(count)))
    folder = tmp_path / "many"
    with served(folder, toy_folder(folder, card)) as running:
        problems: list[str] = []

        def work(person: int) -> None:
            with httpx.Client(
                base_url=running.origin, cookies=running.client.cookies, headers=WRITE
            ) as client:
                for step in range(each):
                    name_and_connect(client, person, step)

        def name_and_connect(client: httpx.Client, person: int, step: int) -> None:
            mine = person * each + step
            for edit in (
                {"kind": "rename", "landmark": mine, "name": f"person {person} step {step}"},
                {"kind": "connect", "landmark": mine, "other": (mine + 1) % count, "connected": True},
                {"kind": "hide", "landmark": mine, "hidden": bool(mine % 2)},
            ):
                answer = client.post("/api/edits", json={"edits": [edit]})
                if answer.status_code != 200:
                    problems.append(answer.text)

        threads = [threading.Thread(target=work, args=(person,)) for person in range(people)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        now = read_card(folder / "model")
    assert now.names == tuple(f"person {i // each} step {i % each}" for i in range(count))
    assert {frozenset(edge) for edge in now.skeleton} == {
        frozenset((i, (i + 1) % count)) for i in range(count)
    }
    assert now.hidden == tuple(range(1, count, 2))


def test_a_second_process_loses_no_edit_either(tmp_path: Path) -> None:
    """Two ledgers share nothing but the folder, as two processes do."""
    toy_folder(tmp_path / "toy")
    ledgers = [CardEditor(tmp_path / "toy" / "model") for _ in range(2)]

    def work(number: int) -> None:
        for step in range(30):
            ledgers[number].edit([SetName(number, f"{number} {step}"), SetHidden(2 + number, bool(step % 2))])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    card = ledgers[0].read()
    assert card.names[:2] == ("0 29", "1 29")
    assert card.hidden == (2, 3)


def test_a_page_asks_only_for_news(toy: Served) -> None:
    first = toy.client.get("/api/names").json()
    assert toy.client.get("/api/names", params={"known": first["revision"]}).status_code == 204
    toy.edit({"kind": "confirm", "landmark": 0, "confirmed": True})
    news = toy.client.get("/api/names", params={"known": first["revision"]})
    assert news.json()["confirmed"] == [0, 1]


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_folder(tmp_path / "toy")
    ledger = CardEditor(tmp_path / "toy" / "model")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("selfmark.run.files.os.fsync", full)
    with pytest.raises(InputError, match="No space left"):
        ledger.edit([SetName(0, "nose")])
    assert ledger.read() == CARD


def test_what_must_be_made_anew_is_said_when_mirror_partners_change(toy: Served) -> None:
    (toy.folder / "model" / "map.json").write_text("{}")
    assert toy.edit({"kind": "rename", "landmark": 0, "name": "nose"}).json()["notes"] == []
    notes = toy.edit({"kind": "pair", "landmark": 2, "partner": 5}).json()["notes"]
    assert any(f"selfmark map {toy.folder} --labels FILE" in note for note in notes)
    assert not any("ONNX" in note for note in notes)
    assert any("landmarks move a little" in note for note in notes), "the toy averages with the mirror image"
    assert toy.edit({"kind": "pair", "landmark": 2, "partner": 2}).json()["notes"] == []


# --- images ------------------------------------------------------------------------------------------


def test_images_are_listed_with_their_points(still: Served) -> None:
    answer = still.client.get("/api/images", params={"start": 3, "most": 10}).json()
    assert answer["of"] == 5
    assert [image["row"] for image in answer["images"]] == [3, 4]
    image = answer["images"][0]
    assert image["view"] == [0, 0, 120, 80], "what the network saw, inside the image"
    assert Path(image["name"]).name == "image 3.jpg"
    assert np.shape(image["xy"]) == (K, 2)


def test_pictures_show_the_landmarks_where_the_answer_says(still: Served) -> None:
    image = still.client.get("/api/images").json()["images"][0]
    pixels = np.asarray(Image.open(io.BytesIO(still.client.get("/pictures/0/large").content)))
    assert pixels.shape == (80, 120, 3)
    for x, y in image["xy"]:  # counted from the corner
        assert pixels[int(y), int(x)].min() > 200
    assert pixels[2, 2].max() < 90


def test_a_cut_out_has_the_landmark_in_its_middle(still: Served) -> None:
    for row in range(5):
        for landmark in range(K):
            content = still.client.get(f"/pictures/{row}/landmark/{landmark}").content
            cut = np.asarray(Image.open(io.BytesIO(content))).astype(int)
            assert cut.shape == (CROP, CROP, 3)
            spot = np.argwhere(cut.min(axis=2) > 190).mean(axis=0)
            # A spot of 5 pixels is about 20 wide here.
            assert np.abs(spot - CROP / 2).max() < 4


def test_galleries_come_in_the_order_asked_for(still: Served) -> None:
    def column(order: str, name: str) -> list[float]:
        crops = still.client.get("/api/gallery/1", params={"order": order}).json()["crops"]
        return [crop[name] for crop in crops]

    assert column("surest", "score") == sorted(column("surest", "score"), reverse=True)
    assert column("least", "row") == column("surest", "row")[::-1]
    assert sorted(column("mixed", "row")) == list(range(5))
    assert still.client.get("/api/gallery/1", params={"order": "odd"}).status_code == 422


def test_mixed_galleries_reach_every_image_and_jump_around(tmp_path: Path) -> None:
    from selfmark.naming.app import _ordered

    rows = _ordered(np.zeros(1000), "mixed")
    assert sorted(rows.tolist()) == list(range(1000))
    assert rows[:20].max() > 700, "the first screen shows the whole data set"


def test_an_image_that_vanished_is_a_plain_answer(toy: Served) -> None:
    (toy.folder / "images" / "image 1.jpg").unlink()
    answer = toy.client.get("/pictures/1/large")
    assert answer.status_code == 404
    assert "cannot be read" in answer.json()["error"]
    (toy.folder / "images" / "image 2.jpg").write_bytes(b"\xff\xd8\xff broken")
    assert toy.client.get("/pictures/2/landmark/0").status_code == 404


def _one(path: Path, size: tuple[int, int], region: list[float], xy: list[float]) -> ShownImages:
    from selfmark.image_ref import ImageRef

    return ShownImages(
        (ImageRef(path),),
        np.array([size], np.int64),
        np.array([region]),
        np.array([[xy]], np.float32),
        np.ones((1, 1), np.float32),
        (None,),
    )


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_a_small_object_in_a_large_photo_is_shown_large(tmp_path: Path, suffix: str) -> None:
    """Large JPEGs are decoded at a fraction, but never so that the object gets lost."""
    pixels = np.zeros((1500, 3000, 3), np.uint8)
    pixels[1000:1100, 2000:2100] = (200, 30, 30)
    pixels[1040:1060, 2040:2060] = 255
    path = tmp_path / f"photo{suffix}"
    Image.fromarray(pixels).save(path, quality=95)
    shown = _one(path, (3000, 1500), [2000.0, 1000.0, 100.0, 100.0], [2049.5, 1049.5])
    made = ImageRenderer(shown, 200.0)
    left, top, right, bottom = made.view(0)
    assert (left, top, right, bottom) == (1992, 992, 2108, 1108)
    large = Image.open(io.BytesIO(made.large(0)))
    assert large.size == (116, 116), "every pixel of it"
    cut = np.asarray(Image.open(io.BytesIO(made.crop(0, 0)))).astype(int)
    middle = np.argwhere(cut.min(axis=2) > 190).mean(axis=0)
    assert np.abs(middle - CROP / 2).max() < 3
    whole = _one(path, (3000, 1500), [0.0, -750.0, 3000.0, 3000.0], [2049.5, 1049.5])
    assert max(Image.open(io.BytesIO(ImageRenderer(whole, 200.0).large(0))).size) == image_renderer.LARGE


def test_a_turned_photo_is_shown_upright(tmp_path: Path) -> None:
    pixels = np.zeros((60, 90, 3), np.uint8)
    pixels[:20, :20] = 255
    image = Image.fromarray(pixels)
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees: the white corner comes to the right
    image.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    shown = _one(tmp_path / "turned.jpg", (60, 90), [0.0, 0.0, 60.0, 90.0], [50.0, 10.0])
    upright = np.asarray(Image.open(io.BytesIO(ImageRenderer(shown, 200.0).large(0))))
    assert upright.shape == (90, 60, 3)
    assert upright[5, 55].min() > 200
    assert upright[5, 5].max() < 50


def test_the_cache_keeps_the_latest_within_its_bound() -> None:
    cache = BoundedCache(100)
    made: list[int] = []

    def make(number: int) -> bytes:
        made.append(number)
        return bytes(40)

    for number in (0, 1, 0, 2, 0, 1):  # 1 gives way to 2, because 0 was asked for again
        cache.get((number, ""), lambda number=number: make(number))
    assert made == [0, 1, 2, 1]
    assert cache._size <= 100
    assert cache.get((9, ""), lambda: bytes(500)) == bytes(500), "too large to keep, but answered"
    assert cache._size == 0


def test_names_on_disk_that_are_no_text_are_answered(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    shown = toy_folder(folder, images=1, name="\udcff<script>{}.jpg")
    with served(folder, shown) as running:
        name = running.client.get("/api/images").json()["images"][0]["name"]
        assert name.endswith("?<script>0.jpg")
        assert running.client.get("/pictures/0/tile").status_code == 200


def test_the_answers_hold_no_more_than_a_page_needs(still: Served) -> None:
    assert len(json.dumps(still.client.get("/api/names").json())) < 2000
    assert still.client.get("/api/images", params={"most": 201}).status_code == 422
