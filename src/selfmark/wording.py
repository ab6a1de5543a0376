"""Build sentences whose words depend on a number."""

from __future__ import annotations


def describe_count(number: int, noun: str, plural: str = "") -> str:
    """Return a number and a noun in the right form.

    >>> describe_count(1, "image"), describe_count(1_200, "image"), describe_count(0, "box", "boxes")
    ('1 image', '1,200 images', '0 boxes')

    Args:
        number: the number.
        noun: the noun in the singular.
        plural: the noun in the plural; empty if the plural is the singular with an s.
    """
    return f"{number:,} {choose_form(number, noun, plural or f'{noun}s')}"


def choose_form(number: int, singular: str, plural: str) -> str:
    """Return the singular form for 1, and the plural form for other numbers.

    >>> [f"{number} of 3 boxes {choose_form(number, 'reaches', 'reach')} the border" for number in (1, 2)]
    ['1 of 3 boxes reaches the border', '2 of 3 boxes reach the border']
    """
    return singular if number == 1 else plural
