#!/usr/bin/env python3
"""`fathom plan`'s predictions beside all results that are stored of whole models on GPUs.

Prints a line for each, and a summary, which --write puts into docs/plan.md. --fit puts the rates that bench/results/ has
into apps/plan/gpu_types/h200.json, and then the shares of them that fathom's kernels reach, which it finds: from the
results of one GPU alone, so that those of several are predicted. --rates only compares these rates with bench/results/,
for which no binary is needed.
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
MODEL, PEERS, MORE_PEERS = "h200/v3-5-layers-fp8.json", "h200-x2/peer_ops.json", "h200-x4/peer_ops.json"
SMALL_BYTES = 72 * 7168 * 2  # what 73 tokens have more than one: V3's channels in BF16


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


def recorded_rates():
    """Of each rate of h200.json that bench/results/ has: name, value, command, and where it stands."""
    model = load(MODEL)
    for name, key in (("read_bytes_per_s", "read_bandwidth_gb_s"), ("bf16_operations_per_s", "bf16_peak_gflops"),
                      ("fp8_operations_per_s", "fp8_peak_gflops")):
        yield name, 1e9 * model[key], model["command"], f"bench/results/{MODEL}, {key}"
    threads = "h200-x2/rank_threads_times.json"
    yield ("peer_bytes_per_s", 1e9 * load(threads)["read_peer_528_blocks_gb_s"], "rank_threads_bench times",
           f"bench/results/{threads}, read_peer_528_blocks_gb_s")
    two, four = ({r["name"]: r for r in load(name)["results"]} for name in (PEERS, MORE_PEERS))
    more = lambda of, tokens: 1e-6 * of[f"all_reduce_norm of {tokens} tokens"]["more_us"]
    small = statistics.fmean(more(two, tokens) for tokens in (1, 2, 4, 8, 16))
    for name, value, where in (
            ("small_all_reduce_s", small, f"{PEERS}, all_reduce_norm of 1 to 16 tokens: more_us, the mean"),
            ("small_all_reduce_s_per_peer", (more(four, 1) - small) / 2, f"{MORE_PEERS}, half of: more_us of 1 token less small_all_reduce_s"),
            ("small_all_reduce_s_per_byte", (more(two, 73) - more(two, 1)) / SMALL_BYTES,
             f"{PEERS}, more_us of 73 tokens less that of 1 token / {SMALL_BYTES} bytes"),
            ("barrier_s", 1e-6 * two["barrier"]["us"], f"{PEERS}, barrier")):
        yield name, value, "peer_ops_bench", f"bench/results/{where}"


def with_recorded_rates(stored):
    """What h200.json should be, its fitted shares aside."""
    rates = {name: {"value": float(f"{value:.6g}"), "command": command, "stored": where}
             for name, value, command, where in recorded_rates()}
    return {**stored, "figures": {**stored["figures"], **rates}}


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
    stored = with_recorded_rates(json.loads(FIGURES.read_text()))
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
    parser.add_argument("--rates", action="store_true", help="fail if h200.json has other rates than bench/results/, and no more")
    options = parser.parse_args()
    figures = json.loads(FIGURES.read_text())
    if (options.rates or options.check) and figures != with_recorded_rates(figures):
        sys.exit("apps/plan/gpu_types/h200.json has other rates than bench/results/: tools/plan_errors.py --fit, then build, then --write")
    if options.rates:
        return
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
