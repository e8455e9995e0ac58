#!/usr/bin/env python3
"""`fathom plan`'s predictions beside all results that are stored of whole models on GPUs.

Prints a line for each, and a summary, which --write puts into docs/plan.md. --fit finds the shares of a GPU's rates that
fathom's kernels reach, and puts them into apps/plan/gpu_types/h200.json: from the results of one GPU alone, so that those
of several are predicted.
"""
import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from layouts import flags, size

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIGURES = ROOT / "apps" / "plan" / "gpu_types" / "h200.json"
PAGE = ROOT / "docs" / "plan.md"
BEGIN, END = "<!-- tools/plan_errors.py --write -->\n", "<!-- end -->\n"
PUBLISHED = 512_000  # by vLLM, of R1 in FP8 with latents in BF16
FITTED_BY = "tools/plan_errors.py --fit"


@dataclass
class Case:
    shape: str  # of the stored result
    layout: str
    batch: int  # of each group; 0: a prompt
    tokens: int  # of context, or of the prompt
    experts: float  # that were drawn; 0: uniformly
    measured_ms: float
    gpu: tuple = ()  # flags for another GPU than an H200: its rates, as they were measured in the same run

    def arguments(self):
        preset = "v3" if self.shape.startswith("v3") else "v2-lite"
        layers = int(self.shape.split("-")[1]) if preset == "v3" else 27
        dtype = self.shape.split(",")[0].split("-")[-1]
        what = ["--batch-size", self.batch, "--context", round(self.tokens), "--experts-per-layer", self.experts] if self.batch \
            else ["--prefill-len", self.tokens]
        return ["plan", "--json", "--config-preset", preset, "--num-layers", layers, "--dtype", dtype,
                *(flags(self.layout) or ["--tp", 1]), "--max-model-len", 81920, "--prefill-chunk", 4096, *what, *self.gpu]

    def predicted_ms(self, binary, figures):
        command = [binary, *map(str, self.arguments()), "--gpu-file", figures]
        layout = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["layouts"][0]
        return layout["decode"][0]["step_ms"] if self.batch else layout["prefill"][0]["ms"]

    def name(self):
        return f"{self.batch} x {round(self.tokens)}" if self.batch else f"prompt {self.tokens}"


def load(name):
    return json.loads((ROOT / "bench" / "results" / name).read_text())


def cases():
    found = []
    for shape in ("v2-lite-fp8", "v2-lite-bf16", "v3-5-layers-fp8"):
        result = load(f"h200/{shape}.json")
        for r in result["results"]:
            found.append(Case(shape, "1", r["batch_size"], r["decode_context"], r["experts_per_layer"], r["decode_step_ms"]))
        for r in result["prefills"]:
            found.append(Case(shape, "1", 0, r["input_len"], 0, 1e3 * r["input_len"] / r["prefill_tokens_per_s"]))
    for folder in sorted(path.parent.name for path in (ROOT / "bench" / "results").glob("*/models.json")):
        found += cases_of_ranks(folder)
    return found


def cases_of_ranks(folder):
    """Of what tools/ranks_record.py stored."""
    stored = load(f"{folder}/models.json")
    for r in stored["results"]:
        one = next(o for o in stored["results"] if (o["shape"], o["layout"]) == (r["shape"], "1"))
        gpu = () if folder.startswith("h200") else (
            "--gpu-memory", "79GB", "--gpu-bandwidth", one["read_bandwidth_gb_s"], "--gpu-bf16-tflops", one["bf16_peak_gflops"] / 1e3,
            "--gpu-fp8-tflops", one["fp8_peak_gflops"] / 1e3)
        shape = r["shape"] + ("" if not gpu else f", {stored['device'].split()[1]}")
        groups = size(r["layout"], "dp")
        for d in r["results"]:
            yield Case(shape, r["layout"], d["batch_size"] // groups, d["decode_context"], d["experts_per_layer"],
                       1e3 * d["batch_size"] / d["decode_tokens_per_s"], gpu)
        for d in r["prefills"]:
            yield Case(shape, r["layout"], 0, d["input_len"], 0, 1e3 * d["input_len"] / d["prefill_tokens_per_s"], gpu)


def errors(binary, of, figures):
    """Of each case: predicted over measured, less one."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [p / c.measured_ms - 1 for c, p in zip(of, pool.map(lambda c: c.predicted_ms(binary, figures), of))]


def fit(binary):
    """Multiplies one share after the other as long as that lowers the mean square of the logarithms' errors."""
    stored = json.loads(FIGURES.read_text())
    shares = {name: figure["value"] for name, figure in stored["figures"].items() if figure["command"] == FITTED_BY}
    of = [case for case in cases() if case.layout == "1" and not case.gpu]

    def cost(values):
        for name, value in values.items():
            stored["figures"][name]["value"] = float(f"{value:.3g}")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(stored, file)
            file.flush()
            return statistics.fmean(math.log1p(error) ** 2 for error in errors(binary, of, file.name))

    best, factor = cost(shares), 1.15
    while factor > 1.01:
        improved = False
        for name in shares:
            for step in (factor, 1 / factor):
                tried = {**shares, name: shares[name] * step}
                if name.endswith("share") and tried[name] > 1:
                    continue
                if (now := cost(tried)) < best * 0.9999:
                    best, shares, improved = now, tried, True
                    break
        if not improved:
            factor = 1 + (factor - 1) / 2
    cost(shares)
    FIGURES.write_text(json.dumps(stored, indent=1) + "\n")
    print(f"root mean square of the errors' logarithms: {math.sqrt(best):.4f}")


def summary(of, found):
    lines = ["| shape | layout | results | median | worst | within 15 % | within 25 % |", "|---|---|---|---|---|---|---|"]
    for shape, layout in sorted({(c.shape, c.layout) for c in of}):
        mine = [(abs(e), e, c) for c, e in zip(of, found) if (c.shape, c.layout) == (shape, layout)]
        size, worst, case = max(mine, key=lambda m: m[0])
        lines.append(f"| {shape} | {layout} | {len(mine)} | {100 * statistics.median(m[0] for m in mine):.0f} % "
                     f"| {100 * worst:+.0f} %, {case.name()} | {sum(m[0] <= 0.15 for m in mine)} | {sum(m[0] <= 0.25 for m in mine)} |")
    return "\n".join(lines) + "\n"


def capacity(binary):
    done = subprocess.run([binary, "plan", "--config-preset", "v3", "--tp", "8", "--json"], capture_output=True, text=True, check=True)
    tokens = json.loads(done.stdout)["layouts"][0]["kv_cache_tokens"]
    return f"\nR1's KV cache on eight H200s: {tokens:,} tokens predicted, {PUBLISHED:,} published: {100 * (tokens / PUBLISHED - 1):+.0f} %.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "bin" / "fathom"))
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true", help="print nothing, but fail if docs/plan.md says otherwise")
    options = parser.parse_args()
    if options.fit:
        fit(options.binary)
    of = cases()
    found = errors(options.binary, of, str(FIGURES))
    text = summary(of, found) + capacity(options.binary)
    if options.check:
        if BEGIN + text + END not in PAGE.read_text():
            sys.exit("docs/plan.md has other errors than today's predictions: tools/plan_errors.py --write")
        return
    for case, error in zip(of, found):
        print(f"{case.shape:<16} {case.layout:<9} {case.name():>14} measured {case.measured_ms:8.2f} ms, "
              f"predicted {case.measured_ms * (1 + error):8.2f}, {100 * error:+.0f} %")
    print(text, end="")
    if options.write:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(before + BEGIN + text + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
