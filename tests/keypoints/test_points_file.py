"""Test keypoints from a CSV file: coordinates, scores, and invalid files."""

import numpy as np
import pytest
import torch

from selfmark.errors import InputError
from selfmark.keypoints import read_points_file

NAMES = ["/data/a/cat.jpg", "/data/b/cat.jpg", "/data/b/dog.jpg", "clip.mp4#12"]
REGIONS = np.array([[0, 0, 512, 512], [10, 20, 100, 200], [-8, -8, 64, 64], [0, 0, 256, 256]], dtype=float)


def write_and_read(tmp_path, text):
    path = tmp_path / "points.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_points_file(path, NAMES, REGIONS, 256)


def test_points_are_converted_to_network_pixels(tmp_path):
    points = write_and_read(
        tmp_path,
        "image,x,y\ndog.jpg,-0.5,7.5\n/data/a/cat.jpg,0.5,100.5\nclip.mp4#12,3,4\nb/cat.jpg,9.5,219.4\n"
        "/data/a/cat.jpg,511.4,0\n",
    )
    assert points.image_index.tolist() == [0, 0, 1, 2, 3]
    expected = [
        [0.0, 50.0],  # half the size: (0.5 + 0.5) / 2 - 0.5
        [511.9 / 2 - 0.5, -0.25],
        # (9.5, 219.4) + 0.5, minus the region's corner (10, 20), times 256 / (100, 200), minus 0.5
        [-0.5, 199.9 * 256 / 200 - 0.5],
        # (-0.5, 7.5) + 0.5, minus the region's corner (-8, -8), times 256 / 64, minus 0.5
        [31.5, 63.5],
        [3.0, 4.0],
    ]
    torch.testing.assert_close(points.xy, torch.tensor(expected), atol=1e-3, rtol=0)
    assert points.score.tolist() == [1] * 5
    assert points.descriptor is None


def test_points_of_an_image_are_sorted_by_score(tmp_path):
    points = write_and_read(
        tmp_path, "image,x,y,score\ndog.jpg,1,1,0.2\nclip.mp4#12,9,9,1\ndog.jpg,2,2,0.8\n"
    )
    assert points.image_index.tolist() == [2, 2, 3]
    torch.testing.assert_close(points.score, torch.tensor([0.8, 0.2, 1.0]))
    torch.testing.assert_close(points.xy[:, 0], torch.tensor([41.5, 37.5, 9.0]))


def test_a_byte_order_mark_and_blank_lines_are_ignored(tmp_path):
    assert len(write_and_read(tmp_path, "image,x,y\r\n\r\ndog.jpg,1,1\r\n".encode("utf-8-sig"))) == 1


def test_spaces_around_a_name_are_ignored_only_if_no_image_has_them(tmp_path):
    names = [str(tmp_path / name) for name in ("a.png", " a.png", "b.png", "c.png")]
    (tmp_path / " c.png").touch()  # not among the images
    path, regions = tmp_path / "points.csv", np.array([[0, 0, 64, 64]] * 4, dtype=float)
    path.write_text("image,x,y\n a.png,1,1\na.png,2,2\na.png ,3,3\n b.png ,4,4\n")
    points = read_points_file(path, names, regions, 64)
    assert points.image_index.tolist() == [0, 0, 1, 2]
    torch.testing.assert_close(points.xy[:, 0], torch.tensor([2.0, 3, 1, 4]))
    path.write_text("image,x,y\n c.png,1,1\n")
    with pytest.raises(InputError, match=r"there is no image ' c\.png' among the given images"):
        read_points_file(path, names, regions, 64)


def test_points_outside_the_region_are_left_out(tmp_path):
    points = write_and_read(tmp_path, "image,x,y\nb/cat.jpg,9.4,50\nb/cat.jpg,109.6,50\nb/cat.jpg,50,50\n")
    assert len(points) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,x,y\ndog.jpg,1,1\nbird.jpg,1,1\n", r"points\.csv, line 3: there is no image 'bird\.jpg'"),
        ("image,x,y\nc/dog.jpg,1,1\n", r"line 2: there is no image 'c/dog\.jpg'"),
        ("image,x,y\ncat.jpg,1,1\n", r"line 2: 'cat\.jpg' matches 2 images"),
        ("image,x,y\ndog.jpg,nan,1\n", r"line 2: .*finite"),
        ("image,x,y\ndog.jpg,1,inf\n", r"line 2: .*finite"),
        (
            "image,x,y,score\ndog.jpg,1,1,1\ndog.jpg,2,1,1e39\n",
            r"points\.csv, line 3: '2,1,1e39' must be finite",
        ),
        ("image,x,y,score\ndog.jpg,1,1,-1e300\n", r"line 2: .*finite numbers of at most 1e\+30"),
        ("image,x,y\ndog.jpg,1e300,1\n", r"line 2: .*finite numbers of at most 1e\+30"),
        ("image,x,y\ndog.jpg,one,1\n", r"line 2: expected numbers, found 'one,1'"),
        ("image,x,y,score\ndog.jpg,1,1\n", r"line 2: expected 4 values, found 3"),
        ("file,x,y\ndog.jpg,1,1\n", r"must start with 'image,x,y'.*'file,x,y'"),
        ("", r"must start with 'image,x,y'"),
        ("image,x,y\n", r"no point of .*points\.csv"),
        ("image,x,y\ndog.jpg,900,1\n", r"no point of .*points\.csv"),
        (b"image,x,y\n\xff\xfe,1,1\n", r"points\.csv is not a CSV file in UTF-8"),
    ],
)
def test_the_error_says_what_is_wrong_with_the_file(tmp_path, text, message):
    with pytest.raises(InputError, match=message) as caught:
        write_and_read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_the_error_names_a_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read the points file .*absent\.csv"):
        read_points_file(tmp_path / "absent.csv", NAMES, REGIONS, 256)
