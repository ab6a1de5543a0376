"""Test the documentation: commands run, generated pages and pictures are up to date, and links work."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from selfmark import __all__ as public_names
from selfmark.config import PRESETS
from selfmark.config.presets import DEFAULT_FEATURES
from selfmark.demo.scene import Scene, generate_scene
from selfmark.detector import Detector
from selfmark.image_ref import ImageRef
from selfmark.model.card import read_card
from selfmark.naming import server as naming_server
from selfmark.naming.corrections import CorrectionFile, MovePoint
from selfmark.naming.shown_images import select_shown_images
from selfmark.paper.reproduction import experiment
from selfmark.weights_cache import PUBLISHED_WEIGHTS, cache_folder
from tests.conftest import QUICK_FEATURES, selfmark, write_labeled
from tests.paper.datasets import face_miniatures
from tests.processes import FORKSERVER
from tests.tracking.arena import wander, write_arena_video

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Settings that make the documented runs short. The pages ask for up to twenty landmarks. So keypoints are
# detected in larger images than in other tests, which gives more keypoints.
_SHORT = {
    **QUICK_FEATURES,
    "keypoints.image_size": 96,
    "features.sample": 2000,
    "student.rounds": 1,
    "student.iterations": 2,
    "warmup.iterations": 2,
    "rounds.count": 1,
    "rounds.iterations": 2,
    "stage2.iterations": 2,
    "runtime.checkpoint_every": 100,
    "methods.iterations": 2,
    "methods.batch": 2,
}
SHORT = [
    f"--set={name}={json.dumps(value)}"
    for name, value in _SHORT.items()
    if name not in ("K", "M", "features.name")
]


def _list_commands() -> list[str]:
    """Return the different `selfmark` commands in the code blocks of the docs."""
    commands = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|console|sh)\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.splitlines():
                command = line.strip().removeprefix("$ ").split("  #")[0].strip()
                if command.startswith("selfmark "):
                    commands.append(command)
    return list(dict.fromkeys(commands))


def test_the_docs_show_the_main_commands() -> None:
    shown = {command.split()[1] for command in _list_commands()}
    assert {
        "check",
        "discover",
        "watch",
        "predict",
        "export",
        "map",
        "name",
        "correct",
        "refine",
        "models",
        "evaluate",
        "compare",
        "doctor",
        "report",
        "reproduce",
        "weights",
    } <= shown


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that documented commands use, such as photos/ and video.mp4."""
    # Commands run in this folder, where the fork server would not find the modules that it imports. So the
    # server must start first.
    forkserver.ensure_running()
    folder = tmp_path_factory.mktemp("docs")
    scene = generate_scene(16, 64, seed=5)
    write_labeled(scene, folder / "labeled")
    for part in ("train", "test"):
        shutil.copytree(folder / "labeled" / "images", folder / "labeled" / part / "images")
        shutil.copy(folder / "labeled" / "labels.json", folder / "labeled" / part)
    for name in ("photos", "more_photos"):
        (folder / name).mkdir()
        for index, image in enumerate(scene.images):
            cv2.imwrite(str(folder / name / f"{index:03d}.png"), image[..., ::-1])
    video = cv2.VideoWriter(str(folder / "video.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for image in scene.images:
        video.write(image[..., ::-1])
    video.release()
    video = cv2.VideoWriter(str(folder / "mirror.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (396, 406))
    for image in scene.images[:12]:
        views = [cv2.resize(image, (396, 168)), cv2.resize(image[::-1], (396, 238))]
        for _ in range(4):  # The page uses every fourth frame.
            video.write(np.concatenate(views)[..., ::-1])
    video.release()
    rows = [
        f"{index:03d}.png,{x:.2f},{y:.2f}"
        for index, points in enumerate(scene.xy)
        for x, y in points.clip(1, 62)
    ]
    (folder / "points.csv").write_text("\n".join(["image,x,y", *rows]))
    write_arena_video(wander(40, 2, seed=2), folder / "arena.mp4")
    boxes = [f"{frame},{20 + frame},30,60,60,{track}" for frame in range(40) for track in (1, 2)]
    (folder / "boxes.csv").write_text("\n".join(["frame,x,y,w,h,track", *boxes]))
    (folder / "labels").mkdir()
    for frame in range(1, 41, 3):
        (folder / "labels" / f"arena_{frame}.txt").write_text("0 0.5 0.5 0.4 0.5 0.9\n")
    _write_corrected_labels(scene, folder / "corrected.json")
    shutil.copy(folder / "labeled" / "labels.json", folder / "boxes.json")
    shutil.copytree(folder / "labeled" / "images", folder / "images")
    if importlib.util.find_spec("onnx"):
        from tests.features.onnx_models import make_model

        (folder / "features.onnx").write_bytes(make_model())
    _write_datasets(folder)
    _write_birds(folder / "official" / "cub", scene)
    return folder


def _write_corrected_labels(scene: Scene, path: Path) -> None:
    """Write the true points of photos/ as a Label Studio export."""
    height, width = scene.images[0].shape[:2]
    size = {"original_width": width, "original_height": height}
    tasks = []
    for index, points in enumerate(scene.xy):
        percent = (points.clip(1, 62) + 0.5) / (width, height) * 100
        values = [{"x": x, "y": y, "keypointlabels": [f"p{k}"]} for k, (x, y) in enumerate(percent.tolist())]
        result = [{"type": "keypointlabels", "value": value, **size} for value in values]
        data = {"image": f"/data/local-files/?d=photos/{index:03d}.png"}
        tasks.append({"data": data, "annotations": [{"result": result}]})
    path.write_text(json.dumps(tasks))


def _write_datasets(folder: Path) -> None:
    """Write miniature data sets, and boxes and points for CelebA as detectors would find them."""
    face_miniatures.make_celeba(folder / "celeba", images=16, fit_images=12)
    face_miniatures.make_aflw(folder / "aflw_release-2")
    face_miniatures.make_ls3d(folder / "ls3d", train=4, test=6)
    face_miniatures.make_mtfl(folder / "MTFL")
    face_miniatures.make_cub(folder / "CUB_200_2011")
    names = [f"{number:06d}.jpg" for number in range(1, 17)]
    points = [face_miniatures.make_sixty_eight_points(-60) for _ in names]
    np.savez(folder / "points68.npz", names=np.array(names), xy=np.stack(points))
    face_miniatures.write_lines(
        folder / "faces.csv", ["image,x,y,w,h", *(f"{name},40,70,100,110" for name in names)]
    )


def _write_birds(root: Path, scene: Scene) -> None:
    """Write the pictures of a scene as one species in the layout of CUB-200-2011, two thirds for training."""
    (root / "images" / "001.Toy_Bird").mkdir(parents=True)
    (root / "parts").mkdir()
    lists: dict[str, list[str]] = {
        "images.txt": [],
        "train_test_split.txt": [],
        "bounding_boxes.txt": [],
        "parts/part_locs.txt": [],
    }
    for number, (image, points) in enumerate(zip(scene.images, scene.xy, strict=True), 1):
        cv2.imwrite(str(root / "images" / "001.Toy_Bird" / f"{number}.png"), image[..., ::-1])
        lists["images.txt"].append(f"{number} 001.Toy_Bird/{number}.png")
        lists["train_test_split.txt"].append(f"{number} {int(number % 3 > 0)}")
        lists["bounding_boxes.txt"].append(f"{number} 2.0 2.0 60.0 60.0")
        lists["parts/part_locs.txt"] += [
            f"{number} {part} {x:.1f} {y:.1f} 1" for part, (x, y) in enumerate(points[:15], 1)
        ]
    for name, lines in lists.items():
        (root / name).write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def done() -> set[str]:
    """Return the set to which tests add the commands that have run in the workspace."""
    return set()


@pytest.mark.parametrize("command", _list_commands())
def test_every_documented_command_runs(
    command: str,
    workspace: Path,
    done: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(workspace)
    for needed in [*_list_needed_commands(command), command]:
        if needed not in done:
            with monkeypatch.context() as patch:
                code = _run_documented_command(needed, patch)
            assert code == 0, capsys.readouterr().err[-2000:]
            done.add(needed)


# Mapping from a command to another command that must run before it. Commands that write the folder that the
# command reads are not listed here.
_FIRST_COMMANDS = {
    "selfmark refine runs/cats --undo": "selfmark refine runs/cats",
    "selfmark models add cats.safetensors": "selfmark models save runs/cats cats.safetensors",
    "selfmark predict runs/cats more_photos/ --mapped -o out/mapped": (
        "selfmark map runs/cats --labels labeled/labels.json"
    ),
    "selfmark predict runs/cats more_photos/ --runtime onnx -o out/onnx": (
        "selfmark export runs/cats --onnx --int8"
    ),
    "selfmark predict runs/cats more_photos/ --runtime onnx-int8 -o out/int8": (
        "selfmark export runs/cats --onnx --int8"
    ),
}


def _list_needed_commands(command: str) -> list[str]:
    """Return the documented commands that must have run before this one, in order."""
    direct = [_FIRST_COMMANDS[command]] if command in _FIRST_COMMANDS else []
    words = shlex.split(command)
    inputs = [word for word, before in zip(words[1:], words, strict=False) if before != "-o"]
    if "--resume" in words:
        inputs.append(words[words.index("-o") + 1])
    for other in _list_commands():
        output = re.search(r" -o (\S+)", other)
        is_input = output and any(f"{word}/".startswith(f"{output[1].rstrip('/')}/") for word in inputs)
        if is_input and other != command and "--resume" not in other:
            direct.append(other)
    needed = [before for other in direct for before in [*_list_needed_commands(other), other]]
    return list(dict.fromkeys(needed))


def test_needed_commands_are_listed_in_order() -> None:
    needed = {command: _list_needed_commands(command) for command in _list_commands()}
    assert needed["selfmark check photos/ -k 20"] == []
    discovery = "selfmark discover photos/ -k 20 -o runs/cats"
    assert needed["selfmark discover -o runs/cats --resume"] == [discovery]
    assert needed["selfmark models add cats.safetensors"] == [
        discovery,
        "selfmark models save runs/cats cats.safetensors",
    ]
    assert set(_FIRST_COMMANDS) | set(_FIRST_COMMANDS.values()) <= needed.keys()


def _run_documented_command(command: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command in the current folder, with options that make it short; return its exit code."""
    words = shlex.split(command)
    name = words[1]
    if name == "weights" and ("--from" not in words or not Path(words[-1]).exists()):
        pytest.skip("needs the network or a weights file; tests/test_weights_cache.py covers both")
    networks = [word for word in words if word in PUBLISHED_WEIGHTS]
    missing = [
        network for network in networks if not (cache_folder() / PUBLISHED_WEIGHTS[network].file).exists()
    ]
    if name == "discover" and missing:
        pytest.skip(f"needs the weights of {missing[0]} in the cache")
    if name == "export" or "--runtime" in words or "onnx:features.onnx" in words:
        pytest.importorskip("onnxruntime")
    if name == "discover" and "--resume" not in words:
        words += [*SHORT, "--preset=tiny"]
        # zero-shot needs features, and --preset=tiny replaces auto, the only preset that has them.
        if "zero-shot" in words and "--features" not in words:
            words += ["--features", DEFAULT_FEATURES]
        if "--landmarks" not in words and "-k" not in words:
            words += ["-k", "4"]
        words += ["--set=M=24"]
    if name == "check":
        words += [*SHORT, "--preset=tiny"]
        monkeypatch.setattr("selfmark.inspection.run_estimate.MEASURED_SECONDS", 0.0)
    if name == "models":
        monkeypatch.setenv("SELFMARK_CACHE", str(Path("cache").absolute()))
    if name == "compare":
        words += [*SHORT, "--budget=1s"]  # The preset stays auto, because zero-shot needs features.
        # New processes start slowly. So processes are forked here, from one that has imported torch. The
        # tests in tests/comparison start new processes.
        monkeypatch.setattr("selfmark.comparison.runner.multiprocessing.get_context", lambda _: FORKSERVER)
    if name == "reproduce" and "--data" in words:
        words += [*SHORT, "--preset=tiny"]
    farewells = {"name": "names saved in", "correct": "nothing was corrected", "watch": ""}
    if name in farewells:
        if name == "name":
            _predict_shown_landmarks(words, monkeypatch)
        _open_and_close_page(words, farewells[name])
        return 0
    if name == "refine" and "--undo" not in words:
        _correct_a_landmark(Path(words[2]), Path("photos/000.png").absolute())
        words += ["--force", "--set=refinement.iterations=1", "--set=refinement.views=1", "--device=cpu"]
    return selfmark(*words[1:])


def _predict_shown_landmarks(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict the landmarks for `selfmark name`, which then need not start a process that imports torch.

    Do nothing for `selfmark name runs/cats`, so that one command still predicts in a new process.
    """
    if words[2:] == ["runs/cats"]:
        return
    run, *images = [word for word in words[2:] if not word.startswith("-") and not word.isdecimal()]
    monkeypatch.setattr(naming_server, "_predict_in_child", naming_server._predict_landmarks)
    naming_server.prepare_shown_images(Path(run), select_shown_images(Path(run), images, 400), "auto")


def test_the_batch_script_starts_a_run_and_resumes_it(workspace: Path) -> None:
    """Outside a cluster, the batch script is an ordinary shell script."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = os.environ | {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT / "src")}
    options = [*SHORT, "--preset=tiny", "-k", "4", "--set=M=24", "--device=cpu"]
    command = ["bash", str(ROOT / "examples" / "discover.sbatch"), "photos/", "runs/batch", *options]
    for _ in range(2):
        subprocess.run(command, cwd=workspace, env=environment, check=True, capture_output=True)
        assert (workspace / "runs/batch/model/model.json").exists()
    log = (workspace / "runs/batch/log.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in log]
    assert events.count("keypoints") == 1  # Resuming a finished run repeats nothing.
    assert events[-1] == "done"


def _correct_a_landmark(run: Path, image: Path) -> None:
    """Move landmark 0 of an image, as a user does on the page of `selfmark correct`."""
    card = read_card(run / "model")
    predicted = [[(30.0, 30.0)] * len(card.names)]
    CorrectionFile(run).edit([MovePoint(0, 0, 31.0, 32.0)], card, [ImageRef(image)], [(64, 64)], predicted)


def _open_and_close_page(words: list[str], farewell: str) -> None:
    """Run a command that serves a page: wait for the address, request the page, and interrupt the command."""
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    command = [sys.executable, "-m", *words, "--no-browser", "--port", "0"]  # Port 0 means any free port.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if "http://" in line), "")
        try:
            response = httpx.get(line.split()[-1], follow_redirects=True)
        finally:
            process.send_signal(signal.SIGINT)
        assert farewell in process.stdout.read()
    assert response.status_code == 200
    assert process.returncode == 0


def _load_script(name: str) -> ModuleType:
    """Import a script of the docs folder that writes a page or a picture."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_settings_page_is_up_to_date() -> None:
    page = _load_script("make_settings").build_page()
    assert (ROOT / "docs" / "settings.md").read_text() == page, "run: python docs/make_settings.py"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3 + len(PRESETS)
        assert cells[-1], f"{cells[0]} has no comment in src/selfmark/config"


def test_the_table_of_experiments_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert page == _load_script("make_reproduce").build_page(page), "run: python docs/make_reproduce.py"
    rows = [line for line in page.splitlines() if line.startswith("| `selfmark reproduce")]
    assert len(rows) == len(experiment.list_experiment_names()) + 1


def test_the_demo_picture_is_up_to_date() -> None:
    demo = _load_script("make_demo")
    saved = cv2.imread(str(demo.PATH))
    redrawn = demo.draw_picture()[..., ::-1]
    assert saved is not None
    assert saved.shape == redrawn.shape
    # JPEG compression changes edges only slightly. A disc at another position changes dozens of pixels a lot.
    is_changed = np.abs(saved.astype(int) - redrawn).max(axis=-1) > 100
    assert is_changed.mean() < 5e-4, "run: python docs/make_demo.py"


def test_the_readme_picture_can_be_redrawn(workspace: Path, tmp_path: Path) -> None:
    script = _load_script("make_readme_picture")
    Detector.load("demo").save(tmp_path / "model")
    images = [str(workspace / "photos" / f"{index:03d}.png") for index in range(5)]
    sheets = []
    for trust in (1.0, 0.0):
        (tmp_path / "metrics.json").write_text(json.dumps({"unlabelled": {"trust": [trust] * 16}}))
        sheets.append(script.draw_picture(str(tmp_path), images))
    assert sheets[0].shape == (script.WIDTH // 2 - 1, script.WIDTH, 3)  # Two rows of four images have gaps.
    assert (sheets[0] != sheets[1]).any()  # Landmarks of low trust are not drawn.


def test_pictures_of_features_can_be_redrawn(workspace: Path, tmp_path: Path) -> None:
    script = _load_script("make_features_pictures")
    for name in ("first", "second"):
        Detector.load("demo").save(tmp_path / name)
    runs = [str(tmp_path / name) for name in ("first", "second")]
    images = [str(workspace / "photos" / f"{index:03d}.png") for index in range(3)]
    sheet = script.draw_picture(runs, images)
    assert sheet.shape[1:] == (script.WIDTH, 3)
    assert abs(sheet.shape[0] - script.WIDTH * 2 / 3) < 2  # Each run has a row.
    half = sheet.shape[0] // 2
    # Both runs have the same detector, so both rows are alike except for the resampling.
    rows = sheet[: half - 2].astype(int), sheet[-(half - 2) :]
    assert np.abs(rows[0] - rows[1]).mean() < 10


def _list_script_calls() -> list[str]:
    """Return the documented commands that call a script of this repository with options."""
    blocks = [
        block for page in PAGES for block in re.findall(r"```.*?\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    commands = [command.strip() for block in blocks for command in re.split(r"&& *\\?\n?|\n", block)]
    return sorted(
        {
            command
            for command in commands
            if re.search(r"\bpython (-m )?(training|benchmarks)\b.* --", command)
        }
    )


def test_scripts_accept_their_documented_options() -> None:
    calls = _list_script_calls()
    assert len(calls) >= 4
    for command in calls:
        call = re.search(r"python ((?:-m )?\S+)(.*)", command)
        assert call is not None
        words = [sys.executable, *call[1].split(), "--help"]
        variables = {"PYTHONPATH": "src"} if command.startswith("PYTHONPATH=src ") else {}
        result = subprocess.run(words, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True)
        assert result.returncode == 0, f"{command}: {result.stderr}"
        unknown = [word for word in re.findall(r"--[a-z-]+", call[2]) if word not in result.stdout]
        assert unknown == [], command


def test_examples_use_only_the_public_api() -> None:
    """Python examples import selfmark as a whole, and every `selfmark.NAME` in them is public."""
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            assert not re.search(r"^from selfmark\b|^import selfmark\.", block, flags=re.MULTILINE), page.name
            names = set(
                re.findall(r"(?<![\"'])\bselfmark\.([A-Za-z]\w*)", block)
            )  # Names in strings do not count.
            assert names <= set(public_names), page.name


def _list_anchors(page: Path) -> set[str]:
    """Return the anchors that websites such as GitHub derive from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_work() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", page.read_text()):
            if "://" in target:
                continue
            path = page.parent / target
            if not path.exists() or (anchor and anchor not in _list_anchors(path)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_docs_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", index.read_text())
    linked = {(index.parent / target).resolve() for target in targets if "://" not in target}
    assert [page.name for page in PAGES if page != index and page.resolve() not in linked] == []


def test_the_architecture_page_lists_every_package_and_only_existing_modules() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    source = ROOT / "src" / "selfmark"
    packages = [f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()]
    modules = [path.name for path in source.glob("*.py") if not path.name.startswith("_")]
    assert [name for name in packages + modules if f"`{name}" not in page] == []
    named = re.findall(r"`([a-z0-9_/]+\.py)`", page)
    for package, purpose in re.findall(r"^\| `([a-z_]+/)` \| (.*) \|.*\|$", page, flags=re.MULTILINE):
        named += [f"{package}{module}.py" for module in re.findall(r"`([a-z0-9_]+)`", purpose)]
    assert len(named) > 40
    existing = {path for path in named if (source / path).exists() or (ROOT / path).exists()}
    assert sorted(set(named) - existing) == []
