#!/usr/bin/env python3
"""Checks and measures ranks on this machine's GPUs (two or more) from an unpacked bundle, and stores JSON.

    ranks_record.py --bundle FOLDER [--only tests,golden,accuracy,exchange,v2-lite-fp8,v2-lite-bf16,v3]
    ranks_record.py --tables h200-x2       prints the tables of what is stored of those GPUs

It stores in bench/results/, in a folder by the devices' name and number ("NVIDIA H200", 2 of them: h200-x2): checks.json holds
the tests of peers, golden comparisons and accuracy by layout; peer_ops.json and rank_threads_*.json what exchanges and launches
take; models.json what whole models do in each layout, beside one GPU.
"""
import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys

from cuda_sources import ROOT
from gpu_record import GOLDEN, TINY, Recorder, utc_now

PARTS = ["tests", "golden", "accuracy", "exchange", "v2-lite-fp8", "v2-lite-bf16", "v3"]
LAYOUTS = {"1": [], "tp 2": ["--tp", "2"], "pp 2": ["--pp", "2"], "dp 2 + ep": ["--dp", "2", "--enable-expert-parallel"],
           "dp 2": ["--dp", "2"], "pp 2, BF16 residual": ["--pp", "2", "--bf16-residual"]}
BITS_OF_ONE = ("pp 2", "dp 2 + ep")
# Requests; two groups have as many each as one GPU, and two stages at last in each step.
BATCHES = {"1": "1,8,32,128", "tp 2": "1,8,32,128", "pp 2": "1,8,32,256", "dp 2 + ep": "2,16,64,256"}
SHAPE = ["--input-len", "1024,8192", "--prefill-len", "4096,16384", "--output-len", "24", "--repeats", "1", "--prefill-chunk", "4096",
         "--max-num-batched-tokens", "8192", "--max-model-len", "20480", "--synthetic-routing", "uniform", "--read-bytes", "2GiB"]
# Differences of one and three layers are a dense layer, of three and five a layer of experts; stages have layers alike in seven.
MODELS = {"v2-lite-fp8": [("v2-lite-fp8", ["1", "tp 2", "pp 2", "dp 2 + ep"])], "v2-lite-bf16": [("v2-lite-bf16", ["1", "tp 2", "pp 2", "dp 2 + ep"])],
          "v3": [("v3-5-layers-fp8", ["1", "tp 2", "dp 2 + ep"]), ("v3-7-layers-fp8", ["1", "pp 2"]), ("v3-3-layers-fp8", ["1", "tp 2"]),
                 ("v3-1-layers-fp8", ["1", "tp 2"])]}


class RanksRecorder(Recorder):
    def __init__(self, bundle):
        super().__init__(bundle)
        count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
        self.record["gpus"] = count
        self.results = self.results.with_name(f"{self.results.name}-x{count}")
        self.results.mkdir(parents=True, exist_ok=True)

    def tests(self):
        """Of peers; with all ranks on one GPU they run under compute-sanitizer, by gpu_record.py."""
        code, out = self.run("peers", [self.bin / "cuda_test", "--gtest_brief=1", "--gtest_filter=*Linked*:TwoDevices*"], 60)
        self.record["tests"] = {"exit_code": code, "summary": [line for line in out.splitlines() if " ran. (" in line or "PASSED" in line]}

    def golden(self):
        """Limits of one GPU in each layout, and its bits where a layout changes none."""
        cases = []
        for folder in [TINY, *sorted(p.parent for p in GOLDEN.glob("*/config.json"))]:
            layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
            for ops in ("cuda", "cuda-fp8") if folder == TINY else ("cuda",):
                cases += [(folder, ops, layout) for layout in LAYOUTS if "pp" not in layout or layers > 1]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            results = dict(zip(cases, pool.map(lambda case: self.verify(*case), cases)))
        self.record["golden"] = {f"{folder.name} {ops}, {layout}": result for (folder, ops, layout), result in results.items()}
        hashes = {case: result.get("logits_hash") for case, result in results.items()}
        for (folder, ops, layout), value in hashes.items():
            if layout in BITS_OF_ONE and (value is None or value != hashes[folder, ops, "1"]):
                self.failures.append(f"{folder.name} {ops}, {layout}: other bits than one GPU's")
        if hashes[TINY, "cuda", "tp 2"] == hashes[TINY, "cuda", "1"]:
            self.failures.append("the hash of logits notices nothing of tensor-parallel ranks")

    def verify(self, folder, ops, layout):
        reference = (GOLDEN / "tiny-r1" if folder == TINY else folder) / "reference.safetensors"
        code, out = self.run(f"{folder.name} {ops}, {layout}", [
            self.bin / "fathom", "verify", folder, "--reference", reference, "--ops", ops, "--form", "expanded", "--json",
            *LAYOUTS[layout]], 60, must_pass=folder == TINY)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"exit_code": code, "said": out[-400:]}

    def accuracy(self):
        self.record["accuracy"] = {}
        for layout in ("tp 2", "pp 2", "dp 2 + ep"):
            code, out = self.run(f"accuracy over HTTP, {layout}", [
                sys.executable, "tests/e2e/accuracy.py", "--binary", self.bin / "fathom", "--model", TINY, "--device", "cuda", "--plain",
                "--max-changed", "0.03", "--sample", "4", "--serve-flags", " ".join(LAYOUTS[layout])], 120)
            self.record["accuracy"][layout] = {"exit_code": code, "report": [
                line for line in out.splitlines() if not line.endswith(" answered")][-8:]}

    def exchange(self):
        self.run("peer_ops", [self.bin / "peer_ops_bench", "--json", self.results / "peer_ops.json"], 90)
        for mode in ("times", "enqueue"):
            self.run(f"rank_threads {mode}", [self.bin / "rank_threads_bench", mode, "--json", self.results / f"rank_threads_{mode}.json"], 60)

    def models(self, part):
        path = self.results / "models.json"
        stored = json.loads(path.read_text())["results"] if path.exists() else []
        for shape, layouts in MODELS[part]:
            preset, dtype = shape.split("-fp8")[0].split("-bf16")[0], shape.rsplit("-", 1)[1]
            what = ["--config-preset", "v3", "--num-layers", preset.split("-")[1]] if part == "v3" else ["--config-preset", preset, "--dtype", dtype]
            for layout in layouts:
                code, out = self.run(f"{shape}, {layout}", [
                    self.bin / "fathom", "bench", "offline", "--device", "cuda", "--json", "--load-format", "dummy", *what, *LAYOUTS[layout],
                    "--batch-size", BATCHES[layout], *SHAPE], 120)
                lines = [line for line in out.splitlines() if line.startswith("{")]
                if code != 0 or not lines:
                    continue
                result = {"shape": shape, "layout": layout, "sources": self.record["sources"], "date": utc_now(), **json.loads(lines[-1])}
                stored = [s for s in stored if (s["shape"], s["layout"]) != (shape, layout)] + [result]
                self.store("models", {"device": self.record["device"], "gpus": self.record["gpus"], "results": stored})


def tables(folder):
    """Each layout beside one GPU, with as many requests in each group."""
    results = {(r["shape"], r["layout"]): r for r in json.loads((ROOT / "bench" / "results" / folder / "models.json").read_text())["results"]}
    print("| shape | layout | requests of a group | context | one | two | times | experts, one / two |\n" + "|---" * 8 + "|")
    for (shape, layout), result in results.items():
        one, groups = results[shape, "1"], 2 if layout.startswith("dp") else 1
        if layout == "1":
            continue
        alone = {(r["batch_size"], r["input_len"]): r for r in one["results"]}
        for r in result["results"]:
            batch, context = r["batch_size"] // groups, r["input_len"]
            base = alone.get((batch, context)) or alone[(batch // 2, context)]  # as many in a step of each stage
            print(f"| {shape} | {layout} | {base['batch_size']} / {batch} | {context} | {base['decode_tokens_per_s']:,.0f} "
                  f"| {r['decode_tokens_per_s']:,.0f} | {r['decode_tokens_per_s'] / base['decode_tokens_per_s']:.2f} "
                  f"| {base['experts_per_layer']:.0f} / {r['experts_per_layer']:.0f} |")
        for a, b in zip(one["prefills"], result["prefills"]):
            print(f"| {shape} | {layout} | prompt | {b['input_len']} | {a['prefill_tokens_per_s']:,.0f} | {b['prefill_tokens_per_s']:,.0f} "
                  f"| {b['prefill_tokens_per_s'] / a['prefill_tokens_per_s']:.2f} | |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--tables", metavar="FOLDER", help="of bench/results/: measures nothing")
    options = parser.parse_args()
    if options.tables:
        return tables(options.tables)
    if options.bundle is None or not set(options.only.split(",")) <= set(PARTS):
        parser.error(f"--bundle FOLDER, and --only with some of {', '.join(PARTS)}")
    recorder = RanksRecorder(options.bundle.resolve())
    failed = []
    path = recorder.results / "checks.json"
    if path.exists() and json.loads(path.read_text())["sources"] == recorder.record["sources"]:  # parts of one day
        recorder.record = {**json.loads(path.read_text()), "date": recorder.record["date"]}
    for part in options.only.split(","):
        recorder.failures = []
        recorder.models(part) if part in MODELS else getattr(recorder, part)()
        recorder.record.setdefault("failures", {})[part] = recorder.failures
        failed += recorder.failures
        recorder.store("checks", recorder.record)
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
