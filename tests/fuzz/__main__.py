"""Fuzz every reader of files, and every writer whose files a reader reads back.

    python -m tests.fuzz --minutes 10 --processes 2 --seed 1 --out fuzz.json
    python -m tests.fuzz --readers video --add fuzz.json --out fuzz.json   # add to the counts of fuzz.json

Valid files are corrupted and read for the given time; slow readers get fewer files. Some of the files that a
reader accepts are corrupted further. Readers may raise only errors of selfmark, and files that a writer
writes must be read back unchanged. If another error occurs, it is printed, the file that caused it is added
to tests/fuzz/corpus, and the exit code is 1. The test suite reads that folder. Readers whose library is not
installed are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.fuzzing import add_counts, describe_machine, fuzz_in_processes
from tests.fuzz.readers import build_readers, make_pictures


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz every reader and writer.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--readers", default="", help="names of readers, separated by commas; default: all")
    parser.add_argument("--add", type=Path, nargs="*", default=[], help="results of earlier runs to add")
    parser.add_argument("--commit", default="", help="commit of the code; default: that of the git checkout")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.minutes <= 0 and not arguments.add:
        parser.error("--minutes must be greater than 0, unless --add gives results to add")
    start, earlier = time.perf_counter(), [json.loads(path.read_text()) for path in arguments.add]
    with tempfile.TemporaryDirectory() as name:
        make_pictures(Path(name))
        known = build_readers(Path(name))
    chosen = [kind.strip() for kind in arguments.readers.split(",") if kind.strip()] or list(known)
    if unknown := set(chosen) - set(known):
        parser.error(f"unknown reader {', '.join(sorted(unknown))}; the readers are {', '.join(known)}")
    left_out = {kind: known[kind].requires for kind in chosen if not known[kind].is_available()}
    kinds = [kind for kind in chosen if kind not in left_out]
    if arguments.minutes > 0:
        counts = fuzz_in_processes(arguments.minutes, arguments.seed, arguments.processes, kinds)
        run = {
            "seed": arguments.seed,
            "processes": arguments.processes,
            "inputs": counts["inputs"],
            "left_out": left_out,
            "seconds": round(time.perf_counter() - start),
            "made_on": describe_machine(arguments.commit),
        }
        earlier.append(counts | {"runs": [run]})
    summary = add_counts(earlier)
    text = json.dumps(summary, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    print(text)
    return 1 if summary["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
