"""Settings of a run: all numbers of the method, presets, and conversion to and from YAML.

>>> preset("tiny").images.size
128
>>> override(preset("paper"), {"K": 20, "stage2.iterations": 1000}).stage2.iterations
1000
"""

from selfmark.config.limits import NOT_NEGATIVE, limit_of
from selfmark.config.presets import PRESETS, preset, resolve_preset, with_features, with_landmarks
from selfmark.config.renamed import current_name, original_setting_names
from selfmark.config.schema import (
    STRIDE,
    Augment,
    AutoK,
    Config,
    Correspondence,
    DetectorName,
    Evaluation,
    Features,
    FirstKeypoints,
    Flip,
    Guards,
    Heatmaps,
    Images,
    Loss,
    Method,
    Network,
    Optimizer,
    PeakMethod,
    Rounds,
    Runtime,
    Stage2,
    Student,
    Temporal,
    Tracking,
    Warmup,
    check_model,
)
from selfmark.config.serialization import (
    from_dict,
    from_yaml,
    override,
    section_from_dict,
    to_dict,
    to_yaml,
    used_settings,
)

__all__ = [
    "NOT_NEGATIVE",
    "PRESETS",
    "STRIDE",
    "Augment",
    "AutoK",
    "Config",
    "Correspondence",
    "DetectorName",
    "Evaluation",
    "Features",
    "FirstKeypoints",
    "Flip",
    "Guards",
    "Heatmaps",
    "Images",
    "Loss",
    "Method",
    "Network",
    "Optimizer",
    "PeakMethod",
    "Rounds",
    "Runtime",
    "Stage2",
    "Student",
    "Temporal",
    "Tracking",
    "Warmup",
    "check_model",
    "current_name",
    "from_dict",
    "from_yaml",
    "limit_of",
    "original_setting_names",
    "override",
    "preset",
    "resolve_preset",
    "section_from_dict",
    "to_dict",
    "to_yaml",
    "used_settings",
    "with_features",
    "with_landmarks",
]
