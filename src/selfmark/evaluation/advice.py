"""Advice in words, each sentence backed by a check that needs no labels."""

from __future__ import annotations

from selfmark.config import Evaluation


def advise(
    duplicates: list[list[int]], num_landmarks: int, num_images: int, settings: Evaluation
) -> list[str]:
    """Return what a user should know about a run or change, as sentences.

    Args:
        duplicates: groups of landmarks that mark the same place.
        num_landmarks: number of landmarks K.
        num_images: number of training images.
        settings: limits.

    >>> advise([[0, 3, 4]], 14, 500, Evaluation())
    ['landmarks 0, 3 and 4 mark the same place: lower -k to about 12']
    """
    sentences = []
    if duplicates:
        groups = "; ".join(f"landmarks {_join(group)} mark the same place" for group in duplicates)
        needed = num_landmarks - sum(len(group) - 1 for group in duplicates)
        sentences.append(f"{groups}: lower -k to about {needed}")
    if num_images < settings.min_images:
        sentences.append(
            f"landmarks found in only {num_images} images are uncertain: give {settings.min_images} or more"
        )
    return sentences


def _join(numbers: list[int]) -> str:
    """Return numbers as words of a list: "0, 3 and 4"."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
