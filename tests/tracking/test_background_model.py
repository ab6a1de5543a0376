"""Test background subtraction on generated frames whose background is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from selfmark.config import Tracking
from selfmark.errors import InputError
from selfmark.images.video import VideoInfo
from selfmark.tracking import background_model as background_module
from selfmark.tracking.background_model import Background, learn_background, require_background_size

Frames = npt.NDArray[np.uint8]  # [T, H, W, 3]
Learn = Callable[..., Background]
SETTINGS = Tracking(num_samples=20)
HEIGHT, WIDTH = 80, 120
# The scene is brighter than an animal.
SCENE = (100 + np.arange(WIDTH) % 50)[None].repeat(HEIGHT, 0).astype(np.uint8)
ANIMAL = 20  # side of the square animal, pixels


@pytest.fixture
def learn(monkeypatch: pytest.MonkeyPatch) -> Learn:
    """Return a function that learns the background of frames in memory instead of a video file."""

    def learn_frames(frames: Frames, animals: int = 1, settings: Tracking = SETTINGS) -> Background:
        info = VideoInfo(len(frames), 25.0, (WIDTH, HEIGHT), np.arange(len(frames)) / 25)

        def read(path: Path, numbers: Sequence[int]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
            yield from ((number, frames[number]) for number in numbers)

        monkeypatch.setattr(background_module, "probe_video", lambda path: info)
        monkeypatch.setattr(background_module, "read_frames", read)
        return learn_background(Path("arena.mp4"), animals, settings)

    return learn_frames


def draw(*corners: tuple[int, int], scene: npt.NDArray[np.uint8] = SCENE) -> npt.NDArray[np.uint8]:
    """Draw dark squares with these upper left corners (x, y) on the scene, [H, W, 3]."""
    image = scene.copy()
    for x, y in corners:
        image[y : y + ANIMAL, x : x + ANIMAL] = 10
    return image[..., None].repeat(3, 2)


def draw_moving_square(frames: int = 20) -> Frames:
    """Draw a square that moves 5 pixels to the right per frame, so it covers a pixel in at most 4 frames."""
    return np.stack([draw((5 * number, 30)) for number in range(frames)])


def test_the_background_is_the_scene_without_the_animal(learn: Learn) -> None:
    background = learn(draw_moving_square())
    np.testing.assert_array_equal(background.gray, SCENE)
    assert background.scale == 1.0
    assert SETTINGS.min_contrast <= background.threshold < 90, "the animal is at least 90 gray levels darker"
    assert background.area == pytest.approx(ANIMAL**2, rel=0.1)


def test_the_learned_area_is_that_of_a_single_animal(learn: Learn) -> None:
    frames = np.stack([draw((5 * number, 10), (95 - 5 * number, 50)) for number in range(20)])
    assert learn(frames, animals=2).area == pytest.approx(ANIMAL**2, rel=0.1)


def test_large_frames_are_reduced(learn: Learn) -> None:
    background = learn(draw_moving_square(), settings=Tracking(num_samples=20, max_side=60))
    assert background.scale == 0.5
    assert background.gray.shape == (HEIGHT // 2, WIDTH // 2)
    assert background.area == pytest.approx((ANIMAL / 2) ** 2, rel=0.2)
    assert background.foreground(draw((40, 30))).shape == background.gray.shape


def test_the_foreground_is_the_animal(learn: Learn) -> None:
    mask = learn(draw_moving_square()).foreground(draw((47, 13)))
    assert mask.dtype == np.uint8
    rows, columns = np.nonzero(mask)
    assert (columns.mean(), rows.mean()) == pytest.approx((47 + 9.5, 13 + 9.5), abs=0.3)
    assert mask.sum() == pytest.approx(ANIMAL**2, rel=0.1)
    assert learn(draw_moving_square()).foreground(draw()).sum() == 0, "an empty scene has no foreground"


def test_thin_parts_are_removed(learn: Learn) -> None:
    background = learn(draw_moving_square())
    with_tail = draw((47, 13))
    with_tail[22:24, 67:110] = 10  # The tail is 2 pixels wide.
    tail = background.foreground(with_tail)[:, 72:]
    assert tail.sum() == 0


def test_a_change_of_overall_brightness_is_not_foreground(learn: Learn) -> None:
    background = learn(draw_moving_square())
    brighter = draw((47, 13)) + np.uint8(40)
    np.testing.assert_array_equal(background.foreground(brighter), background.foreground(draw((47, 13))))


def test_differences_that_do_not_fit_eight_bits_are_foreground() -> None:
    """The scene loses 200 gray levels and the animal gains 60, so their difference does not fit 8 bits."""
    scene = np.full((HEIGHT, WIDTH), 250, np.uint8)
    scene[25:55, 35:65] = 5
    darker = np.full((HEIGHT, WIDTH, 3), 50, np.uint8)
    darker[25:55, 35:65] = 65
    background = Background(scene, 1.0, 12.0, np.ones((3, 3), np.uint8), ANIMAL**2)
    assert background.foreground(darker)[30:50, 40:60].all()


def test_a_scene_without_motion_has_no_animals(learn: Learn) -> None:
    with pytest.raises(InputError, match=r"arena\.mp4: no animals were found"):
        learn(np.repeat(draw((47, 13))[None], 20, axis=0))


def test_a_moving_camera_is_rejected(learn: Learn) -> None:
    """Bright and dark stripes move by half their period, so every pixel changes in every frame."""
    stripes = (np.arange(WIDTH) // 20 % 2 * 200 + 20).astype(np.uint8)
    frames = [np.roll(stripes, 20 * (number % 2))[None].repeat(HEIGHT, 0) for number in range(20)]
    with pytest.raises(InputError, match="The camera must be fixed"):
        learn(np.stack(frames)[..., None].repeat(3, 3))


def test_unreadable_frames_are_reported(learn: Learn, monkeypatch: pytest.MonkeyPatch) -> None:
    learn(draw_moving_square())
    monkeypatch.setattr(background_module, "read_frames", lambda path, numbers: iter(()))
    with pytest.raises(InputError, match=r"no frame of arena\.mp4 could be read"):
        learn_background(Path("arena.mp4"), 1, SETTINGS)


def test_frames_must_have_the_same_size() -> None:
    require_background_size(Path("a.mp4"), 3, draw(), (WIDTH, HEIGHT))
    with pytest.raises(InputError, match=r"frame 3 of a\.mp4 differs in size from the first frame"):
        require_background_size(Path("a.mp4"), 3, draw(), (HEIGHT, WIDTH))
