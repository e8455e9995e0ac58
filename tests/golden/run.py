#!/usr/bin/env python3
"""Holds the op tables against the golden references: `fathom verify`, in both forms of MLA.

    run.py --binary build/bin/fathom [--ranks]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).resolve().parent
ROOT = GOLDEN.parent.parent
FORMS = ("absorbed", "expanded")
# Data-parallel groups with experts over both: the bits of one rank, which the case without this suffix has.
SAME_BITS = ", 2 groups"
# Stages of a pipeline: the bits of one stage, likewise.
STAGES = ", 2 stages"
GROUPS = ("--dp", "2", "--enable-expert-parallel")
# Groups that cut each expert between them: bits of their own.
CUT_GROUPS = ("--dp", "2")


TINY = ROOT / "models" / "tiny-r1", GOLDEN / "tiny-r1" / "reference.safetensors"


def cases():
    """(name, checkpoint, reference, further arguments), slowest first."""
    tiny = TINY
    yield "tiny-r1 reference", *tiny, ["--ops", "reference"]
    for form in ("own", *FORMS):
        yield f"tiny-r1 cpu {form}", *tiny, ["--ops", "cpu", "--form", form]
    yield "tiny-r1 cpu chunks of 48", *tiny, ["--ops", "cpu", "--prefill-chunk", "48"]
    yield "tiny-r1 cpu, BF16 cache", *tiny, ["--ops", "cpu", "--kv-cache-dtype", "bf16"]
    yield "tiny-r1 cpu, FP8 cache", *tiny, ["--ops", "cpu", "--kv-cache-dtype", "fp8"]
    if "avx512_bf16" in pathlib.Path("/proc/cpuinfo").read_text():
        yield "tiny-r1 cpu-bf16", *tiny, ["--ops", "cpu-bf16"]
        yield "tiny-r1 cpu-bf16 dots", *tiny, ["--ops", "cpu-bf16", "--cpu-instructions", "dots"]
    for quantization in ("int8", "int4"):
        yield f"tiny-r1 cpu {quantization}", *tiny, ["--quantization", quantization]
        yield f"tiny-r1 cpu {quantization} avx2", *tiny, ["--quantization", quantization, "--cpu-instructions", "avx2"]
    for instructions in ("dots", "avx512", "avx2", "portable"):
        yield f"tiny-r1 cpu {instructions}", *tiny, ["--ops", "cpu", "--cpu-instructions", instructions]
    for ops in ("cpu-fp8", "reference-fp8"):
        yield f"tiny-r1 {ops}", *tiny, ["--ops", ops]
    for ops, ranks in (("cpu", "2"), ("cpu", "4"), ("cpu-fp8", "2"), ("reference", "2"), ("reference", "4")):
        yield f"tiny-r1 {ops}, {ranks} ranks", *tiny, ["--ops", ops, "--tp", ranks]
    for name in ("cpu own", "cpu-fp8", "reference"):
        yield f"tiny-r1 {name}{SAME_BITS}", *tiny, ["--ops", name.split()[0], *GROUPS]
    for ops in ("cpu", "reference"):
        yield f"tiny-r1 {ops}, 2 groups of 2 ranks", *tiny, ["--ops", ops, "--tp", "2", *GROUPS]
    for name in ("cpu own", "cpu-fp8", "reference"):
        yield f"tiny-r1 {name}, 2 groups cut experts", *tiny, ["--ops", name.split()[0], *CUT_GROUPS]
    yield f"tiny-r1 cpu own, 2 groups cut experts{STAGES}", *tiny, ["--ops", "cpu", "--pp", "2", *CUT_GROUPS]
    yield "tiny-r1 cpu, 2 groups of 2 ranks cut experts", *tiny, ["--ops", "cpu", "--tp", "2", *CUT_GROUPS]
    for name in ("cpu own", "cpu-fp8", "reference"):
        yield f"tiny-r1 {name}{STAGES}", *tiny, ["--ops", name.split()[0], "--pp", "2"]
    for ops in ("cpu", "cpu-fp8", "reference"):
        yield f"tiny-r1 {ops}, 2 stages, BF16 residual", *tiny, ["--ops", ops, "--pp", "2", "--bf16-residual"]
    yield "tiny-r1 cpu, 2 stages of 2 ranks, BF16 residual", *tiny, ["--ops", "cpu", "--tp", "2", "--pp", "2", "--bf16-residual"]
    for ops in ("cpu", "reference"):
        yield f"tiny-r1 {ops}, 2 ranks{STAGES}", *tiny, ["--ops", ops, "--tp", "2", "--pp", "2"]
    yield f"tiny-r1 cpu own{SAME_BITS}{STAGES}", *tiny, ["--ops", "cpu", "--pp", "2", *GROUPS]
    for folder in sorted(p.parent for p in GOLDEN.glob("*/config.json")):
        fixture = folder, folder / "reference.safetensors"
        for ops in ("reference", "cpu"):
            for form in FORMS:
                yield f"{folder.name} {ops} {form}", *fixture, ["--ops", ops, "--form", form]
            yield f"{folder.name} {ops}, 2 ranks", *fixture, ["--ops", ops, "--tp", "2"]
            yield f"{folder.name} {ops} expanded{SAME_BITS}", *fixture, ["--ops", ops, "--form", "expanded", *GROUPS]
            yield f"{folder.name} {ops}, 2 groups cut experts", *fixture, ["--ops", ops, *CUT_GROUPS]
            if folder.name == "v3-fp8":  # it has two heads
                yield f"{folder.name} {ops}, 2 groups of 2 ranks", *fixture, ["--ops", ops, "--tp", "2", *GROUPS]
            if folder.name == "v3-16-heads":
                yield f"{folder.name} {ops}, 4 ranks", *fixture, ["--ops", ops, "--tp", "4"]
            if json.loads((folder / "config.json").read_text())["num_hidden_layers"] > 1:
                yield f"{folder.name} {ops} expanded{STAGES}", *fixture, ["--ops", ops, "--form", "expanded", "--pp", "2"]
                yield f"{folder.name} {ops}, 2 ranks{STAGES}", *fixture, ["--ops", ops, "--tp", "2", "--pp", "2"]
                if folder.name != "v3-fp8":  # a rounded residual turns its router at one position of 172: an error of 4e-2
                    yield f"{folder.name} {ops}, 2 stages, BF16 residual", *fixture, ["--ops", ops, "--pp", "2", "--bf16-residual"]
        for instructions in ("avx512", "avx2", "portable"):
            yield f"{folder.name} cpu {instructions}", *fixture, ["--ops", "cpu", "--cpu-instructions", instructions]
        yield f"{folder.name} cpu chunks of 50", *fixture, ["--ops", "cpu", "--prefill-chunk", "50"]
        yield f"{folder.name} cpu contexts in chunks of 48", *fixture, ["--ops", "cpu", "--form", "expanded",
                                                                        "--context-chunk", "48"]


def of_ranks(cases):
    """Those of several ranks, and those that other_bits() holds them against."""
    several = [case[0] for case in cases if {"--tp", "--pp", "--dp"} & set(case[3])]
    beside = {name.removesuffix(suffix) for name in several for suffix in (SAME_BITS, STAGES)} | {"tiny-r1 cpu own"}
    return [case for case in cases if case[0] in beside]


def verify(binary, case):
    name, model, reference, arguments = case
    command = [binary, "verify", str(model), "--reference", str(reference), "--threads", "1", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return name, done.returncode, done.stdout.strip(), done.stderr.strip()


def other_bits(hashes):
    """A line for each case that lacks the bits that it must have; the last are canaries: of tensor-parallel ranks, of
    experts that groups cut and of a rounded residual logits have other bits, if hashes notice any."""
    for name, value in hashes.items():
        for suffix in (SAME_BITS, STAGES):
            without = hashes.get(name.removesuffix(suffix))
            if name.endswith(suffix) and value != without:
                yield f"{name}: logits {value}, without that {without}"
    for other in ("tiny-r1 cpu, 2 ranks", "tiny-r1 cpu own, 2 groups cut experts", "tiny-r1 cpu, 2 stages, BF16 residual"):
        if hashes[other] == hashes["tiny-r1 cpu own"]:
            yield f"the hash of logits notices nothing of {other}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/bin/fathom")
    parser.add_argument("--ranks", action="store_true", help="only cases of several ranks, and what they are compared with")
    options = parser.parse_args()
    binary = options.binary
    passed = failed = 0
    hashes = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        chosen = of_ranks(list(cases())) if options.ranks else cases()
        for name, code, out, err in pool.map(lambda c: verify(binary, c), chosen):
            passed, failed = passed + (code == 0), failed + (code != 0)
            if not out:
                print(f"FAILED  {name}: {err}")
                continue
            r = json.loads(out)
            hashes[name] = r["logits_hash"]
            print(f"{'ok' if code == 0 else 'FAILED':7} {name:34} max {r['max_relative_error']:.1e}  "
                  f"median {r['median_relative_error']:.1e}  greedy {'equal' if r['greedy_equal'] else 'differs'}"
                  + (f"  drafts {'equal' if r['drafts_equal'] else 'differ'}" if r["draft_tokens"] else ""))
    for problem in other_bits(hashes):
        failed += 1
        print(f"FAILED  {problem}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
