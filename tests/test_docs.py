"""Docs are part of the work: commands shown run, the settings page is up to date, links lead somewhere."""

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
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest

from selfmark.config import PRESETS
from selfmark.demo.scene import Scene
from selfmark.detector import Detector
from selfmark.keypoints.weights_cache import PUBLISHED_WEIGHTS, cache_folder
from selfmark.paper.reproduction import experiment
from tests.conftest import QUICK, selfmark
from tests.paper.datasets import face_miniatures
from tests.tracking.arena import wander, write_arena_video

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The photographs of the docs have K points; these make a run with them short. Pages ask for up to twenty
# landmarks, so points are looked for in larger images than elsewhere.
_SHORT = {**QUICK, "keypoints.image_size": 128}
SHORT = [f"--set={name}={json.dumps(value)}" for name, value in _SHORT.items() if name not in ("K", "M")]


def _commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|console|sh)\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for line in block.splitlines():
                command = line.strip().removeprefix("$ ").split("  #")[0].strip()
                if command.startswith("selfmark "):
                    found.append(command)
    return list(dict.fromkeys(found))


def test_the_docs_show_commands() -> None:
    shown = {command.split()[1] for command in _commands()}
    assert {
        "discover",
        "predict",
        "export",
        "map",
        "name",
        "evaluate",
        "doctor",
        "report",
        "reproduce",
        "weights",
    } <= shown


@pytest.fixture(scope="module")
def workplace(scene: Scene, labeled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the docs' commands name: photos/, more_photos/, video.mp4, points.csv and so on."""
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(labeled, folder / "labeled")
    for part in ("train", "test"):
        shutil.copytree(folder / "labeled" / "images", folder / "labeled" / part / "images")
        shutil.copy(labeled / "labels.json", folder / "labeled" / part)
    for name in ("photos", "more_photos"):
        (folder / name).mkdir()
        for index, image in enumerate(scene.images):
            cv2.imwrite(str(folder / name / f"{index:03d}.png"), image[..., ::-1])
    video = cv2.VideoWriter(str(folder / "video.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (64, 64))
    for image in scene.images:
        video.write(image[..., ::-1])
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
    _corrected(scene, folder / "corrected.json")
    shutil.copy(folder / "labeled" / "labels.json", folder / "boxes.json")
    shutil.copytree(folder / "labeled" / "images", folder / "images")
    _datasets(folder)
    _birds(folder / "official" / "cub", scene)
    return folder


def _corrected(scene: Scene, path: Path) -> None:
    """photos/ as exported from Label Studio, with their true points."""
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


def _datasets(folder: Path) -> None:
    """Miniatures of data sets, and what detectors found in one of them."""
    face_miniatures.make_celeba(folder / "celeba", images=16, fit_images=12)
    face_miniatures.make_aflw(folder / "aflw_release-2")
    face_miniatures.make_ls3d(folder / "ls3d", train=4, test=6)
    face_miniatures.make_mtfl(folder / "MTFL")
    face_miniatures.make_cub(folder / "CUB_200_2011")
    names = [f"{number:06d}.jpg" for number in range(1, 17)]
    points = [face_miniatures.sixty_eight_points(-60) for _ in names]
    np.savez(folder / "points68.npz", names=np.array(names), xy=np.stack(points))
    face_miniatures.write_lines(
        folder / "faces.csv", ["image,x,y,w,h", *(f"{name},40,70,100,110" for name in names)]
    )


def _birds(root: Path, scene: Scene) -> None:
    """The pictures as CUB-200-2011 would have them: one species, every other image for training."""
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


@pytest.mark.parametrize("command", _commands())
def test_every_command_shown_runs(
    command: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(command)
    name = words[1]
    if name == "weights":
        file = workplace / words[-1]
        if "--from" not in words or not file.exists():
            pytest.skip(
                "needs the network or a weights file; tests/keypoints/test_weights_cache.py covers both"
            )
    wanted = [word for word in words if word in PUBLISHED_WEIGHTS]
    missing = [one for one in wanted if not (cache_folder() / PUBLISHED_WEIGHTS[one].file).exists()]
    if name == "discover" and missing:
        pytest.skip(f"needs the weights of {missing[0]} in the cache")
    if name == "export" or "--runtime" in words:
        pytest.importorskip("onnxruntime")
    if name == "discover" and "--resume" not in words:
        words += [*SHORT, "--preset=tiny"]
        if "--landmarks" not in words and "-k" not in words:
            words += ["-k", "4"]
        words += ["--set=M=24"]
    if name == "reproduce" and "--data" in words:
        words += [*SHORT, "--preset=tiny"]
    monkeypatch.chdir(workplace)
    if name == "name":
        _open_and_end(words)
        return
    code = selfmark(*words[1:])
    assert code == 0, capsys.readouterr().err[-2000:]


def test_the_batch_script_starts_a_run_and_goes_on_with_it(workplace: Path) -> None:
    """Outside a cluster it is a shell script."""
    paths = [str(Path(sys.executable).parent), os.environ["PATH"]]
    settings = os.environ | {"PATH": os.pathsep.join(paths), "PYTHONPATH": str(ROOT / "src")}
    options = [*SHORT, "--preset=tiny", "-k", "4", "--set=M=24", "--device=cpu"]
    command = ["bash", str(ROOT / "examples" / "discover.sbatch"), "photos/", "runs/batch", *options]
    for _ in range(2):
        subprocess.run(command, cwd=workplace, env=settings, check=True, capture_output=True)
        assert (workplace / "runs/batch/model/model.json").exists()
    log = (workplace / "runs/batch/log.jsonl").read_text().splitlines()
    events = [json.loads(line)["event"] for line in log]
    assert events.count("keypoints") == 1  # the second time nothing was done twice
    assert events[-1] == "done"


def _open_and_end(words: list[str]) -> None:
    """A command that goes on until the user ends it: wait for its page, ask for it, press Ctrl-C."""
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("fastapi")
    command = [sys.executable, "-m", *words, "--no-browser", "--port", "0"]  # whichever is free here
    settings = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=settings) as process:
        assert process.stdout is not None
        line = next((line for line in process.stdout if "http://" in line), "")
        try:
            answer = httpx.get(line.split()[-1], follow_redirects=True)
        finally:
            process.send_signal(signal.SIGINT)
        assert "names saved in" in process.stdout.read()
    assert answer.status_code == 200
    assert process.returncode == 0


def _maker(name: str) -> ModuleType:
    """A script that writes a page."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_settings_page_is_up_to_date() -> None:
    page = _maker("make_settings").page()
    assert (ROOT / "docs" / "settings.md").read_text() == page, "run: python docs/make_settings.py"
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) > 60
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 3 + len(PRESETS)
        assert cells[-1], f"{cells[0]} has no comment in config.py"


def test_the_page_of_experiments_is_up_to_date() -> None:
    page = (ROOT / "docs" / "reproduce.md").read_text()
    assert page == _maker("make_reproduce").page(page), "run: python docs/make_reproduce.py"
    rows = [line for line in page.splitlines() if line.startswith("| `selfmark reproduce")]
    assert len(rows) == len(experiment.experiment_names()) + 1


def test_the_picture_shows_the_detector_that_comes_along() -> None:
    demo = _maker("make_demo")
    drawn = cv2.imread(str(demo.PATH))
    expected = demo.picture()[..., ::-1]
    assert drawn is not None
    assert drawn.shape == expected.shape
    # JPEG blurs edges, but a disc that is elsewhere is another color in dozens of pixels.
    differs = np.abs(drawn.astype(int) - expected).max(axis=-1) > 100
    assert differs.mean() < 5e-4, "run: python docs/make_demo.py"


def test_the_picture_of_the_readme_can_be_drawn_again(workplace: Path, tmp_path: Path) -> None:
    maker = _maker("make_readme_picture")
    Detector.load("demo").save(tmp_path / "model")
    images = [str(workplace / "photos" / f"{index:03d}.png") for index in range(5)]
    sheets = []
    for trust in (1.0, 0.0):
        (tmp_path / "metrics.json").write_text(json.dumps({"unlabelled": {"trust": [trust] * 16}}))
        sheets.append(maker.picture(str(tmp_path), images))
    assert sheets[0].shape == (maker.WIDTH // 2 - 1, maker.WIDTH, 3)  # two rows of four, with gaps
    assert (sheets[0] != sheets[1]).any()  # landmarks of low trust are not drawn


def _scripts() -> list[str]:
    """Scripts of this repository that the docs call with options, as they are called."""
    blocks = [
        block for page in PAGES for block in re.findall(r"```.*?\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    parts = [part.strip() for block in blocks for part in re.split(r"&& *\\?\n?|\n", block)]
    return sorted({part for part in parts if re.search(r"\bpython (-m )?(training|benchmarks)\b.* --", part)})


def test_scripts_shown_know_the_options_shown() -> None:
    shown = _scripts()
    assert len(shown) >= 4
    for command in shown:
        call = re.search(r"python ((?:-m )?\S+)(.*)", command)
        assert call is not None
        words = [sys.executable, *call[1].split(), "--help"]
        path = {"PYTHONPATH": "src"} if command.startswith("PYTHONPATH=src ") else {}
        answer = subprocess.run(words, cwd=ROOT, env=os.environ | path, capture_output=True, text=True)
        assert answer.returncode == 0, f"{command}: {answer.stderr}"
        unknown = [word for word in re.findall(r"--[a-z-]+", call[2]) if word not in answer.stdout]
        assert unknown == [], command


def test_imports_shown_work() -> None:
    """Every name that a Python example imports from selfmark exists."""
    shown = re.compile(r"^from (selfmark[\w.]*) import (.+)$", flags=re.MULTILINE)
    missing = []
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
            for module, names in shown.findall(block):
                try:
                    loaded = importlib.import_module(module)
                except ModuleNotFoundError:
                    missing.append(f"{page.name}: {module}")
                    continue
                absent = [name for name in names.split(", ") if not hasattr(loaded, name)]
                missing += [f"{page.name}: {module}.{name}" for name in absent]
    assert missing == []


def _anchors(page: Path) -> set[str]:
    """What forges make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", page.read_text()):
            if "://" in target:
                continue
            path = page.parent / target
            if not path.exists() or (anchor and anchor not in _anchors(path)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []


def test_the_map_shows_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", index.read_text())
    shown = {(index.parent / target).resolve() for target in targets if "://" not in target}
    assert [page.name for page in PAGES if page != index and page.resolve() not in shown] == []


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
    there = {path for path in named if (source / path).exists() or (ROOT / path).exists()}
    assert sorted(set(named) - there) == []
