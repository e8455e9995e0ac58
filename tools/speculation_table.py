#!/usr/bin/env python3
"""What speculation brings on a GPU, beside what the bytes and operations of its steps allow.

    speculation_table.py --measure BINARY    runs `fathom bench offline` of each shape and depth on this machine's GPU, and
                                             stores what it printed in bench/results/h200/speculation/
    speculation_table.py [--write | --check] prints the tables of what is stored, or puts them into docs/speculation.md

Weights are random, routing is drawn uniformly, and 0.8 of the drafts stand by chance. V3 fits no single GPU: the time of a
step of its 61 layers is that of 4 layers (3 of them dense, with head, sampling and draft layer), and 57 times a quarter of what
4 further MoE layers took; so is its floor.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "h200" / "speculation"
PAGE = ROOT / "docs" / "speculation.md"
BEGIN, END = "<!-- tools/speculation_table.py --write -->\n", "<!-- end -->\n"
SHAPES = {
    "v2-lite": ["--config-preset", "v2-lite-mtp", "--dtype", "fp8"],
    "v3-4-layers": ["--config-preset", "v3", "--num-layers", "4"],
    "v3-8-layers": ["--config-preset", "v3", "--num-layers", "8"],
}
# Layers and heads, for the operations of attention: 2 (2 latent + rope) of a query and a position that it sees.
ATTENTION = {"v2-lite": (27, 16), "v3-4-layers": (4, 128), "v3-8-layers": (8, 128)}
OPERATIONS_OF_A_PAIR = 2 * (2 * 512 + 64)
DEPTHS = ["0", "1", "2", "3", "4", "adaptive"]
V3_LAYERS, FEW, MANY = 61, 4, 8


def arguments(shape, depth):
    command = ["bench", "offline", "--device", "cuda", "--json", "--load-format", "dummy", *SHAPES[shape],
               "--kv-cache-memory-bytes", "42GiB" if shape == "v2-lite" else "14GiB", "--batch-size", "1,8,32,128",
               "--input-len", "1024,8192", "--prefill-len", "1024", "--prefill-chunk", "4096",
               "--max-num-batched-tokens", "8192", "--synthetic-routing", "uniform", "--repeats", "1",
               # One that chooses has to learn each batch's step times first.
               "--output-len", "400" if depth == "adaptive" else "64"]
    if depth != "0":
        config = {"method": "mtp"} if depth == "adaptive" else {"method": "mtp", "num_speculative_tokens": int(depth)}
        command += ["--synthetic-acceptance", "0.8", "--speculative-config", json.dumps(config)]
    return command


def measure(binary, shapes, depths):
    RESULTS.mkdir(parents=True, exist_ok=True)
    failed = False
    for shape in shapes:
        for depth in depths:
            done = subprocess.run([binary, *arguments(shape, depth)], capture_output=True, text=True)
            print(shape, depth, "ok" if done.returncode == 0 else done.stderr[-2000:], flush=True)
            failed |= done.returncode != 0
            if done.returncode == 0:
                (RESULTS / f"{shape}-{depth}.json").write_text(json.dumps(json.loads(done.stdout), indent=1) + "\n")
    return 1 if failed else 0


def floor_ms(run, r, shape, drafts):
    """The least time of a step. Layers follow each other, and so do a layer's attention and its products: for each of the two the
    longer of its bytes at the rate of reading, and its operations at the peak of their type, both measured in the same run."""
    layers, heads = ATTENTION[shape]
    tokens = layers * (1 + drafts) + (2 * drafts if drafts else 0)  # of a row; the draft layer: 1 + drafts, then one each
    attention = OPERATIONS_OF_A_PAIR * heads * r["batch_size"] * tokens * r["decode_context"]
    rate, bf16, fp8 = 1e6 * run["read_bandwidth_gb_s"], 1e6 * run["bf16_peak_gflops"], 1e6 * run["fp8_peak_gflops"]  # of a ms
    return max(r["weight_bytes_per_step"] / rate, (r["operations_per_step"] - attention) / fp8) + \
        max(r["cache_bytes_per_step"] / rate, attention / bf16)


def steps(shape, depth):
    """By (batch, context): tokens and ms of a step, and its floor in ms."""
    run = json.loads((RESULTS / f"{shape}-{depth}.json").read_text())
    return {(r["batch_size"], r["input_len"]): (r["decode_tokens_per_step"],
                                                1e3 * r["decode_tokens_per_step"] / r["decode_tokens_per_s"],
                                                floor_ms(run, r, shape, 0 if depth == "adaptive" else int(depth)))
            for r in run["results"]}


def whole_v3(depth):
    few, many = steps(f"v3-{FEW}-layers", depth), steps(f"v3-{MANY}-layers", depth)
    longer = (V3_LAYERS - FEW) / (MANY - FEW)
    return {cell: ((few[cell][0] + many[cell][0]) / 2, *(few[cell][i] + longer * (many[cell][i] - few[cell][i]) for i in (1, 2)))
            for cell in few}


def table(of, adaptive):
    """One line for each batch and context; `of(depth)` gives steps, `adaptive(cell)` what choosing brings."""
    fixed = {depth: of(depth) for depth in DEPTHS if depth != "adaptive"}
    lines = ["| requests, context | without | 1 draft | 2 | 3 | 4 | share | as many as pay |", "|---|---|---|---|---|---|---|---|"]
    for cell, (tokens, ms, floor) in fixed["0"].items():
        gains, allowed = [], []
        for depth in DEPTHS[1:5]:
            t, m, f = fixed[depth][cell]
            gains.append(t / m / (tokens / ms))
            allowed.append(t / f / (tokens / floor))
        each = " | ".join(f"{gain:.2f} / {most:.2f}" for gain, most in zip(gains, allowed))
        best, most = max(1, *gains), max(1, *allowed)
        lines.append(f"| {cell[0]}, {cell[1]} | {1e3 * tokens / ms:,.0f} | {each} | {best / most:.2f} | {adaptive(cell)} |")
    return "\n".join(lines) + "\n"


def of_best(shape):
    every = {depth: steps(shape, depth) for depth in DEPTHS}

    def share(cell):
        rate = {depth: every[depth][cell][0] / every[depth][cell][1] for depth in DEPTHS}
        chosen = rate.pop("adaptive")
        return f"{chosen / rate['0']:.2f} ({chosen / max(rate.values()):.2f})"
    return share


def page():
    return (f"V2-Lite in FP8 with a draft layer like V3's (preset `v2-lite-mtp`):\n\n{table(lambda d: steps('v2-lite', d), of_best('v2-lite'))}"
            f"\nV3 in FP8, {V3_LAYERS} layers added up; the last column is of {MANY} layers, as they were measured:\n\n"
            f"{table(whole_v3, of_best(f'v3-{MANY}-layers'))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", metavar="BINARY")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--depths", nargs="+", default=DEPTHS, choices=DEPTHS)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure, args.shapes, args.depths)
    text = page()
    if not (args.write or args.check):
        print(text)
        return 0
    before, rest = PAGE.read_text().split(BEGIN)
    old, after = rest.split(END)
    if args.check:
        if old != text:
            print(f"{PAGE.relative_to(ROOT)} is not what {pathlib.Path(__file__).name} --write makes", file=sys.stderr)
        return int(old != text)
    PAGE.write_text(before + BEGIN + text + END + after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
