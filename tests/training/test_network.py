"""Test the training network: folding of its norms, the first convolution, and gradients."""

import torch
from torch.nn import functional as F

from selfmark.keypoints.superpoint import SuperPoint
from training.keypoints.network import LAYERS_WITH_NORM, TrainingNetwork, convolve_patches, fold_norms


def test_folding_the_norms_changes_nothing():
    torch.manual_seed(0)
    network = TrainingNetwork()
    for name in LAYERS_WITH_NORM:  # Norms are random, as after training.
        norm = network.norms[name]
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
        for tensor, spread in ((norm.bias, 0.3), (norm.running_mean, 0.3)):
            torch.nn.init.normal_(tensor, 0, spread)
        torch.nn.init.uniform_(norm.running_var, 0.3, 2.0)
    superpoint = SuperPoint()
    superpoint.load_state_dict(fold_norms(network), strict=True)
    gray = torch.rand(2, 1, 32, 40)
    with torch.inference_mode():
        logits, raw = network.eval()(gray)
        score, descriptors = superpoint.eval()(gray.expand(-1, 3, -1, -1))
    assert logits.std() > 0.1
    expected = F.pixel_shuffle(logits.softmax(1)[:, :-1], 8)[:, 0]
    torch.testing.assert_close(score, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(descriptors, F.normalize(raw, dim=1), atol=1e-5, rtol=1e-4)


def test_convolving_patches_matches_a_convolution():
    torch.manual_seed(0)
    gray, weight = torch.rand(3, 1, 10, 12), torch.randn(5, 1, 3, 3)
    output_weights = torch.randn(3, 5, 10, 12)
    gradients = []
    results = []
    for convolve in (convolve_patches, lambda x, w: F.conv2d(x, w, padding=1)):
        kernel = weight.clone().requires_grad_()
        results.append(convolve(gray, kernel))
        (results[-1] * output_weights).sum().backward()
        gradients.append(kernel.grad)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
    assert results[0].is_contiguous(memory_format=torch.channels_last)


def test_every_used_weight_gets_a_gradient():
    network = TrainingNetwork().train()
    logits, raw = network(torch.rand(2, 1, 32, 32))
    (logits.square().mean() + raw.square().mean()).backward()
    trained = {name for name, parameter in network.named_parameters() if parameter.grad is not None}
    expected = {f"net.{name}.weight" for name in LAYERS_WITH_NORM}
    expected |= {f"norms.{name}.{part}" for name in LAYERS_WITH_NORM for part in ("weight", "bias")}
    expected |= {f"net.{name}.{part}" for name in ("convPb", "convDb") for part in ("weight", "bias")}
    assert trained == expected
