"""Write miniatures of data sets of faces and birds in their official layouts, with their irregularities.

Values are handwritten or follow simple rules. No code of selfmark is used to write the files.
"""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from scipy.io import savemat

Points = npt.NDArray[np.float64]


def write_face(path: Path, size: tuple[int, int], points: npt.ArrayLike) -> None:
    """Write an image of a disc with a dot at every point and colored squares for keypoint detectors to find.

    Points are 0-based pixels.
    """
    width, height = size
    image = np.full((height, width, 3), 120, dtype=np.uint8)
    points = np.asarray(points, dtype=np.float64)
    x, y = points.mean(axis=0).astype(int).tolist()
    radius = int(0.4 * min(size))
    cv2.circle(image, (x, y), radius, (170, 190, 220), -1)
    colors = np.random.default_rng(1).integers(0, 255, (5, 5, 3)).tolist()
    for row, column in np.ndindex(5, 5):
        corner = (x + (column - 2) * radius // 3 - 5, y + (row - 2) * radius // 3 - 5)
        cv2.rectangle(image, corner, (corner[0] + 9, corner[1] + 9), colors[row][column], -1)
    for number, point in enumerate(points):
        cv2.circle(image, np.rint(point).astype(int).tolist(), 4, (20 + 40 * (number % 5), 30, 60), -1)
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), image)


def make_five_points(shift: float) -> Points:
    """Return five points of an upright face in the middle of 178 x 218 pixels, moved by `shift`."""
    return np.array([[69, 111], [108, 112], [88, 131], [73, 152], [105, 153]], dtype=np.float64) + shift


def make_sixty_eight_points(shift: float) -> Points:
    """Return 68 points, point k at (100 + k, 200 - 2 k), moved by `shift`."""
    number = np.arange(68, dtype=np.float64)
    return np.stack([100 + number, 200 - 2 * number], axis=1) + shift


def make_rotated_face(yaw: float) -> Points:
    """Return 68 points of a round head that is turned by `yaw` degrees, in an image of 450 x 450 pixels.

    All points that no reader uses individually are on a circle around the head.
    """
    angle = np.linspace(0, 2 * np.pi, 68, endpoint=False)
    head = np.stack([75 * np.cos(angle), 40 + 75 * np.sin(angle), np.full(68, -60.0)], axis=1)
    head[[36, 39, 42, 45]] = [[-44, 0, -4], [-16, 1, 1], [16, 1, 1], [44, 0, -4]]  # corners of the eyes
    head[[27, 30, 33]] = [[0, -4, 11], [0, 37, 34], [0, 47, 21]]  # bridge, tip and base of the nose
    head[[48, 54]] = [[-26, 70, 14], [26, 70, 14]]  # corners of the mouth
    sine, cosine = np.sin(np.radians(yaw)), np.cos(np.radians(yaw))
    return np.stack([225 + cosine * head[:, 0] + sine * head[:, 2], 185 + head[:, 1]], axis=1)


# --- CelebA -----------------------------------------------------------------------------------------

CELEBA_COLUMNS = " ".join(
    f"{part}_{axis}" for part in ("lefteye", "righteye", "nose", "leftmouth", "rightmouth") for axis in "xy"
)


def make_celeba(root: Path, images: int = 8, fit_images: int = 3, folder: str = "img_align_celeba") -> Path:
    """Make images 000001.jpg and so on; the five points of image i are moved by i.

    The images are in `folder`: img_align_celeba for aligned images, img_celeba for images in the wild.
    MAFL's training list has the first `fit_images` images, not in order, and its testing list the last two.
    The list of points has a count, a line of column names, columns of varying width, trailing
    spaces and CRLF.
    """
    names = [f"{number:06d}.jpg" for number in range(1, images + 1)]
    lines = [str(images), CELEBA_COLUMNS + " "]
    for number, name in enumerate(names, 1):
        points = make_five_points(number)
        write_face(root / "Img" / folder / name, (178, 218), points)
        lines.append(f"{name} " + " ".join(f"{value:4.0f}" for value in points.ravel()) + "  ")
    prefix = "" if folder == "img_celeba" else "align_"
    write_lines(root / "Anno" / f"list_landmarks_{prefix}celeba.txt", lines, newline="\r\n")
    boxes = [str(images), "image_id x_1 y_1 width height"]
    boxes += [f"{name}    {40 + number}  {60 + number} 90 120" for number, name in enumerate(names, 1)]
    boxes[2] = f"{names[0]}     0   0   0   0"  # Some boxes of the official list are empty.
    write_lines(root / "Anno" / "list_bbox_celeba.txt", boxes)
    write_lines(
        root / "Eval" / "list_eval_partition.txt", [f"{name} {min(row, 2)}" for row, name in enumerate(names)]
    )
    write_lines(root / "MAFL" / "training.txt", [names[2], names[0], names[1], *names[3:fit_images]])
    write_lines(root / "MAFL" / "testing.txt", names[-2:])
    return root


# --- AFLW -------------------------------------------------------------------------------------------


def make_aflw(root: Path, train: int = 5, test: int = 3) -> Path:
    """Make AFLW as published by Jakab et al. (2018), with y before x and height before width."""
    for part, count in (("train", train), ("test", test)):
        names, points = [], []
        for number in range(count):
            name = f"image{number:05d}_{50000 + number + 100 * (part == 'test')}.jpg"
            xy = make_five_points(number) * 0.8
            write_face(root / "output" / name, (150, 170), xy)
            names.append(name)
            points.append(xy[:, ::-1])
        write_lines(root / f"aflw_{part}_images.txt", names)
        sizes = np.tile(np.array([[170, 150]], dtype=np.uint16), (count, 1))
        savemat(root / f"aflw_{part}_keypoints.mat", {"gt": np.stack(points), "hw": sizes})
    return root


# --- LS3D -------------------------------------------------------------------------------------------


def make_ls3d(root: Path, train: int = 2, test: int = 6) -> Path:
    """Make 300W-LP and LS3D-W Balanced.

    The points of image i are `make_sixty_eight_points(i)`; the files have 1-based coordinates.
    """
    lp = root / "300W_LP"
    for part in ("AFW", "HELEN", "IBUG", "LFPW"):
        for number in range(train):
            name = f"{part}_{134212 + number}_1_0"
            xy = make_sixty_eight_points(number)
            write_face(lp / part / f"{name}.jpg", (450, 450), xy)
            # The file next to an image has a region, parameters of the face model, and 2D points whose jaw
            # follows the visible contour. 2D points are moved by 50 here, to differ from the 3D points.
            savemat(
                lp / part / f"{name}.mat",
                {"pt2d": xy.T + 1 + 50, "roi": np.array([[1, 1, 450, 450]]), "Pose_Para": np.zeros((1, 7))},
            )
            (lp / "landmarks" / part).mkdir(parents=True, exist_ok=True)
            savemat(lp / "landmarks" / part / f"{name}_pts.mat", {"pts_2d": xy + 1 + 50, "pts_3d": xy + 1})
        write_face(lp / f"{part}_Flip" / f"{part}_134212_1_0.jpg", (450, 450), make_sixty_eight_points(0))
    balanced = root / "LS3D-W-balanced-20-03-2017" / "new_dataset"
    for number in range(1, test + 1):
        write_face(balanced / f"{number}.jpg", (450, 450), make_sixty_eight_points(number))
        write_t7(balanced / f"{number}.t7", make_sixty_eight_points(number) + 1)
    return root


def write_t7(path: Path, values: npt.ArrayLike, kind: str = "Float") -> None:
    """Write a tensor in the format of Lua's `torch.save`, with integers of 64 bits.

    The file contains the tensor's sizes and strides, then its storage with the values. Both parts start with
    a 4, which marks a Torch object, and with the number of the object in the file.
    """
    tensor = np.ascontiguousarray(values, dtype="<f4" if kind == "Float" else "<f8")

    def encode(word: str) -> bytes:
        return struct.pack("<i", len(word)) + word.encode()

    sizes, strides = tensor.shape, [step // tensor.itemsize for step in tensor.strides]
    path.write_bytes(
        struct.pack("<ii", 4, 1)
        + encode("V 1")
        + encode(f"torch.{kind}Tensor")
        + struct.pack(f"<i{2 * len(sizes) + 1}q", len(sizes), *sizes, *strides, 1)
        + struct.pack("<ii", 4, 2)
        + encode("V 1")
        + encode(f"torch.{kind}Storage")
        + struct.pack("<q", tensor.size)
        + tensor.tobytes()
    )


# --- MTFL -------------------------------------------------------------------------------------------


def make_mtfl(root: Path) -> Path:
    """Make MTFL, whose lists have five x before five y, leading spaces, and backslashes in training.txt."""
    training = [
        r"lfw_5590\Aaron_Eckhart_0001.jpg 107.250000 147.750000 126.250000 106.250000 140.750000 "
        "113.250000 113.750000 136.250000 158.750000 160.250000 1 1 2 3",
        r" net_7876\_40_1154_0.jpg 91.000000 196.000000 174.000000 115.000000 198.000000 "
        "149.000000 141.000000 206.000000 262.000000 256.000000 2 1 2 4",
        r" net_7876\111_0_0.jpg 70.000000 120.000000 95.000000 75.000000 115.000000 "
        "80.000000 80.000000 105.000000 130.000000 130.000000 2 2 1 5",
    ]
    testing = [
        "AFLW/0001-image20056.jpg 56.607985 101.326679 79.548094 43.831216 93.196007 "
        "43.250454 58.059891 69.965517 86.226860 103.940109 1 1 2 3",
        " AFLW/0016-image55673.jpg 64.157895 101.036298 67.932849 72.578947 111.199637 "
        "45.863884 42.960073 74.030853 94.647913 86.226860 2 1 2 1",
    ]
    for lines, name, size in ((training, "training.txt", (300, 300)), (testing, "testing.txt", (150, 150))):
        for line in lines:
            words = line.split()
            values = np.array([float(word) for word in words[1:11]])
            write_face(root / words[0].replace("\\", "/"), size, values.reshape(2, 5).T - 1)
        write_lines(root / name, lines, newline="\r\n")
    return root


# --- CUB --------------------------------------------------------------------------------------------

CUB_SPECIES = ("001.Black_footed_Albatross", "009.Brewer_Blackbird", "014.Indigo_Bunting")


def make_cub(root: Path) -> Path:
    """Make six birds of three species.

    Image n has part p at (10 n + p, 20 n + p). Every third part is hidden, as are all parts of the last
    image.
    """
    names, split, boxes, parts = [], [], [], []
    for number in range(1, 7):
        species = CUB_SPECIES[(number - 1) // 2]
        file = f"{species}/{species[4:]}_{number:04d}_{1000 + number}.jpg"
        write_face(root / "images" / file, (200, 180), np.full((1, 2), 90.0))
        names.append(f"{number} {file}")
        split.append(f"{number} {number % 2}")
        boxes.append(f"{number} {5.0 + number} 7.0 120.0 100.0")
        for part in range(1, 16):
            is_visible = part % 3 != 0 and number != 6  # The last image has no visible part.
            location = f"{10.0 * number + part} {20.0 * number + part} 1" if is_visible else "0.0 0.0 0"
            parts.append(f"{number} {part} {location}")
    for name, lines in (("images", names), ("train_test_split", split), ("bounding_boxes", boxes)):
        write_lines(root / f"{name}.txt", lines)
    write_lines(root / "parts" / "part_locs.txt", parts)
    return root


def write_lines(path: Path, lines: list[str], newline: str = "\n") -> None:
    """Write lines to a text file, creating its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((newline.join(lines) + newline).encode())
