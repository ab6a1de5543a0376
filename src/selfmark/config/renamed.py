"""Settings that had another name in selfmark 0.1, so that old run folders and commands keep working."""

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
_SECTIONS = {"optimiser": "optimizer"}


def current_name(name: str) -> str:
    """Return the current dotted name of a setting.

    >>> current_name("optimiser.lr"), current_name("K")
    ('optimizer.lr', 'K')
    """
    return RENAMED.get(name, name)


def rename_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with old names replaced by current ones; values that are no mapping stay."""
    renamed: dict[str, Any] = {}
    for section, content in values.items():
        if isinstance(content, Mapping):
            pairs = ((current_name(f"{section}.{field}"), value) for field, value in content.items())
            content = {name.rpartition(".")[2]: value for name, value in pairs}
        renamed[_SECTIONS.get(section, section)] = content
    return renamed


def original_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings under the names of selfmark 0.1, the inverse of `rename_settings`.

    Fingerprints of settings are computed from these, so that they stay valid when settings are renamed.
    """
    old_name = {new: old for old, new in RENAMED.items()}
    old_section = {new: old for old, new in _SECTIONS.items()}
    renamed: dict[str, Any] = {}
    for section, content in values.items():
        if isinstance(content, Mapping):
            pairs = ((f"{section}.{field}", value) for field, value in content.items())
            content = {old_name.get(name, name).rpartition(".")[2]: value for name, value in pairs}
        renamed[old_section.get(section, section)] = content
    return renamed
