#!/usr/bin/env python3
"""Adds to stored kernel times how many times as fast as a library they are, where one was timed at the same shape:
times_cublaslt_bf16, times_cublaslt_fp8_blocks (the same scales), times_cublaslt_fp8_tensor (one scale per tensor: less work) and
times_sdpa (PyTorch's attention). More than 1: faster than the library. And the shares of the read bandwidth and of the matrix peak
that were measured in the same run: share_of_read, share_of_matrix.

    gpu_ratios.py [FOLDER]     FOLDER: bench/results/h200
"""
import json
import pathlib
import re
import sys

PRODUCT = re.compile(r"(.+) M (\d+) N (\d+) K (\d+) (.+)")
ATTENTION = re.compile(r"heads (\d+), (rows \d+, context \d+|tokens \d+, begin \d+)(, tokens 1\b.*|$)")


def entries_of(result):
    """(name, values) of every entry of a bench's JSON."""
    if isinstance(result.get("results"), list):
        return [(entry["name"], entry) for entry in result["results"] if "name" in entry]  # others are of models
    return [(name, entry) for name, entry in result.items() if isinstance(entry, dict)]


def library_times(results):
    """us by ("bf16" | "fp8 blocks" | "fp8 tensor", M, N, K), and by attention's shape."""
    times = {}
    for stem, result in results.items():
        for name, entry in entries_of(result):
            if stem == "sdpa" and entry.get("us"):
                times[name.split(" ", 1)[1]] = entry["us"]
            product = PRODUCT.fullmatch(name)
            if product and product[5].lower() == "cublaslt":
                kind = "bf16" if stem.startswith("bf16") else product[1]
                times[kind, *product.group(2, 3, 4)] = entry["us"]
    return times


def ratios(stem, name, us, times):
    product, attention = PRODUCT.fullmatch(name), ATTENTION.match(name)
    if product and product[1] == "dense" and product[5].lower() != "cublaslt":
        shape = product.group(2, 3, 4)
        for kind in ("bf16", "fp8 blocks", "fp8 tensor") if stem.startswith("fp8") else ("bf16",):
            yield f"times_cublaslt_{kind.replace(' ', '_')}", times.get((kind, *shape))
    elif attention and stem.split("_")[0] in ("mla", "flash"):
        yield "times_sdpa", times.get(f"heads {attention[1]}, {attention[2]}")


def shares(name, entry, limits):
    rate = entry.get("GB/s", entry.get("weights_GB/s"))
    if rate and limits.get("read_GB/s") and not name.startswith("quantize"):  # whose tokens lie in the L2
        yield "share_of_read", rate / limits["read_GB/s"]
    peak = limits.get("e4m3_TFLOPS", limits.get("wgmma_TFLOPS"))
    if entry.get("TFLOPS") and peak and not (name.startswith("bf16") and "e4m3_TFLOPS" in limits):
        yield "share_of_matrix", entry["TFLOPS"] / peak


def add_ratios(folder):
    results = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.stem != "tests"}
    times = library_times(results)
    for stem, result in results.items():
        added, limits = 0, dict(entries_of(result)).get("limits", {})
        for name, entry in entries_of(result):
            if not entry.get("us"):
                continue
            for key, library_us in ratios(stem, name, entry["us"], times):
                if library_us:
                    entry[key] = round(library_us / entry["us"], 3)
                    added += 1
            for key, share in shares(name, entry, limits):
                entry[key] = round(share, 3)
                added += 1
        if added:
            (folder / f"{stem}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    add_ratios(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "bench/results/h200"))
