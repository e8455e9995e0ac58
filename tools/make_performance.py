#!/usr/bin/env python3
"""Writes docs/performance.md from the stored results of `fathom bench ... --json`, and the figures that other documents
repeat (document_figures.py).

    tools/make_performance.py            writes docs/performance.md, and figures into documents
    tools/make_performance.py --check    exit 1 if these are not what it would write
    tools/make_performance.py --canary   checks the check of documents
    tools/make_performance.py --stored   says which results on CPUs were measured with these sources

A result is one JSON object in bench/results/*.json, as the command printed it:
    build/bin/fathom bench offline models/tiny-r1 --json > bench/results/tiny-r1-offline.json
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import textwrap

import document_figures
from performance_texts import GOLDEN_NOTE, GPU, INTRODUCTION, NOTES, OFFLINE, RANDOM_SERVER, SERVE

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
WIDTH = document_figures.WIDTH


def table(header, lines):
    line = lambda cells: "| " + " | ".join(map(str, cells)) + " |"
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, lines)]) + "\n"


def wrapped(text):
    """Paragraphs of at most WIDTH columns."""
    return "\n\n".join(textwrap.fill(part, WIDTH, break_long_words=False, break_on_hyphens=False)
                       for part in text.split("\n\n"))


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def peak(value):
    return "not available" if value is None else f"{value:.0f}"


def tera(giga):
    return peak(None if giga is None else giga / 1e3)


def provenance(result):
    machine, kind = result["cpu"], "sources"
    if "driver" in result:
        machine, kind = f"{result['device']} (driver {result['driver']}), {machine}", "CUDA sources"
    sources = f"{kind} {result['sources']}" if "sources" in result else f"{kind} not recorded"
    return f"{result['date'][:10]}, fathom {result['version']}, {sources}, {machine}"


def section(title, result, about, *tables):
    """One stored run: what it is, its command, what it ran on, what it measured."""
    return "\n".join((title, "", document_figures.shell(result["command"]), "", wrapped(provenance(result) + about), "", *tables))


def offline_section(result):
    weights = result["weights"] + (", random" if result["load_format"] == "dummy" else "")
    title = f"### {result['model']}, {result['num_layers']} layers, {weights} weights, ops {result['ops']}"
    machine = (f"{result['threads']} threads; reads {result['read_bandwidth_gb_s']:.1f} GB/s; "
               f"peaks in 10^9 operations/s: fp32 {peak(result['fp32_peak_gflops'])}, "
               f"BF16 {peak(result['bf16_peak_gflops'])}, int8 {peak(result['int8_peak_gops'])}. "
               f"Weights {result['weight_bytes'] / 1e9:.2f} GB; the process had at most "
               f"{result['peak_resident_bytes'] / 1e9:.2f} GB. "
               f"{result['output_len']} decode steps, "
               f"{result['repeats']} repeats, KV cache {result['kv_cache']}.")
    lines = []
    for r in result["results"]:
        shares = r["peak_shares"]
        lines.append((r["batch_size"], r.get("input_len", result["input_len"]), f"{r['prefill_tokens_per_s']:.1f}",
                     " / ".join(percent(shares[name]) for name in ("fp32", "bf16", "int8")),
                     f"{r['decode_tokens_per_s']:.1f}", f"{r['decode_step_ms']:.2f}",
                     f"{r['unique_bytes_per_step'] / 1e9:.4f}", percent(r["bandwidth_share"])))
    header = ("batch", "prompt", "prefill tok/s", "of fp32 / BF16 / int8", "decode tok/s", "ms", "GB", "of bandwidth")
    return section(title, result, ", " + machine, table(header, lines))


def contexts(result):
    """What tells a result from another of the same model."""
    lengths = list(dict.fromkeys(r["input_len"] for r in result["results"]))
    return f"context{'s' if len(lengths) > 1 else ''} {', '.join(map(str, lengths))}"


def gpu_offline_section(result, note=None):
    weights = result["weights"] + (", random" if result["load_format"] == "dummy" else "")
    title = (f"### {result['model']}, {result['num_layers']} layers, {weights} weights, ops {result['ops']}"
             + (", sampled, " if result.get("temperature") else ", greedy, ") + contexts(result))
    machine = (f"reads {result['read_bandwidth_gb_s']:.0f} GB/s; peaks in TFLOPS: BF16 {tera(result['bf16_peak_gflops'])}, "
               f"E4M3 {tera(result['fp8_peak_gflops'])}. Weights {result['weight_bytes'] / 1e9:.2f} GB, KV cache "
               f"{result['kv_cache']}, {result['output_len']} decode steps.")
    decode = [(r["batch_size"], r["input_len"], f"{r['decode_tokens_per_s']:.1f}", f"{r['decode_step_ms']:.2f}",
               f"{r['experts_per_layer']:.1f}" if r["experts_per_layer"] else "-",
               f"{r['unique_bytes_per_step'] / 1e9:.3f}", percent(r["bandwidth_share"]), f"{r['decode_floor_ms']:.2f}",
               percent(r["decode_floor_share"])) for r in result["results"]]
    prefill = [(r["input_len"], f"{r['prefill_tokens_per_s']:.0f}",
                f"{1e3 * r['input_len'] / r['prefill_tokens_per_s']:.1f}",
                f"{r['prefill_tokens_per_s'] * r['prefill_operations_per_token'] / 1e12:.0f}",
                f"{r['prefill_floor_ms']:.1f}", percent(r["prefill_floor_share"]))
               for r in result["prefills"]]
    return section(title, result, ", " + machine + (f" {note}" if note else ""),
                   table(("batch", "context", "decode tok/s", "ms", "experts", "GB", "of bandwidth", "floor ms",
                          "of floor"), decode),
                   *(["", table(("prompt", "prefill tok/s", "ms", "TFLOPS", "floor ms", "of floor"), prefill)]
                     if prefill else []))


def serve_section(result):
    rate, limit, label = result["request_rate"], result["max_concurrency"], result.get("label")
    title = ", ".join(filter(None, (f"### {result['model']}", label, result["endpoint"], limit and not label and f"at most {limit} at a time")))
    load = (f"{result['completed']} requests ({result['failed']} failed), "
            + ("all at once" if rate == "inf" else f"{rate:g} a second")
            + ("" if limit is None else f", at most {limit} at a time")
            + (f", in talks of {result['turns']} turns with {result['think_time_s']:g} s between them" if "turns" in result else "")
            + (f"; {100 * result['cached_share']:.1f} % of prompt tokens were cached" if "turns" in result else "")
            + f"; {result['total_input_tokens']} prompt and {result['total_output_tokens']} output tokens.")
    load += f" {RANDOM_SERVER}" if "--load-format dummy" in (label or "") else ""
    latencies = [f"{result[f'median_{name}_ms']:.1f} / {result[f'p99_{name}_ms']:.1f}"
                 for name in ("ttft", "tpot", "itl", "e2el")]
    good = f"{result['request_goodput']:.2f}" if "request_goodput" in result else "-"
    lines = [(f"{result['request_throughput']:.2f}", good, f"{result['output_throughput']:.1f}",
             f"{result['total_token_throughput']:.1f}", *latencies)]
    header = ("requests/s", "good/s", "output tok/s", "tok/s", "TTFT", "TPOT", "ITL", "E2EL")
    return section(title, result, ". " + load, table(header, lines))


def read_yardstick():
    """What transformers loses by rounding, by checkpoint."""
    return json.loads((ROOT / "tests" / "golden" / "rounded_transformers.json").read_text())["checkpoints"]


def of_transformers(yardstick, name):
    """For a comparison that is called "CHECKPOINT OPS ...": with activations as those ops round them."""
    checkpoint, ops = name.split()[:2]
    return yardstick[checkpoint]["bfloat16_fp8_activations" if ops.endswith("-fp8") else "bfloat16"]


def errors(e):
    return f"{e['max_relative_error']:.1e} / {e['median_relative_error']:.1e}"


def golden_part(golden):
    if not golden:
        return []
    lines, yardstick, used = [], read_yardstick(), {}
    for name, g in golden.items():
        if g.get("max_relative_error") is None:
            lines.append((name, "did not run", "", "", ""))
            continue
        used[name.split()[0], name.split()[1].endswith("-fp8")] = of_transformers(yardstick, name)
        lines.append((name, errors(g), f"{g['median_position_error']:.1e}" if "median_position_error" in g else "-",
                     "equal" if g["greedy_equal"] else "differ",
                     f"{'yes' if g['passed'] else 'beyond'}, {g['limit']:.0e}"))
    theirs = [(checkpoint, "BF16, and E4M3 where products read them" if fp8 else "BF16", errors(e),
               f"{e['median_position_error']:.1e}") for (checkpoint, fp8), e in used.items()]
    return [GOLDEN_NOTE, table(("checkpoint, ops", "prompts: largest / median", "median position", "greedy tokens",
                                "within the limit"), lines),
            "What transformers loses by rounding:\n",
            table(("checkpoint", "activations", "prompts: largest / median", "median position"), theirs)]


def sanitized(name, check):
    """Which tests a sanitizer ran, where these are not all."""
    if not check["left_out"]:
        return wrapped(f"{name}: of the tests `{check['of']}` alone: those of the portable kernels, and of ranks that share one GPU.") + "\n"
    left_out = ", ".join(f"`{name}`" for name in check["left_out"])
    return wrapped(f"{name}: of the tests `{check['of']}`, without {left_out}: {check.get('why', 'reason not recorded')}.") + "\n"


def gpu_tests(record):
    ops = record["op_tests"]
    failures = [name for names in record["failures"].values() for name in names]
    errors = {}
    for name, test in ops["tests"].items():
        suite = name.split(".")[0]
        errors[suite] = max(errors.get(suite, 0), test.get("largest_error", 0))
    parts = [wrapped(f"{record['device']}, driver {record['driver']}, {record.get('system', 'system not recorded')}, {record['date'][:10]}, CUDA sources {record['sources']}."
                     + "".join(f" {part} ran again on {date[:10]}." for part, date in record.get("ran_again", {}).items())), "",
             *([wrapped(f"What failed: {'; '.join(failures)}."), ""] if failures else []),
             f"Op tests against the reference: {ops['passed']} of {ops['of']} passed"
             + (f", {ops['skipped']} skipped" if ops.get("skipped") else "") + ". Largest relative errors:", "",
             table(("op", "largest error"), [(s.removesuffix("Test"), f"{e:.1e}") for s, e in errors.items()])]
    parts += golden_part(record["golden"])
    if "cuda_calls" in record:
        calls = record["cuda_calls"]
        said = ", ".join(f"{name} {count:.2f}" for name, count in calls["per_step"].items())
        verdict = "FAILED" if calls["exit_code"] else "not counted" if not calls["per_step"] else "no allocation, and no wait but for the event of a step that has ended"
        parts += [wrapped(f"Calls of CUDA in a decode step of tiny-r1 once it runs, counted with CUPTI: {verdict}. {said}."), ""]
    if "kernel_checks" in record:
        parts += [table(("checks of kernels", "passed", "exit code"),
                        [(name, c["passed"], c["exit_code"]) for name, c in record["kernel_checks"].items()])]
    if record.get("accuracy", {}).get("mean") is not None:
        accuracy = record["accuracy"]
        parts += [f"tiny-r1's questions over HTTP: mean accuracy {accuracy['mean']:.4f}, the reference's is "
                  f"{accuracy['reference']:.4f}.", ""]
    if "between_steps_us" in record:
        gap = record["between_steps_us"]
        parts += [wrapped(f"Between two decode steps of {gap['batch_size']} rows: {gap['median']:.1f} us, the median. {gap['what']}."), ""]
    checks = record.get("sanitizers", {})
    if checks:
        parts += [table(("compute-sanitizer", "tests", "exit code", "verdict"),
                        [(name, c.get("tests", ""), c["exit_code"], re.sub("[A-Z]+ SUMMARY: ", "", c["summary"])) for name, c in checks.items()])]
        parts += [sanitized(name, c) for name, c in checks.items() if c.get("left_out") or c.get("of", "*") != "*"]
    if record.get("sdpa") is False:
        parts += ["PyTorch was not installed: its attention was not timed.", ""]
    return "\n".join(parts)


FORCED = re.compile(r".* (\d+x\d+( pair| chains| folds(, pair)?)?|mma\.sync|alone)")  # a tile, or a kernel, whatever the shape


def taken(results):
    """The lines of paths that the engine takes: of one shape "engine" says it better than "auto"."""
    by_engine = {entry["name"].removesuffix(" engine") for entry in results if entry["name"].endswith(" engine")}
    return [entry for entry in results if entry.get("default_split", True) and not FORCED.fullmatch(entry["name"])
            and entry["name"].removesuffix(" auto") not in by_engine]


def with_copy_shares(result, entries):
    """Those of passes over memory, where the copy of the same run is stored."""
    copy = next((entry.get("copy_GB/s") for entry in result.get("results", []) if entry["name"] == "limits"), None)
    return [{**entry, "share_of_copy": entry["GB/s"] / copy} if copy and entry["name"].startswith("quantize") else entry
            for entry in entries]


def copy_rates():
    """Least and most of what results on an H200 have."""
    found = re.findall(r'"copy_GB/s": ([\d.]+)', "".join(path.read_text() for path in (RESULTS / "h200").glob("*.json")))
    return f"{min(map(float, found)):.0f} to {max(map(float, found)):.0f}"


def gpu_bench(name, result):
    results = result.get("results") or [{"name": key, **value} for key, value in result.items()
                                        if isinstance(value, dict)]
    limits = [f"{key.replace('_', ' ')} {value:g}" for entry in results if entry["name"] == "limits"
              for key, value in entry.items() if key != "name"]
    results = with_copy_shares(result, taken([entry for entry in results if entry["name"] != "limits"]))
    columns = list(dict.fromkeys(key for entry in results for key in entry if key not in ("name", "refused", "default_split")))
    digits = lambda number: f"{number:.3g}" if abs(number) < 100 else f"{number:.0f}"
    cell = lambda value: "" if value is None else digits(value) if isinstance(value, (int, float)) else str(value)
    lines = [(re.sub(r"^(step, .*), split \d+$", r"\1", re.sub("^dense |, tokens 1(?=,|$)| auto$", "", entry["name"]).replace("not invariant", "any order")), *(cell(entry.get(column)) for column in columns)) for entry in results]
    titles = [column.replace("times_cublaslt_", "by ").replace("fp8_", "").replace("times_sdpa", "by SDPA").replace("share_", "").replace("_", " ") for column in columns]
    about = f"{result['device']}" + (f", PyTorch {result['torch']}" if "torch" in result else "") + "."
    about += f" Limits in the same run: {', '.join(limits)}." if limits else ""
    if not limits and "share_of_copy" in columns:
        about += f" The rate of the copy that *of copy* is a share of was not stored; other benches here had {copy_rates()} GB/s."
    about += f" {NOTES[name]}" if name in NOTES else ""
    return "\n".join((f"### {name}", "", wrapped(about), "", table(("", *titles), lines)))


def layer_kinds():
    lines = [(batch, kind, f"{ms:.3f}", f"{size / 1e9:.3f}", percent(share))
             for batch, kind, ms, size, share in document_figures.kinds_of_layers()]
    about = ("Decode steps of V3's shape with a context of 1024: differences between those of 1, 3 and 5 layers "
             f"(`v3-1-layers-fp8`, `v3-3-layers-fp8`, `v3-5-layers-fp8-1k`), of which the first three are dense. *of bandwidth*: bytes at the rate of reading.")
    return "\n".join(("### V3's layers by kind", "", wrapped(about), "", table(("batch", "", "ms", "GB", "of bandwidth"), lines)))


def gpu_sections():
    folder = RESULTS / "h200"
    if not (folder / "tests.json").exists():
        return ["No result is stored yet.\n"]
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    parts = [gpu_tests(results.pop("tests"))]
    for name, result in results.items():
        if result.get("benchmark") == "offline":
            parts.append(gpu_offline_section(result, NOTES.get(name)))
        elif result.get("benchmark") == "serve":
            parts.append(serve_section(result))
        else:
            parts.append(gpu_bench(name, result))
    if "v3-1-layers-fp8" in results:
        parts.append(layer_kinds())
    return parts


SECTIONS = {"offline": (OFFLINE, offline_section), "serve": (SERVE, serve_section)}


def read_results():
    results = []
    for path in sorted(RESULTS.glob("*.json")):
        try:
            result = json.loads(path.read_text())
            kind = result["benchmark"]
            if kind not in SECTIONS:
                raise ValueError(f"benchmark {kind!r} is not one of {', '.join(SECTIONS)}")
            results.append((kind, SECTIONS[kind][1](result)))
        except (ValueError, KeyError, TypeError) as error:
            reason = f"has no {error}" if isinstance(error, KeyError) else error
            sys.exit(f"{path.relative_to(ROOT)}: {reason}: store what `fathom bench ... --json` prints")
    return results


def repeated_headings(page):
    """Those that stand more than once: of these a link finds the first alone."""
    headings = re.findall(r"^#+ (.+)$", page, re.M)
    return [heading for heading in dict.fromkeys(headings) if headings.count(heading) > 1]


def make_page():
    results = read_results()
    parts = [INTRODUCTION]
    for kind, (about, _) in SECTIONS.items():
        sections = [text for of, text in results if of == kind]
        parts += [about, *(sections or ["No result is stored yet.\n"])]
    return "\n".join([*parts, GPU, *gpu_sections()])


def say_stored():
    """Results on CPUs say what they were measured with, or are from before they did."""
    command = ["cmake", "-P", "cmake/source_hashes.cmake"]
    now = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    with_these = sum(result.get("sources") == now for result in results)
    unknown = sum("sources" not in result for result in results)
    print(f"CPU results: {with_these} with these sources ({now}), {len(results) - with_these - unknown} with others, "
          f"{unknown} that do not say")


def written():
    """What each page should be, by its path."""
    texts, problems = document_figures.documents()
    if problems:
        sys.exit("\n".join(problems))
    page = make_page()
    if repeated := repeated_headings(page):
        sys.exit("docs/performance.md: headings that stand more than once: " + "; ".join(repeated)
                 + ": let tools/make_performance.py put into them what tells these results apart")
    return {PAGE: page, **{ROOT / name: text for name, text in texts.items()}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--canary", action="store_true", help="check the check")
    parser.add_argument("--stored", action="store_true", help="say which results are of these sources")
    arguments = parser.parse_args()
    if arguments.stored:
        return say_stored()
    if arguments.canary:
        reason = document_figures.canary()
        if repeated_headings("# a\n## b, c\ntext\n### b\n## b, c\n") != ["b, c"]:
            reason = "a heading that stands twice was not found"
        return sys.exit(f"the check of figures is broken: {reason}") if reason else None
    pages = written()
    others = [path for path, text in pages.items() if not path.exists() or path.read_text() != text]
    if arguments.check and others:
        sys.exit(f"{', '.join(str(p.relative_to(ROOT)) for p in others)}: not what bench/results/ says: run tools/make_performance.py")
    for path in others:
        path.write_text(pages[path])


if __name__ == "__main__":
    main()
