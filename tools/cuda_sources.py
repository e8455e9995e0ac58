#!/usr/bin/env python3
"""The sources that GPU results depend on, and what became of them since results were stored.

    tools/cuda_sources.py            prints their hash
    tools/cuda_sources.py --stored   says whether bench/results/h200/ was measured with these sources
"""
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORED = ROOT / "bench" / "results" / "h200" / "tests.json"
PATTERNS = ("src/cuda/*", "src/ops/**/*.cu", "src/ops/**/*.cuh", "src/ops/**/*cuda*.cc",
            "src/ops/**/*cuda*.h", "src/ops/**/*hopper*", "src/ops/**/mla_decode*", "cmake/cuda.cmake")


def code(text):
    return b" ".join(re.sub(rb"//[^\n]*", b"", text).split())


def sources_hash():
    """Of the code: comments and white space may change without new results."""
    paths = {p for pattern in PATTERNS for p in ROOT.glob(pattern) if p.is_file()}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + code(path.read_bytes()) + b"\0")
    return digest.hexdigest()[:16]


def main():
    if "--stored" not in sys.argv:
        return print(sources_hash())
    if not STORED.exists():
        return print("GPU results: none are stored; run tools/gpu_check.sh on a machine with a GPU")
    stored = json.loads(STORED.read_text())
    if stored["sources"] == sources_hash():
        print(f"GPU results: of {stored['date'][:10]}, with these CUDA sources")
    else:
        print(f"GPU results: OLDER than the CUDA sources. They were measured on {stored['date'][:10]} with sources "
              f"{stored['sources']}, these are {sources_hash()}: run tools/gpu_check.sh on a machine with a GPU")


if __name__ == "__main__":
    main()
