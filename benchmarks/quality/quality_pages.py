"""Write quality.md, ablations.md, claims.md and compare.md in docs/results from the JSON files there.

    python benchmarks/quality/quality_pages.py

All numbers and all conclusions on these pages are computed from the JSON files. Do not edit the pages. A row
that has not been run yet appears as a dash.
"""

from __future__ import annotations

from pathlib import Path

from ablations_page import build_ablations_page
from claim_records import read_records
from claims_page import build_claims_page
from compare_page import build_compare_page
from results_page import build_results_page
from summaries import Quality

from selfmark.run.files import read_json

RESULTS = Path(__file__).resolve().parent.parent.parent / "docs" / "results"


def main() -> None:
    """Write all pages."""
    written = build_pages(read_json(RESULTS / "quality.json"))
    written["claims.md"] = build_claims_page(read_records(RESULTS / "claims.json"))
    written["compare.md"] = build_compare_page(read_json(RESULTS / "compare.json")["rows"])
    for name, page in written.items():
        (RESULTS / name).write_text(page, encoding="utf-8")
        print(RESULTS / name)


def build_pages(quality: Quality) -> dict[str, str]:
    """Return a mapping from file names to the pages that are made from quality.json."""
    return {"quality.md": build_results_page(quality), "ablations.md": build_ablations_page(quality)}


if __name__ == "__main__":
    main()
