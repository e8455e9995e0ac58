#!/usr/bin/env python3
"""Holds every #include under src/, apps/ and bench/, and every edge that src/'s CMakeLists.txt state,
to the rules below.

    tools/check_layering.py            exit 1 and a line for each forbidden include
    tools/check_layering.py --canary   checks the check: forbidden includes must be found
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What each folder may include besides itself and base/.
EDGES = {
    "base": [],
    "tensor": [],
    "cpu": ["tensor"],
    "cuda": ["tensor"],
    "quant": ["tensor"],
    "ops": ["quant", "cpu", "cuda", "tensor"],
    "checkpoint": ["quant", "tensor"],
    "model": ["ops", "checkpoint", "tensor"],
    "cache": [],
    "request": [],
    "scheduler": ["cache", "request"],
    "sampling": ["request", "ops", "tensor"],
    "engine": ["request", "scheduler", "sampling", "model", "cache", "checkpoint", "ops", "tensor"],
    "tokenizer": [],
    "chat": [],
    "server": ["engine", "request", "chat", "tokenizer"],
    "apps": ["server", "engine", "request", "sampling", "model", "checkpoint", "ops", "quant", "cpu", "cuda",
             "tensor", "chat", "tokenizer"],
    "bench": ["ops", "quant", "cpu", "cuda", "tensor"],
}
DEPENDS = re.compile(r'fathom_library\((\w+)[^)]*?DEPENDS([^)]*?)(?:LIBRARIES[^)]*)?\)')
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]*"', re.M)


def below(folder):
    """All that a folder reaches, through others too."""
    return set(EDGES[folder]).union(*map(below, EDGES[folder]))


def violations(folder, text, is_test=False):
    """Folders that a file of `folder` must not include, among those that it does. A test may use all
    that lies below its folder: a real device, for one."""
    allowed = {folder, "base", *(below(folder) if is_test else EDGES[folder])}
    return [name for name in INCLUDE.findall(text) if name in EDGES and name not in allowed]


def stray_edges(text):
    """(folder, edge) of CMake libraries that depend on what their folder must not include."""
    return [(folder, edge) for folder, edges in DEPENDS.findall(text) if folder in EDGES
            for edge in edges.split() if edge not in {"base", *EDGES[folder]}]


def cycle():
    """A folder that depends on itself through others, or None."""
    done = set()

    def visit(folder, above):
        if folder in above:
            return folder
        if folder in done:
            return None
        done.add(folder)
        return next((c for e in EDGES[folder] if (c := visit(e, above | {folder}))), None)

    return next((c for folder in EDGES if (c := visit(folder, frozenset()))), None)


def canary():
    bad = [("scheduler", '#include "tensor/tensor_view.h"\n'), ("model", '#include "cache/page_pool.h"\n'),
           ("tokenizer", '  #  include "engine/messages.h"\n'), ("base", '#include "tensor/dtype.h"\n'),
           ("apps", '#include "cache/page_pool.h"\n'), ("apps", '#include "bench/meter.h"\n'),
           ("ops", '#include "bench/gpu_bench.cuh"\n')]
    missed = [b for b in bad if not violations(*b)]
    if not violations("sampling", '#include "model/model.h"\n', is_test=True):
        missed.append("a test")
    if not stray_edges("fathom_library(model SOURCES a.cc DEPENDS base cache LIBRARIES x)"):
        missed.append("CMake")
    fine = violations("server", '#include "engine/engine.h"\n#include <vector>\n')
    if missed or fine:
        sys.exit(f"the layering check is broken: missed {missed}, refused {fine}")


def main():
    if "--canary" in sys.argv:
        return canary()
    problems = []
    if at := cycle():
        problems.append(f"the rules form a cycle through {at}")
    files = [p.relative_to(ROOT) for top in ("src", "apps", "bench") for p in (ROOT / top).rglob("*")
             if p.suffix in (".h", ".cc", ".cu", ".cuh")]
    for path in sorted(files):
        folder = path.parts[1 if path.parts[0] == "src" else 0]
        if folder not in EDGES:
            problems.append(f"{path}: src/{folder} has no rule in tools/check_layering.py")
            continue
        for name in violations(folder, (ROOT / path).read_text(), path.name.endswith("_test.cc")):
            problems.append(f"{path}: {folder}/ must not include {name}/")
    for path in sorted((ROOT / "src").rglob("CMakeLists.txt")):
        for folder, edge in stray_edges(path.read_text()):
            problems.append(f"{path.relative_to(ROOT)}: {folder}/ must not depend on {edge}/")
    if not files:
        problems.append("no source files found")
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
