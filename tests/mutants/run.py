"""Do the tests notice? Puts the faults of faults.py into a copy of the sources, each behind a number
that is chosen at run time, builds the copy once, and runs for each fault the tests that must fail.

    tests/mutants/run.py build/mutants [--only 7,8] [--jobs 2]
    tests/mutants/run.py --check        only whether each fault still has its one place in the sources

Ends with status 1, and names them, if faults went unnoticed. On two cores that others used as well
the build took 8 minutes, with most objects in the compiler's cache 3, and the tests of 266 faults 26
minutes with --jobs 1."""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from faults import FAULTS, S

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120  # of a test program; a fault that makes one hang is noticed
COPIED = ["CMakeLists.txt", "cmake", "src", "apps", "tests", "bench", "LICENSE"]


def with_faults(path, text):
    """The text of a file with all of its faults."""
    places = []
    for number, (file, old, new, _, *kind) in enumerate(FAULTS, 1):
        if file != path:
            continue
        if text.count(old) != 1:
            sys.exit(f"fault {number}: {path} has {text.count(old)} times {old!r}")
        if old.endswith(";") != (kind == [S]):
            sys.exit(f"fault {number}: {old!r} is {'a' if old.endswith(';') else 'no'} statement")
        at = text.index(old)
        form = ("if (fathom::Fault({n})) {{ {new} }} else {{ {old} }}" if kind == [S]
                else "(fathom::Fault({n}) ? ({new}) : ({old}))")
        places.append((at, at + len(old), form.format(n=number, new=new, old=old)))
    if not places:
        return text
    places.sort(reverse=True)
    for (begin, end, replacement), before in zip(places, places[1:] + [(0, 0, "")]):
        if before[1] > begin:
            sys.exit(f"two faults in one place of {path}: {text[begin:end]!r}")
        text = text[:begin] + replacement + text[end:]
    include = '#include "base/fault.h"\n'
    return text.replace("#pragma once\n", "#pragma once\n" + include, 1) if path.endswith(".h") else include + text


def write_if_other(path, text):
    if not path.exists() or path.read_bytes() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)


def copy_tree(tree):
    listed = subprocess.run(["git", "ls-files", *COPIED], cwd=ROOT, capture_output=True, text=True, check=True)
    faulty = {fault[0] for fault in FAULTS}
    for name in listed.stdout.split():
        if re.search(r"\.(cc|h|inc|in|cmake|txt|cu|cuh|json|js|css|html)$", name) and (ROOT / name).exists():
            text = (ROOT / name).read_bytes()
            if name in faulty:
                text = with_faults(name, text.decode()).encode()
            write_if_other(tree / name, text)
    write_if_other(tree / "src/base/fault.h", (ROOT / "tests/mutants/fault.h").read_bytes())


def check():
    """A changed line may leave a fault without its place."""
    for file in sorted({fault[0] for fault in FAULTS}):
        if not (ROOT / file).exists():
            sys.exit(f"{file} has faults in tests/mutants/faults.py, and is not there")
        with_faults(file, (ROOT / file).read_text())


def programs(fault):
    """[(program, filter)]"""
    return [tuple((test.split() + ["*"])[:2]) for test in fault[3].split("; ")]


def fails(build, program, only, number):
    """How the program ended, or "" if it passed."""
    command = [build / "tests" / program, f"--gtest_filter={only}", "--gtest_fail_fast", "--gtest_brief=1"]
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=TIMEOUT_S,
                               env=os.environ | {"FATHOM_FAULT": str(number)})
    except subprocess.TimeoutExpired:
        return f"{program} hung"
    if number == 0 and b"] 0 tests" in ended.stdout:
        sys.exit(f"{program} has no test {only}")
    if ended.returncode == 0:
        return ""
    failed = re.search(rb"\[  FAILED  \] ([\w./]+)", ended.stdout)
    return f"{failed[1].decode() if failed else program} ({'failed' if ended.returncode > 0 else 'crashed'})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", type=lambda text: [int(n) for n in text.split(",")], help="faults, by number")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.check:
        return check()
    if args.folder is None:
        parser.error("say into which folder the copy goes, or --check")
    tree, build = args.folder.resolve() / "tree", args.folder.resolve() / "tree" / "build"
    began = time.monotonic()
    copy_tree(tree)
    numbers = args.only or range(1, len(FAULTS) + 1)
    tests = sorted({test for n in numbers for test in programs(FAULTS[n - 1])})
    subprocess.run(["cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DFATHOM_CUDA=OFF", "-DFATHOM_TESTS=ON"],
                   check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ninja", "-C", build, f"-j{args.jobs}", *sorted({p for p, _ in tests})], check=True)
    built = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for (program, only), how in zip(tests, pool.map(lambda t: fails(build, *t, 0), tests)):
            if how:
                sys.exit(f"without any fault: {program} {only}: {how}")

        def look_for(number):
            for program, only in programs(FAULTS[number - 1]):
                if how := fails(build, program, only, number):
                    return how
            return ""

        unnoticed = []
        for number, how in zip(numbers, pool.map(look_for, numbers)):
            file, old, *_ = FAULTS[number - 1]
            print(f"{number:3} {file}: {' '.join(old.split())[:60]!r}: {how or 'NOT NOTICED'}", flush=True)
            unnoticed += [] if how else [number]
    print(f"{len(numbers)} faults, {len(unnoticed)} unnoticed {unnoticed or ''}; built in "
          f"{built - began:.0f} s, tested in {time.monotonic() - built:.0f} s")
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
