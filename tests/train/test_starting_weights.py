"""Test which detectors have suitable starting weights; tests/test_model_library.py trains from them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest

from selfmark.config import Features, Network, override, preset
from selfmark.errors import InputError
from selfmark.model.card import Architecture, ModelCard
from selfmark.train.starting_weights import check_start

CONFIG = override(preset("tiny"), {"features.name": "none"})
CARD = ModelCard(("nose",), (0,), (), CONFIG.images, CONFIG.network, "parabola", False, {})


@pytest.mark.parametrize("setting", [field.name for field in fields(Network)])
def test_the_message_distinguishes_networks_that_differ_in_one_setting(setting: str) -> None:
    check_start(CARD, CONFIG, "cats")
    value = getattr(CONFIG.network, setting)
    card = replace(CARD, network=replace(CONFIG.network, **{setting: 2 * value}))
    with pytest.raises(InputError) as caught:
        check_start(card, CONFIG, "cats")
    wanted, found = str(caught.value).removeprefix("this run trains ").split(", but cats has ")
    assert str(value) in wanted
    assert str(2 * value) in found
    assert not found.startswith(wanted)


@pytest.mark.parametrize("architecture", ["soft-argmax", "embedding"])
@pytest.mark.parametrize("features", ["none", "efficientnet-lite0"])
def test_a_network_of_another_method_is_rejected(architecture: Architecture, features: str) -> None:
    assert architecture in get_args(Architecture)
    config = replace(CONFIG, features=Features(name=features))
    with pytest.raises(InputError, match="cats, which is a network of another method: choose a detector"):
        check_start(replace(CARD, architecture=architecture), config, "cats")
