#!/usr/bin/env python3
"""Runs the tests and benchmarks of an unpacked bundle on this machine's GPU, and stores JSON.

    gpu_record.py --bundle FOLDER [--quick | --only sanitizers,accuracy]

It stores in bench/results/, in a folder by the device's name ("NVIDIA H200": h200). tests.json holds device, driver, date (and
the dates of parts that ran again), the hash of the CUDA sources that the bundle was built from, every op test with its largest
error, golden comparisons, the calls of CUDA that steps make, checks of kernels, the sanitizer's verdicts, and the
seconds that each took. Benchmarks are stored as they print themselves, one file each; gpu_ratios.py adds how they compare with
cuBLASLt, PyTorch and the limits of the same run.
"""
import argparse
import concurrent.futures
import datetime
import glob
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from cuda_sources import ROOT
from gpu_ratios import add_ratios
from make_performance import of_transformers, read_yardstick

GOLDEN = ROOT / "tests" / "golden"
TINY = ROOT / "models" / "tiny-r1"
PORTABLE = ":".join(("*cuda_portable_1", "*cuda_portable_exact_1", "OneGpu*"))
# By sanitizer: the tests that it runs; those that it cannot run, and why.
SANITIZED = {
    "racecheck": (PORTABLE, "*DoesNotDepend*:*WithoutBatchInvariance*:*DistributionIsTheSoftmax*:*TopK*:*TopP*:*MinP*:*FunctionOfSeed*"
                            ":*ExpertPeersTest.ATokenHasTheBits*:*ProductsBehindIt*",
                  "whose many launches take minutes: small tests run the same kernels; and Hopper's products, whose barriers it does not know"),
    "memcheck": ("*", "*DeathTest*:RealDraftsTest*",
                 "whose children fault on purpose, which the sanitizer waits for without end; and dozens of whole engines, which take minutes"),
    "synccheck": (PORTABLE, "", ""),
}
SHARDS = 15  # of each one's tests: some take ten times as long as others
# What a sanitizer leaves running when it is stopped must not share the GPU with a benchmark: they come last.
PARTS = ["op_tests", "cuda_calls", "kernel_checks", "golden", "accuracy", "kernel_benchmarks", "model_benchmarks", "server", "sanitizers"]


def query(field):
    out = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"],
                         capture_output=True, text=True, check=True)
    return out.stdout.splitlines()[0].strip()


def utc_now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def folder_of(device):
    """Results of one device never replace those of another: "NVIDIA H200" is stored in h200."""
    return ROOT / "bench" / "results" / re.sub(r"[^a-z0-9]+", "-", device.removeprefix("NVIDIA ").lower()).strip("-")


def tests_of(report):
    """Each test of a report of gtest's: whether it passed, or was skipped, and the errors that it says."""
    tests = {}
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            skipped = test["result"] == "SKIPPED"
            entry = {"passed": "failures" not in test and not skipped, **({"skipped": True} if skipped else {})}
            for key in ("largest_error", "largest_share_of_tolerance"):
                if key in test:
                    entry[key] = float(test[key])
            tests[f"{suite['name']}.{test['name']}".replace("All/", "")] = entry
    return tests


class Recorder:
    def __init__(self, bundle):
        self.bin = bundle / "bin"
        # CUDA's libraries come from this machine: of its toolkit, or of its PyTorch.
        folders = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", *(f"{path}/nvidia/cu13/lib" for path in sys.path if path)]
        self.libraries = [folder for folder in folders if os.path.isdir(folder)]
        self.failures = []
        self.record = {"device": query("name"), "driver": query("driver_version"),
                       "system": platform.freedesktop_os_release()["PRETTY_NAME"],
                       "date": utc_now(), "sources": (bundle / "sources").read_text().strip(), "seconds": {}}
        self.results = folder_of(self.record["device"])

    def run(self, name, command, timeout, must_pass=True, environment=None):
        """(exit code, output), with a line of what happened; what need not pass may lie beyond a limit."""
        begin = time.monotonic()
        environment = {**os.environ, **(environment or {})}
        if str(command[0]).startswith(str(self.bin)):
            environment["LD_LIBRARY_PATH"] = ":".join(self.libraries)
        process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   errors="replace", env=environment, start_new_session=True)
        try:
            out, _ = process.communicate(timeout=timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            code, out = 124, f"took more than {timeout} s"
        finally:
            if process.poll() is None:  # what it began, too: a sanitizer's program would stay on the GPU
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        seconds = self.record["seconds"][name] = round(time.monotonic() - begin, 1)
        word = "ok" if code == 0 else "FAILED" if must_pass else "beyond"
        print(f"{word:7} {name:44} {seconds:6.1f} s", flush=True)
        if code != 0 and must_pass:
            self.failures.append(name)
            print("\n".join(out.splitlines()[-15:]), flush=True)
        return code, out

    def gtest(self, name, tests, timeout):
        """What the tests of this filter said, each; a skipped one has not passed."""
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "tests.json"
            code, _ = self.run(name, [self.bin / "cuda_test", "--gtest_brief=1", f"--gtest_filter={tests}",
                                      f"--gtest_output=json:{report}"], timeout)
            entries = tests_of(json.loads(report.read_text())) if report.exists() else {}
        if code == 0 and not entries:
            self.failures.append(f"{name}: there are no tests {tests}")
        return {"exit_code": code, "passed": sum(t["passed"] for t in entries.values()),
                "skipped": sum("skipped" in t for t in entries.values()), "of": len(entries), "tests": entries}

    def op_tests(self):
        self.record["op_tests"] = self.gtest("op tests", "-CudaCallsTest*", 200)

    def cuda_calls(self):
        """That steps neither allocate nor wait, counted with CUPTI, which toolkits and PyTorch bring."""
        found = [path for folder in (*self.libraries, "/usr/local/cuda/extras/CUPTI/lib64")
                 for path in glob.glob(f"{folder}/libcupti.so.13")]
        with tempfile.TemporaryDirectory() as folder:
            report = pathlib.Path(folder) / "calls.json"
            code, out = self.run("calls of CUDA in a step", [self.bin / "cuda_test", "--gtest_filter=CudaCallsTest*",
                                                               f"--gtest_output=json:{report}"],
                                 60, environment={"FATHOM_CUPTI": found[0]} if found else None)
            self.record["cuda_calls"] = {
                "exit_code": code,
                "per_step": {line.split()[0]: float(line.split()[1]) for line in out.splitlines() if line.endswith(" a step")}}

    def kernel_checks(self):
        check = self.bin / "fp8_gemm_check"
        self.record["kernel_checks"] = {}
        for name in ("dense", "large", "tiles", "one", "grouped", "silu", "quantize", "few", "experts"):
            code, out = self.run(f"fp8_gemm_check {name}", [check, name], 30)
            self.record["kernel_checks"][f"fp8_gemm_check {name}"] = {
                "exit_code": code, "passed": sum(line.startswith("ok ") for line in out.splitlines())}

    def golden(self):
        yardstick = read_yardstick()
        cases = []
        for ops in ("cuda", "cuda-fp8", "cuda-portable"):
            cases.append((f"tiny-r1 {ops}", TINY, GOLDEN / "tiny-r1", ["--ops", ops]))
        for ops in ("cuda", "cuda-portable"):
            cases.append((f"tiny-r1 {ops}, FP8 cache", TINY, GOLDEN / "tiny-r1", ["--ops", ops, "--kv-cache-dtype", "fp8"]))
        for folder in sorted(p.parent for p in GOLDEN.glob("*/config.json")):
            for form in ("absorbed", "expanded"):
                cases.append((f"{folder.name} cuda {form}", folder, folder,
                              ["--ops", "cuda", "--form", form]))
                if "quantization_config" in json.loads((folder / "config.json").read_text()):  # the default of such
                    cases.append((f"{folder.name} cuda-fp8 {form}", folder, folder,
                                  ["--ops", "cuda-fp8", "--form", form]))
        long = GOLDEN / "v3-long-sharded"  # of contexts that are one chunk on a GPU
        cases.append(("v3-long-sharded cuda expanded, chunks of 256", long, long,
                      ["--ops", "cuda", "--form", "expanded", "--context-chunk", "256"]))
        self.record["golden"] = {}
        for name, model, reference, arguments in cases:
            # Rounding turns routers of random checkpoints: only the trained one must keep the limit.
            code, out = self.run(name, [self.bin / "fathom", "verify", model, "--reference",
                                        reference / "reference.safetensors", "--json", *arguments], 60,
                                 must_pass=model == TINY)
            lines = [line for line in out.splitlines() if line.startswith("{")]
            result = self.record["golden"][name] = json.loads(lines[-1]) if lines else {"exit_code": code}
            # Rounding must not cost more than it does there: the median position has no turned router.
            theirs = of_transformers(yardstick, name)["median_position_error"]
            if not result.get("median_position_error", 1) <= 2 * theirs:
                self.failures.append(f"{name}: the median position loses more than twice what transformers does by rounding")

    def accuracy(self):
        code, out = self.run("accuracy over HTTP", [sys.executable, "tests/e2e/accuracy.py", "--binary",
                                                    self.bin / "fathom", "--model", TINY, "--device", "cuda",
                                                    "--plain", "--max-changed", "0.03"], 120)
        mean = [line.split() for line in out.splitlines() if line.startswith("mean ")]
        self.record["accuracy"] = {"exit_code": code, "mean": float(mean[-1][2]) if mean else None,
                                   "reference": float(mean[-1][3]) if mean else None,
                                   "report": [line for line in out.splitlines() if not line.endswith(" answered")][-8:]}

    def sanitizers(self):
        """All side by side: they wait for their processes more than for the GPU."""
        verdicts = self.record["sanitizers"] = {}
        tool = shutil.which("compute-sanitizer")
        if tool is None:
            print("compute-sanitizer is not installed")
            self.failures.append("compute-sanitizer is not installed")
            verdicts["compute-sanitizer"] = {"exit_code": None, "summary": "not run: it is not installed", "tests": 0}
            return

        def run_shard(job):
            check, shard = job
            tests, left_out, _ = SANITIZED[check]
            return self.run(f"{check} {shard + 1} of {SHARDS}", [
                tool, "--tool", check, "--error-exitcode", "9", self.bin / "cuda_test", "--gtest_brief=1",
                f"--gtest_filter={tests}-CudaCallsTest*:{left_out}"], 300, environment={
                    "GTEST_TOTAL_SHARDS": str(SHARDS), "GTEST_SHARD_INDEX": str(shard)})

        jobs = [(check, shard) for check in SANITIZED for shard in range(SHARDS)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(run_shard, jobs))
        for check, (tests, left_out, why) in SANITIZED.items():
            codes, outs = zip(*(result for job, result in zip(jobs, results) if job[0] == check))
            summaries = {line.strip("= ") for out in outs for line in out.splitlines() if "SUMMARY" in line}
            if 124 in codes:
                summaries.add(f"{codes.count(124)} of {SHARDS} parts did not end")
            counted = lambda pattern: sum(int(count) for out in outs for count in re.findall(pattern, out))
            skipped = counted(r"\[  SKIPPED \] (\d+) tests?[.,]")
            verdicts[check] = {"exit_code": max(codes, key=abs), "summary": "; ".join(sorted(summaries)),
                               "tests": counted(r"(\d+) tests? from .* ran") - skipped, "skipped": skipped, "of": tests, "left_out": left_out.split(":") if left_out else [], "why": why}

    def bench_offline(self, name, *arguments):
        code, out = self.run(name, [self.bin / "fathom", "bench", "offline", "--device", "cuda", "--json", *arguments], 240)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if code == 0 and lines:
            result = json.loads(lines[-1])
            result["sources"], result["driver"] = self.record["sources"], self.record["driver"]
            self.store(name, result)

    def kernel_benchmarks(self):
        self.results.mkdir(parents=True, exist_ok=True)
        mla = self.bin / "mla_decode_bench"
        for name, command in (
                ("mla_decode_check", [mla, "check", "--json"]), ("mla_decode_narrow", [mla, "time", "narrow", "--json"]),
                ("mla_decode_wide", [mla, "time", "wide", "--json"]), ("mla_decode_fp8", [mla, "time", "fp8", "--json"]),
                ("mla_decode_steps", [mla, "time", "steps", "--json"]),
                ("mla_decode_splits", [mla, "time", "splits", "--json"])):
            if mla.exists():
                self.run(name, [*command, self.results / f"{name}.json"], 60)
        flash = self.bin / "flash_attend_bench"
        for mode in ("check", "time"):
            if flash.exists():
                self.run(f"flash_attend_{mode}", [flash, mode, "--json", self.results / f"flash_attend_{mode}.json"], 60)
        for bench, name, cases in (
                ("fp8", "v3", ["v3"]), ("fp8", "large", ["large"]), ("fp8", "small", ["small"]), ("fp8", "few", ["few"]),
                ("fp8", "grouped", ["masked", "grouped", "uneven"]), ("fp8", "silu", ["silu"]), ("fp8", "other", ["other"]),
                ("fp8", "chains", ["chains"]),
                ("fp8", "library", ["library"]), ("bf16", "check", ["check"]), ("bf16", "dense", ["dense"]),
                ("bf16", "some", ["some", "few"]), ("bf16", "experts", ["experts"]), ("bf16", "decode", ["decode"])):
            program = self.bin / f"{bench}_gemm_bench"
            if program.exists():
                limits = [] if name == "check" else ["limits"]
                self.run(f"{bench}_gemm_{name}", [program, self.results / f"{bench}_gemm_{name}.json", *limits, *cases], 90)
        self.printed_benchmark("route", r"^(\S+ +\d+ tokens) +([\d.]+) us")
        self.printed_benchmark("passes", r"^(\S+ .*\d tokens) +([\d.]+) us .* ([\d.]+) of copy")
        self.printed_benchmark("sample", r"^(vocabulary .*\S) +us ([\d.]+)$")
        if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0:
            self.run("sdpa", [sys.executable, "bench/sdpa_bench.py", self.results / "sdpa.json"], 90)
        else:
            print("PyTorch is not installed: its attention is not timed")
        self.record["sdpa"] = (self.results / "sdpa.json").exists()
        add_ratios(self.results)

    def printed_benchmark(self, name, pattern):
        """One that prints a name, microseconds and perhaps a share of a copy's bandwidth a line; route_bench checks bits first."""
        code, out = self.run(name, [self.bin / f"{name}_bench"], 60)
        if code == 0:
            # of a bench that measures the device's bandwidth first
            limits = [{"name": "limits", "copy_GB/s": float(copy), "read_GB/s": float(read)}
                      for copy, read in re.findall(r"^copy ([\d.]+) GB/s, read ([\d.]+) GB/s$", out, re.M)]
            entries = [{"name": " ".join(case.split()), "us": float(us), **({"share_of_copy": float(*share)} if share else {})}
                       for case, us, *share in re.findall(pattern, out, re.M)]
            self.store(name, {"device": self.record["device"], "results": limits + entries})

    def model_benchmarks(self):
        """One load of each model: the contexts, batches and prompts of all lengths follow each other."""
        dummy = ["--load-format", "dummy", "--config-preset"]
        plain = ["--output-len", "128", "--prefill-chunk", "4096", "--max-num-batched-tokens", "8192"]
        each = [*plain, "--synthetic-routing", "uniform"]  # which is refused where all layers are dense
        rest = [*each, "--repeats", "1"]
        shape = ["--batch-size", "1,8,32,128", "--input-len", "1024,4096,8192", "--prefill-len", "4096,16384,65536", *rest]
        self.host_gap(*dummy, "v2-lite", "--dtype", "bf16", "--num-layers", "6", "--batch-size", "128",
                      "--input-len", "128", "--output-len", "256", "--repeats", "1")
        long = ["--input-len", "32768", "--prefill-len", "4096", *rest]
        for dtype in ("bf16", "fp8"):
            v2_lite = [*dummy, "v2-lite", "--dtype", dtype, "--kv-cache-memory-bytes", "42GiB"]
            self.bench_offline(f"v2-lite-{dtype}", *v2_lite, *shape)
            # 128 contexts of 32,768 positions would be 130 GB.
            self.bench_offline(f"v2-lite-{dtype}-32k", *v2_lite, "--batch-size", "1,8,32", *long)
        v3 = [*dummy, "v3", "--num-layers", "5", "--kv-cache-memory-bytes", "28GiB"]
        self.bench_offline("v3-5-layers-fp8", *v3, *shape)
        for name, layers, flags in (("v3-1-layers-fp8", "1", plain), ("v3-3-layers-fp8", "3", plain), ("v3-5-layers-fp8-1k", "5", each)):
            # by which make_performance.py tells kinds of layers apart
            self.bench_offline(name, *dummy, "v3", "--num-layers", layers, "--kv-cache-memory-bytes", "4GiB",
                               "--batch-size", "1,8", "--input-len", "1024", "--prefill-len", "4096", *flags, "--repeats", "5")
        self.bench_offline("v3-5-layers-fp8-32k", *v3, "--batch-size", "1,8,32,128", *long)
        sampled = ["--batch-size", "1,32,128", "--input-len", "1024", "--prefill-len", "4096", *rest, "--temperature", "1"]
        self.bench_offline("v3-5-layers-fp8-sampled", *v3, *sampled)
        self.bench_offline("v2-lite-fp8-sampled", *v2_lite, *sampled)

    def server(self):
        """512 requests over HTTP, 256 at a time. Random weights route alike, and a server draws no routes."""
        sys.path.insert(0, str(ROOT / "tests" / "e2e"))
        from accuracy import running_server
        for dtype in ("bf16", "fp8"):
            flags = ["--config-preset", "v2-lite", "--dtype", dtype, "--load-format", "dummy"]
            try:
                with running_server(self.bin / "fathom", TINY, "cuda", flags) as url:
                    code, out = self.run(f"v2-lite-{dtype}-serve", [
                        self.bin / "fathom", "bench", "serve", "--base-url", url, "--num-prompts", "512", "--max-concurrency", "256",
                        "--random-input-len", "1024", "--random-output-len", "256", "--label", " ".join(flags), "--json"], 120)
            except SystemExit as why:
                self.failures.append(f"v2-lite-{dtype}-serve: {why}")
                continue
            if code == 0:
                self.store(f"v2-lite-{dtype}-serve", {**json.loads(out.splitlines()[-1]), "device": self.record["device"],
                                                      "sources": self.record["sources"], "driver": self.record["driver"]})

    def continue_stored(self):
        """Adds to what is stored, if that is of these sources and this machine: else stores apart from it."""
        path = self.results / "tests.json"
        stored = json.loads(path.read_text()) if path.exists() else None
        why_not = f"{path} is not there" if stored is None else "; ".join(
            f"what is stored is of {key} {stored[key]}, this is {self.record[key]}"
            for key in ("sources", "device", "driver") if stored[key] != self.record[key])
        if not why_not:
            self.record = stored
            return
        self.results = pathlib.Path(tempfile.mkdtemp(prefix="fathom-gpu-"))
        print(f"{why_not}. Nothing of this run goes to bench/results/: it is in {self.results}. To store, run without --only")

    def host_gap(self, *arguments):
        code, out = self.run("host gap", [self.bin / "fathom", "bench", "offline", "--device", "cuda", *arguments], 60,
                             environment={"FATHOM_CUDA_TIMES": "steps"})
        lines = [line.split() for line in out.splitlines() if line.startswith("between steps")]
        if code == 0 and lines:
            self.record["between_steps_us"] = {"median": float(lines[-1][4]), "batch_size": 128,
                                               "what": "V2-Lite, 6 layers, BF16: from the end of one step's graph to the "
                                                       "beginning of the next, uploads and downloads included"}

    def store(self, name, result):
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=pathlib.Path, required=True)
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--quick", action="store_true", help="tests and golden comparisons only")
    some.add_argument("--only", metavar="PARTS", help=f"of {', '.join(PARTS)}: run these, and keep the rest of what is "
                                                      "stored; what is of other sources stays whole, and these apart")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else PARTS[:5] if options.quick else PARTS
    if not set(parts) <= set(PARTS):
        parser.error(f"--only {options.only}: it names some of {', '.join(PARTS)}")
    os.chdir(ROOT)
    recorder = Recorder(options.bundle.resolve())
    if options.only:
        recorder.continue_stored()
    elif not options.quick:  # what fails must not leave an older figure behind
        for path in recorder.results.glob("*.json"):
            path.unlink()
    failures = recorder.record.setdefault("failures", {})
    for part in parts:
        recorder.failures = failures[part] = []
        getattr(recorder, part)()
        if options.only:  # the rest is of the stored date
            recorder.record.setdefault("ran_again", {})[part] = utc_now()
        recorder.store("tests", recorder.record)
    failed = [name for names in failures.values() for name in names]
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
