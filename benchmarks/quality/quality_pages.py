"""Write docs/results/quality.md and docs/results/ablations.md from docs/results/quality.json.

    python benchmarks/quality/quality_pages.py

All numbers, and all sentences that draw conclusions from them, are computed; nothing on these pages is edited
by hand. A row that has not been run yet appears as a dash.
"""

from __future__ import annotations

from pathlib import Path

from ablations_page import ablations_page
from results_page import results_page
from summaries import Quality

from selfmark.run.files import read_json

RESULTS = Path(__file__).resolve().parent.parent.parent / "docs" / "results"


def main() -> None:
    """Write both pages."""
    for name, page in pages(read_json(RESULTS / "quality.json")).items():
        (RESULTS / name).write_text(page, encoding="utf-8")
        print(RESULTS / name)


def pages(quality: Quality) -> dict[str, str]:
    """Return both pages by file name."""
    return {"quality.md": results_page(quality), "ablations.md": ablations_page(quality)}


if __name__ == "__main__":
    main()
