#!/usr/bin/env python3
"""Checks and measures ranks on this machine's GPUs (two or more) from an unpacked bundle, and stores JSON.

    ranks_record.py --bundle FOLDER [--only tests,two-hosts,golden,accuracy,exchange,v2-lite-fp8,v2-lite-bf16,v3]
    ranks_record.py --write | --check      puts tables of what is stored into docs/ranks.md, or says whether they are there

It stores in bench/results/, in a folder by the devices' name and number ("NVIDIA H200", 2 of them: h200-x2): checks.json holds
the tests of peers and of their failures, two processes as two hosts, golden comparisons and accuracy by layout; peer_ops.json and rank_threads_*.json what exchanges and launches
take; models.json what whole models do in each layout, beside one GPU.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

from cuda_sources import ROOT
from gpu_record import GOLDEN, TINY, Recorder, utc_now
from layouts import flags, keeps_bits, short, size

PAGE = ROOT / "docs" / "ranks.md"
BEGIN, END = "<!-- tools/ranks_record.py --write -->\n", "<!-- end -->\n"
PARTS = ["tests", "two-hosts", "golden", "accuracy", "exchange", "v2-lite-fp8", "v2-lite-bf16", "v3"]
# Of so many GPUs: checked, and measured.
LAYOUTS = {2: ["1", "tp 2", "pp 2", "dp 2 + ep", "dp 2", "pp 2, BF16 residual"],
           4: ["1", "tp 4", "pp 4", "dp 4 + ep", "tp 2 dp 2 + ep", "pp 2 tp 2", "pp 2 dp 2 + ep"]}
MEASURED = {2: ["1", "tp 2", "pp 2", "dp 2 + ep"], 4: ["1", "tp 4", "dp 4 + ep", "pp 2 tp 2"]}
STAGES = "v3-7-layers-fp8"  # whose stages have layers alike
SHAPE = ["--input-len", "1024,8192", "--prefill-len", "4096,16384", "--output-len", "24", "--repeats", "1", "--prefill-chunk", "4096",
         "--max-num-batched-tokens", "8192", "--max-model-len", "20480", "--read-bytes", "2GiB"]
# Differences of one and three layers are a dense layer, of three and five a layer of experts.
MODELS = {"v2-lite-fp8": ["v2-lite-fp8"], "v2-lite-bf16": ["v2-lite-bf16"],
          "v3": ["v3-5-layers-fp8", STAGES, "v3-3-layers-fp8", "v3-1-layers-fp8"]}
DENSE = ("v3-3-layers-fp8", "v3-1-layers-fp8")  # which draw no experts: --synthetic-routing is refused
V3_DENSE, V3_EXPERTS = 3, 58  # layers


class RanksRecorder(Recorder):
    def __init__(self, bundle):
        super().__init__(bundle)
        count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
        self.record["gpus"] = count
        self.layouts, self.measured = LAYOUTS[count], MEASURED[count]
        self.results = self.results.with_name(f"{self.results.name}-x{count}")
        self.results.mkdir(parents=True, exist_ok=True)

    def tests(self):
        """Of peers, and of what is said when one fails; with all ranks on one GPU peers run under compute-sanitizer, by gpu_record.py."""
        tests = self.record["tests"] = self.gtest("peers", "*Linked*:TwoDevices*:CudaFailureDeathTest.ARank*:CudaFailureDeathTest.AHangWhile*", 180)
        if tests["skipped"]:  # nothing else runs them
            self.failures.append(f"peers: {tests['skipped']} of {tests['of']} tests were skipped")
        self.cuda_calls()

    def two_hosts(self):
        """Two processes as two hosts whose GPUs NCCL joins over sockets."""
        folders = [*self.libraries, *(f"{path}/nvidia/nccl/lib" for path in sys.path if path), os.environ.get("LD_LIBRARY_PATH", "")]
        code, out = self.run("two hosts", [sys.executable, "tests/gpu/two_hosts.py", "--binary", self.bin / "fathom", "--model", TINY], 570,
                             environment={"LD_LIBRARY_PATH": ":".join(filter(None, folders))})
        lines = [line for line in out.splitlines() if line.startswith("{")]
        self.record["two_hosts"] = {"exit_code": code, **(json.loads(lines[-1]) if lines else {"said": out[-400:]})}

    def golden(self):
        """Limits of one GPU in each layout, and its bits where a layout changes none."""
        cases = []
        for folder in [TINY, *sorted(p.parent for p in GOLDEN.glob("*/config.json"))]:
            layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
            for ops in ("cuda", "cuda-fp8") if folder == TINY else ("cuda",):
                cases += [(folder, ops, layout) for layout in self.layouts if layers >= size(layout, "pp")]
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            results = dict(zip(cases, pool.map(lambda case: self.verify(*case), cases)))
        self.record["golden"] = {f"{folder.name} {ops}, {layout}": result for (folder, ops, layout), result in results.items()}
        hashes = {case: result.get("logits_hash") for case, result in results.items()}
        for (folder, ops, layout), value in hashes.items():
            if keeps_bits(layout) and (value is None or value != hashes[folder, ops, "1"]):
                self.failures.append(f"{folder.name} {ops}, {layout}: other bits than one GPU's")
        if hashes[TINY, "cuda", self.layouts[1]] == hashes[TINY, "cuda", "1"]:
            self.failures.append("the hash of logits notices nothing of tensor-parallel ranks")

    def verify(self, folder, ops, layout):
        reference = (GOLDEN / "tiny-r1" if folder == TINY else folder) / "reference.safetensors"
        code, out = self.run(f"{folder.name} {ops}, {layout}", [
            self.bin / "fathom", "verify", folder, "--reference", reference, "--ops", ops, "--form", "expanded", "--json",
            *flags(layout)], 60, must_pass=folder == TINY)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"exit_code": code, "said": out[-400:]}

    def accuracy(self):
        self.record["accuracy"] = {}
        for layout in self.measured[1:]:
            code, out = self.run(f"accuracy over HTTP, {layout}", [
                sys.executable, "tests/e2e/accuracy.py", "--binary", self.bin / "fathom", "--model", TINY, "--device", "cuda", "--plain",
                "--max-changed", "0.03", "--sample", "4", "--serve-flags", " ".join(flags(layout))], 120)
            self.record["accuracy"][layout] = {"exit_code": code, "report": [
                line for line in out.splitlines() if not line.endswith(" answered")][-8:]}

    def exchange(self):
        self.run("peer_ops", [self.bin / "peer_ops_bench", "--json", self.results / "peer_ops.json"], 90)
        for mode in ("times", "enqueue"):
            self.run(f"rank_threads {mode}", [self.bin / "rank_threads_bench", mode, "--json", self.results / f"rank_threads_{mode}.json"], 60)

    def models(self, part):
        path = self.results / "models.json"
        stored = json.loads(path.read_text())["results"] if path.exists() else []
        for shape in MODELS[part]:
            preset, dtype = shape.split("-fp8")[0].split("-bf16")[0], shape.rsplit("-", 1)[1]
            what = ["--config-preset", "v3", "--num-layers", preset.split("-")[1]] if part == "v3" else ["--config-preset", preset, "--dtype", dtype]
            routing = [] if shape in DENSE else ["--synthetic-routing", "uniform"]
            for layout in self.measured:
                if part == "v3" and layout != "1" and ("pp" in layout) != (shape == STAGES):
                    continue
                batches = [size(layout, "dp") * each for each in (1, 8, 32, 128 * size(layout, "pp"))]  # full steps of all stages at last
                code, out = self.run(f"{shape}, {layout}", [
                    self.bin / "fathom", "bench", "offline", "--device", "cuda", "--json", "--load-format", "dummy", *what, *flags(layout),
                    "--batch-size", ",".join(map(str, batches)), *SHAPE, *routing], 120)
                lines = [line for line in out.splitlines() if line.startswith("{")]
                if code != 0 or not lines:
                    continue
                result = {"shape": shape, "layout": layout, "sources": self.record["sources"], "date": utc_now(), **json.loads(lines[-1])}
                stored = [s for s in stored if (s["shape"], s["layout"]) != (shape, layout)] + [result]
                self.store("models", {"device": self.record["device"], "gpus": self.record["gpus"], "results": stored})


NAMES = {"v2-lite-fp8": "Lite FP8", "v2-lite-bf16": "Lite BF16", "v3-5-layers-fp8": "V3, 5", "v3-7-layers-fp8": "V3, 7"}


def decodes(result):
    """Tokens a second, and distinct experts of a layer, by requests of a group and context."""
    groups = size(result["layout"], "dp")
    return {(r["batch_size"] // groups, r["input_len"]): (r["decode_tokens_per_s"], r["experts_per_layer"]) for r in result["results"]}


def layout_rows(results):
    """Rows of each layout beside one GPU, with as many requests in each group, or at last in each stage's step; and of experts."""
    rates, experts = [], []
    for (shape, layout), result in results.items():
        if layout == "1" or shape not in NAMES:
            continue
        one, two, name = decodes(results[shape, "1"]), decodes(result), short(layout)
        prompts = zip(results[shape, "1"]["prefills"], result["prefills"])
        for context, (prompt, prompt_of) in zip((1024, 8192), prompts):
            pairs = [(one[batch, context], two.get((batch, context)) or two[size(layout, "pp") * batch, context]) for batch in (1, 8, 32, 128)]
            cells = [f"{alone:,.0f} x {of / alone:.2f}" for (alone, _), (of, _) in pairs]
            alone, of = prompt["prefill_tokens_per_s"], prompt_of["prefill_tokens_per_s"]
            rates.append(f"| {NAMES[shape]} | {name} | {context // 1024}k | {' | '.join(cells)} | {alone / 1e3:.0f}k x {of / alone:.2f} |")
        drawn = [f"{a:.0f}" if a == b else f"{a:.0f} → {b:.0f}" for (_, a), (_, b) in pairs]
        experts.append(f"| {NAMES[shape]} | {name} | {' | '.join(drawn)} |")
    return rates, experts


def v3_parts(results, layout):
    """Of each (requests of a group, context): microseconds of a dense layer, of one with experts, and of all else (embedding, head,
    sampling), from shapes of one, three and five layers."""
    one, three, five = (results[f"v3-{n}-layers-fp8", layout]["results"] for n in (1, 3, 5))
    groups = size(layout, "dp")
    for a, b, c in zip(one, three, five):
        dense, experts = (500 * (more["decode_step_ms"] - fewer["decode_step_ms"]) for fewer, more in ((a, b), (b, c)))
        yield (a["batch_size"] // groups, a["input_len"]), {
            "dense": dense, "experts": experts, "head": 1e3 * a["decode_step_ms"] - dense}


def layer_rows(results, gpus):
    """Microseconds of V3's parts on one GPU and on several; of a layer, the most that tensor-parallel ranks may take."""
    tensor, groups = f"tp {gpus}", f"dp {gpus} + ep"
    of = {layout: dict(v3_parts(results, layout)) for layout in ("1", tensor, groups) if ("v3-1-layers-fp8", layout) in results}
    read = {n: results[f"v3-{n}-layers-fp8", "1"] for n in (1, 3, 5)}
    for part, (fewer, more) in {"dense": (1, 3), "experts": (3, 5), "head": (0, 1)}.items():
        for i, (cell, us) in enumerate(of["1"].items()):
            most = "-"
            if part != "head":
                layer = sum(sign * read[n]["results"][i]["weight_bytes_per_step"] for n, sign in ((more, 1), (fewer, -1))) / 2
                most = f"{us[part] - 0.8 * layer * (gpus - 1) / gpus / (1e3 * read[5]['read_bandwidth_gb_s']) + 16:.0f}"
            dp = f"{of[groups][cell][part]:.0f}" if groups in of else "not measured"
            yield f"| {part} | {cell[0]} | {cell[1]} | {us[part]:.0f} | {of[tensor][cell][part]:.0f} | {most} | {dp} |"
    for cell in of["1"]:
        whole = {layout: f"{V3_DENSE * parts[cell]['dense'] + V3_EXPERTS * parts[cell]['experts'] + parts[cell]['head']:.0f}"
                 for layout, parts in of.items()}
        yield f"| 61 layers | {cell[0]} | {cell[1]} | {whole['1']} | {whole[tensor]} | - | {whole.get(groups, 'not measured')} |"


def verdict_of_tests(tests):
    if "of" not in tests:  # stored before each test was
        return "; ".join(re.findall(r"PASSED  \] (\d+) tests?", " ".join(tests["summary"]))) + " passed"
    return f"{tests['passed']} of {tests['of']} passed" + (f", {tests['skipped']} skipped" if tests["skipped"] else "")


def verdict_of_two_hosts(record):
    checks = record.get("checks", {}).values()
    said = f"{sum(check['passed'] for check in checks)} of {len(checks)} checks"
    ends = [(check["error_s"], check["end_s"]) for check in checks if "error_s" in check]
    if ends:
        error_s, end_s = map(max, zip(*ends))
        said += f"; one lost: an error in {error_s:.2f} s, end in {end_s:.2f}"
    return said


def beside_one(golden):
    """(layout, result, that of one GPU) of each comparison on several."""
    for name, result in golden.items():
        layout = name.split(", ", 1)[1]
        if layout != "1":
            yield layout, result, golden[name.removesuffix(layout) + "1"]


def verdict_of_bits(golden):
    alike = ["logits_hash" in one and result.get("logits_hash") == one["logits_hash"]
             for layout, result, one in beside_one(golden) if keeps_bits(layout)]
    return f"{sum(alike)} of {len(alike)} comparisons"


def verdict_of_errors(golden):
    times, key = {}, "median_position_error"
    for layout, result, one in beside_one(golden):
        if not keeps_bits(layout) and key in result and key in one:
            times[layout] = max(times.get(layout, 0), result[key] / one[key])
    return "; ".join(f"{layout}: {most:.2f}" for layout, most in times.items())


def verdict_of_accuracy(layouts):
    means = {layout: next((line.split() for line in accuracy["report"] if line.startswith("mean ")), None) for layout, accuracy in layouts.items()}
    return "; ".join(f"{layout}: {float(mean[2]):.3f}" if mean else f"{layout}: none" for layout, mean in means.items())


def check_rows(record):
    """What checks.json says."""
    for what, part, verdict in (("tests of peers", "tests", verdict_of_tests),
                                ("two hosts, over sockets", "two_hosts", verdict_of_two_hosts),
                                ("the bits of one GPU, where a layout keeps them", "golden", verdict_of_bits),
                                ("largest error, times one GPU's", "golden", verdict_of_errors),
                                ("share of right answers over HTTP, 32 in flight", "accuracy", verdict_of_accuracy)):
        yield f"| {what} | {verdict(record[part]) if part in record else 'not run'} |"


def tables():
    lines = []
    for folder in sorted(path.parent.name for path in (ROOT / "bench" / "results").glob("*/models.json")):
        stored = json.loads((ROOT / "bench" / "results" / folder / "models.json").read_text())
        results = {(r["shape"], r["layout"]): r for r in stored["results"]}
        rates, experts = layout_rows(results)
        lines += ["", f"{stored['gpus']} x {stored['device']}: tokens a second of one GPU x the times that all have:", "",
                  "| shape | layout | context | 1 | 8 | 32 | 128 | prompt |", "|---|---|---|---|---|---|---|---|", *rates,
                  "", "Distinct experts of a layer, of one GPU → of all where they are others:", "",
                  "| shape | layout | 1 | 8 | 32 | 128 |", "|---|---|---|---|---|---|", *experts]
        if ("v3-1-layers-fp8", f"tp {stored['gpus']}") in results:
            lines += ["", "V3's parts, in microseconds, and all 61 layers with the head added up:", "",
                      "| part | requests | context | one | tp | at most | dp + ep |", "|---|---|---|---|---|---|---|", *layer_rows(results, stored["gpus"])]
        checks = ROOT / "bench" / "results" / folder / "checks.json"
        if checks.exists():
            lines += ["", "Checks of that machine:", "", "| what | verdict |", "|---|---|",
                      *check_rows(json.loads(checks.read_text()))]
    return "\n".join(lines) + "\n\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(PARTS), metavar="PARTS", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--layouts", metavar="NAMES", help="of those that are measured, with commas between")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    parser.add_argument("--check", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.write or options.check:
        before, rest = PAGE.read_text().split(BEGIN)
        page = before + BEGIN + tables() + END + rest.split(END)[1]
        if options.check and page != PAGE.read_text():
            sys.exit("docs/ranks.md has other figures than bench/results/: tools/ranks_record.py --write")
        return PAGE.write_text(page)
    if options.bundle is None or not set(options.only.split(",")) <= set(PARTS):
        parser.error(f"--bundle FOLDER, and --only with some of {', '.join(PARTS)}")
    os.chdir(ROOT)
    recorder = RanksRecorder(options.bundle.resolve())
    if options.layouts:
        recorder.measured = options.layouts.split(",")
    failed = []
    path = recorder.results / "checks.json"
    if path.exists() and json.loads(path.read_text())["sources"] == recorder.record["sources"]:  # parts of one day
        recorder.record = {**json.loads(path.read_text()), "date": recorder.record["date"]}
    for part in options.only.split(","):
        recorder.failures = []
        recorder.models(part) if part in MODELS else getattr(recorder, part.replace("-", "_"))()
        recorder.record.setdefault("failures", {})[part] = recorder.failures
        failed += recorder.failures
        recorder.store("checks", recorder.record)
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
