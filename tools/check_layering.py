#!/usr/bin/env python3
"""Holds every #include under src/, apps/ and bench/, and every edge that src/'s CMakeLists.txt state,
to the rules below; those inside ops/ too: an op does not reach into another op's folder. And files
and tests that documents name must be there.

    tools/check_layering.py            exit 1 and a line for each forbidden include, missing file or test
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
    "cuda": ["quant", "tensor"],
    "quant": ["tensor"],
    "products": ["quant", "cpu", "cuda", "tensor"],
    "parallel": ["tensor", "cuda"],
    "hosts": ["parallel"],
    "ops": ["products", "parallel", "quant", "cpu", "cuda", "tensor"],
    "checkpoint": ["quant", "tensor"],
    "model": ["ops", "parallel", "checkpoint", "quant", "tensor"],
    "cache": [],
    "request": [],
    "grammar": [],
    "scheduler": ["cache", "request"],
    "speculation": [],
    "sampling": ["request", "ops", "tensor"],
    "engine": ["request", "grammar", "scheduler", "speculation", "sampling", "model", "cache", "checkpoint", "ops", "products", "hosts", "parallel", "quant", "cpu", "tensor"],
    "tokenizer": [],
    "chat": [],
    "server": ["engine", "request", "grammar", "chat", "tokenizer"],
    "apps": ["server", "engine", "request", "grammar", "scheduler", "speculation", "model", "checkpoint", "ops", "products", "hosts", "parallel", "quant", "cpu", "cuda",
             "tensor", "chat", "tokenizer"],
    "bench": ["scheduler", "grammar", "tokenizer", "ops", "products", "parallel", "quant", "cpu", "cuda", "tensor"],
}
# Headers of an op's folder that another may include: (the folder, the header): why.
BETWEEN_OPS = {}
DEPENDS = re.compile(r'fathom_library\((\w+)[^)]*?DEPENDS([^)]*?)(?:LIBRARIES[^)]*)?\)')
OF_AN_OP = re.compile(r'^\s*#\s*include\s+"(ops/(\w+)/[^"]*)"', re.M)
NAMED = re.compile(r'`([a-z][\w./-]*\.(?:cc|h|cu|cuh|cmake|sh|md)|[a-z][\w.-]*/[\w./-]*\.py)`')
# Tests in `code`: Suite.Test; in the page that lists tests also test_of_python, and a Test without its suite.
NAMED_TEST = re.compile(r'`([A-Z]\w*\.[A-Z]\w*)`')
NAMED_ALONE = re.compile(r'`((?:[A-Z][a-z0-9]*){2,}|test_\w+)`')
PAGE_OF_TESTS = "tests/e2e/hostile/README.md"
TEST = re.compile(r'^(?:TYPED_)?TEST(?:_F|_P)?\((\w+),\s*(\w+)\)|^\s*def (test_\w+)\(', re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"/]+)/[^"]*"', re.M)


def below(folder):
    """All that a folder reaches, through others too."""
    return set(EDGES[folder]).union(*map(below, EDGES[folder]))


def violations(folder, text, is_test=False):
    """Folders that a file of `folder` must not include, among those that it does. A test may use all
    that lies below its folder: a real device, for one."""
    allowed = {folder, "base", *(below(folder) if is_test else EDGES[folder])}
    return [name for name in INCLUDE.findall(text) if name in EDGES and name not in allowed]


def between_ops(op, text, allowed=BETWEEN_OPS):
    """Headers of other ops' folders that a file of the folder `op` includes (None: of ops/ itself,
    whose headers all ops share), but those allowed."""
    return [header for header, owner in OF_AN_OP.findall(text)
            if owner != op and (op, header) not in allowed]


def missing_files(text, files):
    """Files that a document names in `code`, of which no file's path ends so."""
    return [name for name in NAMED.findall(text)
            if not name.startswith("..") and not any(f"/{file}".endswith(f"/{name}") for file in files)
            and not re.search("NAME|NNN", name)]


def tests_in(text):
    """Names of the tests that a source has: test_of_python, or Suite.Test and Test."""
    return {name for suite, test, function in TEST.findall(text)
            for name in ([function] if function else [f"{suite}.{test}", test])}


def missing_tests(name, text, tests):
    """Tests that a document names, and no source has."""
    named = NAMED_TEST.findall(text) + (NAMED_ALONE.findall(text) if name == PAGE_OF_TESTS else [])
    return [test for test in named if test not in tests]


def stray_edges(text):
    """(folder, edge) of CMake libraries that depend on what their folder must not include: those of
    ops_cuda are those of ops."""
    libraries = [(name.removesuffix("_cuda"), edges) for name, edges in DEPENDS.findall(text)]
    return [(folder, edge) for folder, edges in libraries if folder in EDGES
            for edge in edges.split()
            if edge.removesuffix("_cuda") not in {"base", folder, *EDGES[folder]}]


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
           ("ops", '#include "bench/gpu_bench.cuh"\n'), ("products", '#include "ops/check.h"\n')]
    missed = [b for b in bad if not violations(*b)]
    if not violations("sampling", '#include "model/model.h"\n', is_test=True):
        missed.append("a test")
    if not stray_edges("fathom_library(model SOURCES a.cc DEPENDS base cache LIBRARIES x)"):
        missed.append("CMake")
    stray = ("fathom_library(products_cuda KERNELS SOURCES a.cu DEPENDS base quant ops cuda)",
             "fathom_library(products SOURCES a.cc DEPENDS base model)")
    missed += [text for text in stray if not stray_edges(text)]
    header = "ops/linear/linear_cuda.h"
    if not (ROOT / "src" / header).is_file():
        missed.append(f"{header} is gone: take another for this example")
    other_op = f'#include "{header}"\n'
    if not between_ops("embed", other_op) or not between_ops(None, other_op):
        missed.append("another op's header")
    if between_ops("embed", other_op, {("route", header): "", ("embed", "ops/linear/x.h"): ""}) == []:
        missed.append("an exception of another op, or for another header")
    fine = violations("server", '#include "engine/engine.h"\n#include <vector>\n')
    fine += between_ops("linear", other_op + '#include "ops/op.h"\n#include "products/packed_weight.h"\n')
    fine += between_ops("embed", other_op, {("embed", header): "a reason"})
    fine += stray_edges("fathom_library(ops_cuda SOURCES a.cu DEPENDS products products_cuda ops cuda)")
    files = ["src/ops/op.h", "tools/run_tests.sh"]
    missed += [name for name in ("src/op.h", "p.h", "ops/gone.cu", "gone.md") if not missing_files(f"see `{name}`", files)]
    fine += missing_files("`ops/op.h`, `op.h`, `tools/run_tests.sh`, `op.cc:12`, modelling.md, `x.py`, `ops/NAME.cc`", files)
    tests = tests_in("TEST_P(RouteTest, V2Lite) {\nTEST(Access,\n     NamesAreKnown) {\n  def test_keys(server):\n")
    for text in ("`RouteTest.V3Lite`", "`Route.V2Lite`", "`test_key`", "`NamesAreKept`"):
        missed += [] if missing_tests(PAGE_OF_TESTS, f"see {text}", tests) else [text]
    fine += missing_tests(PAGE_OF_TESTS, "`RouteTest.V2Lite`, `NamesAreKnown`, `test_keys`, `Content-Type`, `StepPlan::rows`", tests)
    fine += missing_tests("docs/steps.md", "`StepPlan`, `ops.h`, `Access.NamesAreKnown`", tests)
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
        text = (ROOT / path).read_text()
        for name in violations(folder, text, path.name.endswith("_test.cc")):
            problems.append(f"{path}: {folder}/ must not include {name}/")
        if folder == "ops":
            for header in between_ops(path.parts[2] if len(path.parts) > 3 else None, text):
                problems.append(f"{path}: must not include {header}, another op's; what ops share is in products/, "
                                "in cuda/ or cpu/, or in ops/ itself")
    for path in sorted((ROOT / "src").rglob("CMakeLists.txt")):
        for folder, edge in stray_edges(path.read_text()):
            problems.append(f"{path.relative_to(ROOT)}: {folder}/ must not depend on {edge}/")
    names = [str(p.relative_to(ROOT)) for top in ("src", "apps", "bench", "cmake", "docs", "models", "tests", "tools")
             for p in (ROOT / top).rglob("*")] + [p.name for p in ROOT.glob("*")]
    tests = set().union(*(tests_in((ROOT / name).read_text()) for name in names if name.endswith(("_test.cc", ".py"))))
    for name in names:
        if name.endswith(".md"):
            text = (ROOT / name).read_text()
            problems += [f"{name}: {missing} is not there" for missing in missing_files(text, names)]
            problems += [f"{name}: there is no test {missing}" for missing in missing_tests(name, text, tests)]
    if not files:
        problems.append("no source files found")
    print(*problems, sep="\n", end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
