#!/usr/bin/env python3
"""The sources that GPU results depend on, and what became of them since results were stored.

    tools/cuda_sources.py            prints their hash
    tools/cuda_sources.py --list     prints their names
    tools/cuda_sources.py --stored   says whether bench/results/h200/ was measured with these sources
"""
import hashlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
STORED = ROOT / "bench" / "results" / "h200" / "tests.json"
# Of kernels, their hosts, the steps that run them, the benches that time them, and how all are compiled.
PATTERNS = ("src/cuda/*.cc", "src/**/*.cu", "src/**/*cuda*.cc", "src/**/*hopper*.cc", "src/products/cuda/*.cc",
            "src/products/hopper/*.cc", "src/engine/model_executor.cc", "bench/*.cu",
            "cmake/cuda.cmake", "cmake/fathom.cmake", "src/cuda/CMakeLists.txt", "src/products/CMakeLists.txt", "src/ops/cuda_sources.cmake",
            "bench/CMakeLists.txt")
OWN_SOURCES = ("src/products", "src/ops", "src/model", "src/engine", "bench")  # a header there brings the .cc beside it
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)


def reached(path):
    """The project's files that a source or header is compiled with."""
    if path.suffix not in (".cmake", ".txt"):
        for name in INCLUDE.findall(path.read_bytes()):
            yield from (p for folder in ("src", ".") if (p := ROOT / folder / name.decode()).is_file())
    if path.suffix == ".h" and str(path.relative_to(ROOT)).startswith(OWN_SOURCES) and path.with_suffix(".cc").is_file():
        yield path.with_suffix(".cc")


def sources():
    found = set()
    to_do = [p for pattern in PATTERNS for p in ROOT.glob(pattern) if not p.name.startswith("testing")]
    while to_do:
        path = to_do.pop()
        if path not in found:
            found.add(path)
            to_do += reached(path)
    return sorted(found)


def code(path):
    comment = rb"#[^\n]*" if path.suffix in (".cmake", ".txt") else rb"//[^\n]*"
    return b" ".join(re.sub(comment, b"", path.read_bytes()).split())


def sources_hash():
    """Of the code: comments and white space may change without new results."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + code(path) + b"\0")
    return digest.hexdigest()[:16]


def main():
    if "--list" in sys.argv:
        return print(*(path.relative_to(ROOT) for path in sources()), sep="\n")
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
