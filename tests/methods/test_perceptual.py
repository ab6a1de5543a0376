"""Test perceptual features: the layers of VGG16, its weights file, and comparisons of images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from selfmark.errors import InputError
from selfmark.methods.perceptual import PerceptualFeatures, Vgg16, load_perceptual_features

_CPU = torch.device("cpu")
# Mapping from the positions of the convolutions in torchvision's `vgg16().features`, up to the fourth block,
# to their numbers of input and output channels.
_CONVOLUTIONS = {
    0: (3, 64),
    2: (64, 64),
    5: (64, 128),
    7: (128, 128),
    10: (128, 256),
    12: (256, 256),
    14: (256, 256),
    17: (256, 512),
    19: (512, 512),
    21: (512, 512),
}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    result = {}
    for layer, (inputs, outputs) in _CONVOLUTIONS.items():
        scale = (2 / (9 * inputs)) ** 0.5
        result[f"features.{layer}.weight"] = scale * torch.randn(outputs, inputs, 3, 3, generator=generator)
        result[f"features.{layer}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
    result["classifier.0.bias"] = torch.zeros(1)  # the classifier is not needed and is ignored
    return result


@pytest.fixture(scope="module")
def vgg16_file(weights: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("vgg16") / "vgg16.safetensors"
    save_file(weights, path)
    return str(path)


def _draw_images(seed: int, size: int = 32) -> Tensor:
    return torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def test_layers_match_torchvision(weights: dict[str, Tensor]) -> None:
    own_weights = Vgg16().state_dict()
    assert {name: value.shape for name, value in own_weights.items()} == {
        name: value.shape for name, value in weights.items() if name.startswith("features.")
    }


def test_maps_are_the_last_activation_of_each_block(vgg16_file: str, weights: dict[str, Tensor]) -> None:
    features = load_perceptual_features(vgg16_file, _CPU)
    images = _draw_images(0)
    maps = features(images)
    assert features.name == "VGG16"
    assert [tuple(values.shape) for values in maps] == [
        (1, 64, 32, 32),
        (1, 128, 16, 16),
        (1, 256, 8, 8),
        (1, 512, 4, 4),
    ]
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = (images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1)
    for block, layers in enumerate(((0, 2), (5, 7), (10, 12, 14), (17, 19, 21))):
        x = F.max_pool2d(x, 2) if block else x
        for layer in layers:
            weight, bias = weights[f"features.{layer}.weight"], weights[f"features.{layer}.bias"]
            x = F.conv2d(x, weight, bias, padding=1).relu()
        torch.testing.assert_close(maps[block], x)


@pytest.mark.parametrize("problem", ["missing", "other shape"])
def test_other_weights_are_refused(weights: dict[str, Tensor], tmp_path: Path, problem: str) -> None:
    wrong_weights = dict(weights)
    del wrong_weights["features.14.bias"]
    if problem == "other shape":
        wrong_weights["features.14.bias"] = torch.zeros(7)
    path = tmp_path / "wrong.safetensors"
    save_file(wrong_weights, path)
    with pytest.raises(InputError) as refusal:
        load_perceptual_features(str(path), _CPU)
    message = str(refusal.value)
    assert str(path) in message
    assert "features.14.bias" in message
    assert "\n" not in message


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_perceptual_features(str(tmp_path / "none.safetensors"), _CPU)


@pytest.mark.parametrize("squared", [False, True])
def test_compare_is_the_mean_over_all_cells(squared: bool) -> None:
    features = PerceptualFeatures("two maps", lambda x: [x, x.mean(1, keepdim=True) ** 2])
    predicted, target = _draw_images(0, 4), _draw_images(1, 4)
    sums = [0.0, 0.0]
    for row in range(4):
        for column in range(4):
            a, b = predicted[0, :, row, column].tolist(), target[0, :, row, column].tolist()
            differences = [
                [p - q for p, q in zip(a, b, strict=True)],
                [(sum(a) / 3) ** 2 - (sum(b) / 3) ** 2],
            ]
            for number, values in enumerate(differences):
                sums[number] += sum(value * value if squared else abs(value) for value in values)
    errors = features.compare(predicted, target, squared)
    expected = [sums[0] / 48, sums[1] / 16]  # 3 channels and 1 channel of 4 x 4 cells
    assert [float(error) for error in errors] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("network", ["VGG16", "efficientnet-lite0"])
def test_only_the_predicted_image_gets_gradients(vgg16_file: str, network: str) -> None:
    features = load_perceptual_features(vgg16_file if network == "VGG16" else "", _CPU)
    assert features.name == network
    predicted, target = _draw_images(0).requires_grad_(), _draw_images(1).requires_grad_()
    errors = features.compare(predicted, target, squared=True)
    assert len(errors) == 4
    torch.stack(errors).sum().backward()
    assert predicted.grad is not None
    assert float(predicted.grad.abs().max()) > 0
    assert target.grad is None
    assert all(float(error) == 0 for error in features.compare(target.detach(), target, squared=True))


def test_weights_are_frozen(vgg16_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Vgg16] = []
    original = Vgg16.__init__

    def remember(self: Vgg16) -> None:
        original(self)
        created.append(self)

    monkeypatch.setattr(Vgg16, "__init__", remember)
    features = load_perceptual_features(vgg16_file, _CPU)
    torch.stack(
        features.compare(_draw_images(0).requires_grad_(), _draw_images(1), squared=False)
    ).sum().backward()
    (vgg,) = created
    assert not vgg.training
    for parameter in vgg.parameters():
        assert not parameter.requires_grad
        assert parameter.grad is None


def test_installed_features_have_four_resolutions() -> None:
    maps = load_perceptual_features("", _CPU)(_draw_images(0, 64))
    assert [tuple(values.shape) for values in maps] == [
        (1, 16, 32, 32),
        (1, 24, 16, 16),
        (1, 40, 8, 8),
        (1, 112, 4, 4),
    ]
