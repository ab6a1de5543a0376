"""List the methods of other papers by name, except `mallis2020`, which has its own training."""

from __future__ import annotations

from selfmark.config import Config
from selfmark.methods.autolink import AutoLink
from selfmark.methods.contract import TrainedMethod
from selfmark.methods.dve import Dve
from selfmark.methods.equivariance import Equivariance
from selfmark.methods.jakab2018 import Jakab2018
from selfmark.methods.lorenz2019 import Lorenz2019
from selfmark.methods.zhang2018 import Zhang2018

METHODS: dict[str, type[TrainedMethod]] = {
    "equivariance": Equivariance,
    "dve": Dve,
    "zhang2018": Zhang2018,
    "jakab2018": Jakab2018,
    "lorenz2019": Lorenz2019,
    "autolink": AutoLink,
}


def build_method(config: Config) -> TrainedMethod:
    """Create the networks of the method named in the settings."""
    return METHODS[config.method](config)
