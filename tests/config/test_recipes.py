"""Test recipes: their settings exist, and the settings of the user have priority."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfmark.config import RECIPES, override, preset, recipe_settings, with_features
from selfmark.discovery import RunInputs, RunOptions, open_run
from selfmark.errors import InputError
from tests.conftest import QUICK


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_changes_something(name: str) -> None:
    config = with_features(preset("fast"), "efficientnet-lite0")
    assert override(config, recipe_settings(name)) != config


def test_the_recipe_auto_has_no_settings_of_its_own() -> None:
    assert recipe_settings("auto") == {}


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match=r"unknown recipe 'sideview'. Did you mean 'side-view'\?"):
        recipe_settings("sideview")


def test_settings_have_priority_over_the_recipe(photos: Path, tmp_path: Path) -> None:
    options = RunOptions(
        output=tmp_path / "run",
        preset="tiny",
        settings=QUICK | {"augment.rotation": 30.0},
        device="cpu",
        recipe="any-orientation",
    )
    with open_run(RunInputs([photos]), options, None) as opened:
        assert opened.run.config.augment.rotation == 30.0
        assert opened.run.config.features.orientation == "not-upright"
