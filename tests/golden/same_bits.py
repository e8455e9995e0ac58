#!/usr/bin/env python3
"""Whether two builds compute the same bits: hashes of all logits of tiny-r1 and every fixture, on
every CPU table and in both forms of MLA. For changes that must not change a result.

    same_bits.py --binary build/bin/fathom --against /path/of/the/other/fathom
"""
import argparse
import concurrent.futures
import json
import os
import sys

from run import FORMS, GOLDEN, ROOT, verify

TABLES = {
    "reference": ["--ops", "reference"],
    "reference-fp8": ["--ops", "reference-fp8"],
    "cpu": ["--ops", "cpu"],
    "cpu-fp8": ["--ops", "cpu-fp8"],
    "cpu-bf16": ["--ops", "cpu-bf16"],
    "int8": ["--quantization", "int8"],
    "int4": ["--quantization", "int4"],
    "cpu, FP8 cache": ["--ops", "cpu", "--kv-cache-dtype", "fp8"],
}


def cases():
    models = [(ROOT / "models" / "tiny-r1", GOLDEN / "tiny-r1" / "reference.safetensors")]
    models += [(p.parent, p.parent / "reference.safetensors") for p in sorted(GOLDEN.glob("*/config.json"))]
    for folder, reference in models:
        for table, arguments in TABLES.items():
            for form in ("own", *FORMS):
                yield f"{folder.name} {table} {form}", folder, reference, [*arguments, "--form", form]


def logits_hash(binary, case):
    _, _, out, err = verify(binary, case)
    return json.loads(out)["logits_hash"] if out else "refused: " + err


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/bin/fathom")
    parser.add_argument("--against", required=True)
    arguments = parser.parse_args()
    passed = failed = refused = 0

    def both(case):
        return case[0], logits_hash(arguments.against, case), logits_hash(arguments.binary, case)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, before, after in pool.map(both, cases()):
            if before.startswith("refused") and after.startswith("refused"):
                refused += 1
                print(f"refused {name}: {after}")
                continue
            passed, failed = passed + (before == after), failed + (before != after)
            print(f"{'ok' if before == after else 'FAILED':7} {name:40} {before} {after if after != before else ''}")
    print(f"{passed} passed, {failed} failed, {refused} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
