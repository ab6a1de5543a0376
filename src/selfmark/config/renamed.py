"""Map old names of settings to current ones, so that old run folders and commands keep working."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED = {
    "keypoints.random_share": "keypoints.random_fraction",
    "keypoints.outlier_neighbours": "keypoints.outlier_neighbors",
    "keypoints.outlier_share": "keypoints.outlier_fraction",
    "correspondence.least_points": "correspondence.min_points",
    "auto_k.clear": "auto_k.clear_margin",
    "auto_k.dissolved": "auto_k.dissolved_agreement",
    "auto_k.weak": "auto_k.weak_score",
    "auto_k.images": "auto_k.max_images",
    "optimiser.lr": "optimizer.lr",
    "optimiser.weight_decay": "optimizer.weight_decay",
    "optimiser.clip_norm": "optimizer.clip_norm",
    "rounds.same_image_share": "rounds.same_image_fraction",
    "rounds.keep": "rounds.keep_weights",
    "stage2.cutout_share": "stage2.cutout_fraction",
    "temporal.share": "temporal.fraction",
    "temporal.reach": "temporal.max_frame_gap",
    "temporal.neighbours": "temporal.neighbors",
    "temporal.check": "temporal.max_return_error",
    "augment.negative_share": "augment.negative_fraction",
    "augment.blur_share": "augment.blur_fraction",
    "augment.colour_share": "augment.color_fraction",
    "runtime.device_share": "runtime.device_fraction",
    "guards.least_found": "guards.min_points",
    "guards.least_spread": "guards.min_descriptor_spread",
    "guards.least_reach": "guards.min_point_spread",
    "guards.most_empty": "guards.max_empty_fraction",
    "guards.least_score": "guards.min_score",
    "guards.look_at": "guards.num_samples",
    "evaluation.least_visibility": "evaluation.min_visibility",
    "evaluation.worst_error": "evaluation.max_curve_error",
    "evaluation.hit_share": "evaluation.hit_fraction",
    "evaluation.pck_share": "evaluation.pck_fraction",
    "evaluation.precision_share": "evaluation.precision_fraction",
    "evaluation.look_at": "evaluation.num_samples",
    "evaluation.near": "evaluation.agreement_radius",
    "tracking.samples": "tracking.num_samples",
    "tracking.side": "tracking.max_side",
    "tracking.contrast": "tracking.min_contrast",
    "tracking.opening": "tracking.opening_fraction",
    "tracking.least_area": "tracking.min_area",
    "tracking.reach": "tracking.max_step",
    "tracking.gap": "tracking.max_gap",
    "tracking.smooth": "tracking.smoothing",
    "tracking.size_share": "tracking.size_fraction",
}
_RENAMED_SECTIONS = {"optimiser": "optimizer"}


def current_name(name: str) -> str:
    """Return the current dotted name of a setting, which may be given by its old name.

    >>> current_name("optimiser.lr"), current_name("K")
    ('optimizer.lr', 'K')
    """
    return RENAMED.get(name, name)


def rename_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace old names in nested settings with the current ones.

    >>> rename_settings({"K": 4, "optimiser": {"lr": 0.1}})
    {'K': 4, 'optimizer': {'lr': 0.1}}
    """
    return _rename(values, RENAMED, _RENAMED_SECTIONS)


def original_setting_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace current names in nested settings with the old ones.

    Fingerprints are computed from the old names, so that renaming a setting does not change a fingerprint.
    """
    return _rename(values, _invert(RENAMED), _invert(_RENAMED_SECTIONS))


def _rename(
    values: Mapping[str, Any], settings: Mapping[str, str], sections: Mapping[str, str]
) -> dict[str, Any]:
    renamed_content: dict[str, Any] = {}
    for section, content in values.items():
        if isinstance(content, Mapping):
            dotted_content = {f"{section}.{name}": value for name, value in content.items()}
            content = {
                settings.get(name, name).rpartition(".")[2]: value for name, value in dotted_content.items()
            }
        renamed_content[sections.get(section, section)] = content
    return renamed_content


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}
