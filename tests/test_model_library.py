"""Test detectors to start from: saving, installing and listing them, and training from their weights.

As in the paper, Phi is the network of Stage 1 and Psi is the network of a detector. `FeaturePsi` is a Psi
that consists of a pretrained encoder and a small head.

Phi is the network that finds and describes keypoints (Stage 1), Psi the network that locates landmarks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

from selfmark import discover, model_library
from selfmark.detector import Detector
from selfmark.errors import InputError
from selfmark.features.loading import load_encoder
from selfmark.model.card import model_folder, read_card
from selfmark.model.feature_network import FeaturePsi
from selfmark.model.network import Phi
from selfmark.model_library import copy_model, install_model, list_models
from selfmark.run.folder import Run
from selfmark.run.tensor_files import read_tensors, write_tensors
from selfmark.train.starting_weights import start_phi, start_student
from tests.conftest import QUICK, selfmark


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFMARK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def test_a_detector_is_saved_installed_and_listed(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "toys.safetensors"
    assert selfmark("models", "save", "demo", file) == 0
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    assert digest in capsys.readouterr().out
    assert selfmark("models", "add", file, "--sha256", digest) == 0
    original, copied = Detector.load("demo"), Detector.load(library / "toys")
    assert copied.card == original.card
    pixels = torch.randint(0, 256, (1, 3, 192, 192), dtype=torch.uint8)
    assert torch.equal(copied.locate(pixels).xy, original.locate(pixels).xy)
    capsys.readouterr()
    assert selfmark("models") == 0
    listed = capsys.readouterr().out
    assert "16 landmarks, efficientnet-lite0, 192 px" in listed
    assert listed.index("demo") < listed.index("toys")


def test_two_installations_at_the_same_time_do_not_mix_their_files(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first installation waits until the second one has unpacked its file but not renamed its folder."""
    demo = model_folder(Path("demo"))
    weights, _ = read_tensors(demo / "weights.safetensors")
    card = json.loads((demo / "model.json").read_text())
    origins = {name: str(tmp_path / f"{name}.safetensors") for name in ("first", "second")}
    for name, origin in origins.items():
        text = json.dumps(card | {"names": [f"{name} {number}" for number in range(len(card["names"]))]})
        write_tensors(weights, {"selfmark_model": text}, Path(origin))
    digest = hashlib.sha256(Path(origins["second"]).read_bytes()).hexdigest()
    unpack = model_library._unpack
    is_first_started, can_first_continue = Event(), Event()
    outcomes: dict[str, str] = {}

    def install(name: str, sha256: str = "") -> None:
        try:
            install_model(origins[name], "x", sha256)
            outcomes[name] = "installed"
        except InputError as error:
            outcomes[name] = str(error)

    first = Thread(target=install, args=("first",))

    def unpack_in_turn(file: Path, origin: str, folder: Path) -> None:
        if origin == origins["first"]:
            is_first_started.set()
            can_first_continue.wait(60)
            unpack(file, origin, folder)
        else:
            unpack(file, origin, folder)
            can_first_continue.set()
            first.join(60)

    monkeypatch.setattr(model_library, "_unpack", unpack_in_turn)
    first.start()
    assert is_first_started.wait(60)
    install("second", digest)
    first.join(60)
    (winner,) = [name for name, outcome in outcomes.items() if outcome == "installed"]
    (message,) = [outcome for outcome in outcomes.values() if outcome != "installed"]
    assert read_card(library / "x").names[0] == f"{winner} 0"
    assert message.startswith(f"{library / 'x'} exists already")
    assert ".part" not in message
    assert [path.name for path in library.iterdir()] == ["x"]


def test_an_installation_that_was_killed_is_not_listed_and_is_removed_by_the_next_one(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "toys.safetensors"
    assert selfmark("models", "save", "demo", file) == 0
    shutil.copytree(model_folder(Path("demo")), library / ".toys.0123abcd.part")
    capsys.readouterr()
    assert [model.name for model in list_models()] == ["demo"]
    assert selfmark("models", "add", file) == 0
    assert [path.name for path in library.iterdir()] == ["toys"]


def test_unusable_detectors_are_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other_weights = tmp_path / "other.safetensors"
    write_tensors({"a": torch.zeros(1)}, {}, other_weights)
    text = tmp_path / "text.safetensors"
    text.write_text("hello")
    forged = tmp_path / "forged.safetensors"
    write_tensors({"a": torch.zeros(1)}, {"selfmark_model": json.dumps({"format": 1})}, forged)
    demo = model_folder(Path("demo"))
    card = {"selfmark_model": (demo / "model.json").read_text()}
    weights, _ = read_tensors(demo / "weights.safetensors")
    name = next(name for name in sorted(weights) if weights[name].ndim > 1)
    unfit = {
        "without": {key: value for key, value in weights.items() if key != name},
        "half": weights | {name: weights[name].half()},
        "shape": weights | {name: weights[name][:1]},
        "extra": weights | {"x": torch.zeros(1)},
    }
    for kind, tensors in unfit.items():
        write_tensors(tensors, card, tmp_path / f"{kind}.safetensors")
    for arguments, message in (
        (
            [tmp_path / "without.safetensors"],
            "cannot be used: weights.safetensors has the wrong tensors",
        ),
        ([tmp_path / "half.safetensors"], f"cannot be used: weights.safetensors: '{name}' is F16"),
        ([tmp_path / "shape.safetensors"], f"cannot be used: weights.safetensors: '{name}' is"),
        ([tmp_path / "extra.safetensors"], "'x' is not expected"),
        ([other_weights], "was not written by 'selfmark models save'"),
        ([text], "is damaged and cannot be read"),
        ([forged], "model.json"),
        ([tmp_path / "missing.safetensors"], "cannot read"),
        ([other_weights, "--sha256", "0" * 64], "has the sha256"),
        ([other_weights, "--sha256", "12"], "takes 64 hexadecimal digits"),
        ([other_weights, "--name", "../x"], "cannot be the name of a detector"),
        (["https://127.0.0.1:9/x.safetensors"], "give the checksum"),
        (["https://127.0.0.1:9/x.safetensors", "--sha256", "0" * 64], "cannot download"),
        (["http://[::1/x.safetensors", "--sha256", "0" * 64], "cannot download"),
        (
            ["http://127.0.0.1:9/\u00fc.safetensors", "--sha256", "0" * 64, "--name=u"],
            "characters or a length",
        ),
        ([f"http://{'a' * 70}.de/x.safetensors", "--sha256", "0" * 64], "cannot download"),
    ):
        assert selfmark("models", "add", *arguments) == 2
        assert message in capsys.readouterr().err.replace("\n", " ")
    assert list(library.iterdir()) == [], "nothing is left behind"


def test_training_starts_from_the_weights_of_a_detector(
    quick_run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = QUICK | {"K": 3}
    run = tmp_path / "run"
    discover(photos, output=run, preset="tiny", settings=settings, device="cpu", start_from=str(quick_run))
    record = json.loads((run / "run.json").read_text())["start_from"]
    assert record["model"] == str(quick_run)
    assert read_card(run / "model").provenance["start_from"] == record
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    (event,) = [event for event in events if event["event"] == "start_from"]
    config = Run.open(run).config
    phi = Phi(config.network)
    assert event["tensors"] == start_phi(phi, run)
    stored, _ = read_tensors(quick_run / "model" / "weights.safetensors")
    for name, value in phi.state_dict().items():
        if name.startswith("backbone."):
            assert torch.equal(value, stored[name])
    assert torch.equal(phi.detector.mix.weight, stored["head.mix.weight"])
    assert not torch.equal(phi.detector.last.weight[0], stored["head.last.weight"][0])
    other_start = ["--resume", "--device=cpu", "--start-from", "demo"]
    assert selfmark("discover", "-o", run, *other_start) == 2
    assert "--start-from cannot change when a run is resumed" in capsys.readouterr().err
    for model, message in (
        ("demo", "but demo has a head of width 128 and depth 2 on efficientnet-lite0"),
        ("dem", "there is no detector 'dem'"),
    ):
        with pytest.raises(InputError, match=message):
            discover(photos, output=tmp_path / "no", preset="tiny", settings=settings, start_from=model)
        assert not (tmp_path / "no").exists(), "nothing is left behind"


def test_a_head_starts_from_all_layers_but_the_last(tmp_path: Path) -> None:
    demo = Detector.load("demo")
    demo.save(tmp_path / "start")
    assert isinstance(demo.psi, FeaturePsi)
    psi = FeaturePsi(load_encoder("efficientnet-lite0"), demo.card.student, 16)
    # The head alternates convolutions and activations. Its last layer is a convolution.
    last = len(psi.head) - 1
    before = psi.head[last].weight.detach().clone()
    num_convolutions = last // 2  # The last convolution is not counted.
    assert start_student(psi, tmp_path) == 2 * num_convolutions, "weights and biases"
    for index in range(0, last, 2):
        assert torch.equal(psi.head[index].weight, demo.psi.head[index].weight)
    assert torch.equal(psi.head[last].weight, before)
    assert start_student(psi, tmp_path / "elsewhere") == 0


def test_special_files_and_numbers_that_are_not_finite_are_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, endless, damaged = (tmp_path / f"{name}.safetensors" for name in ("pipe", "endless", "damaged"))
    os.mkfifo(pipe)
    endless.symlink_to("/dev/zero")
    folder = Path(__file__).parent / "fixtures" / "toy-detector"
    tensors, _ = read_tensors(folder / "weights.safetensors")
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    write_tensors(tensors, {"selfmark_model": (folder / "model.json").read_text()}, damaged)
    for file, message in ((pipe, "regular file"), (endless, "regular file"), (damaged, "not finite")):
        assert selfmark("models", "add", file) == 2
        assert message in capsys.readouterr().err
    assert not any(library.iterdir())
    assert selfmark("weights", "superpoint", "--from", pipe) == 2
    # A detector in a folder was not checked by `models add`, so `copy_model` must check it.
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    write_tensors(tensors, {}, copy / "weights.safetensors")
    with pytest.raises(InputError, match="not finite"):
        copy_model(copy, tmp_path / "run" / "start")
    assert selfmark("models", "save", copy, tmp_path / "saved.safetensors") == 2
    assert "weights.safetensors is damaged" in capsys.readouterr().err
    assert not (tmp_path / "saved.safetensors").exists()
