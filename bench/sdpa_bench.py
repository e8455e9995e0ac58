#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention at the shapes of mla_decode_bench and flash_attend_bench.

    sdpa_bench.py FILE.json

MLA decode is attention of `heads` queries to one key of 576 and value of 512 numbers per position, over a cache that is
already gathered; expanded attention has keys of 192 and values of 128 per head. Each shape is tried with every backend,
and with the forms of the call that it may take; the fastest counts, and what a backend refuses is stored with its words.
Medians of graph replays on random data, inputs rotated past the L2, as the benches do it.
"""
import datetime
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
            "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
SCALE = 192 ** -0.5
LATENT, ROPE, NOPE, VALUE = 512, 64, 128, 128
L2_BYTES = 200e6


def normals(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def median_us(calls, replays=9):
    """Of one call, by replays of a graph of all of them."""
    for call in calls[:2]:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for i in range(replays + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 2:
            times.append(1e3 * begin.elapsed_time(end) / len(calls))
    return statistics.median(times)


def exact(q, k, v, mask):
    """In float64, of the first batch entry and head: [queries, value]."""
    q, k, v = (t[0, 0].double() for t in (q, k, v))
    scores = q @ k.T * SCALE
    if mask:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1 + k.shape[0] - q.shape[0])
        scores.masked_fill_(hidden, -torch.inf)
    return scores.softmax(-1) @ v


def fastest(forms, backends, sets, expected):
    """{"us", "backend", "error"} of the fastest of `forms`, {name: call of a set}, and why the others were refused."""
    best, refused = None, {}
    for form, call in forms.items():
        for name in backends:
            label = f"{name}, {form}"
            try:
                with sdpa_kernel(BACKENDS[name]):
                    out = call(0)
                    error = ((out[0, 0, :, :expected.shape[1]].double() - expected).norm() / expected.norm()).item()
                    if not error < 2e-2:
                        raise RuntimeError(f"its result is off by {error:.1e}")
                    us = median_us([lambda i=i: call(i) for i in range(sets)])
            except (RuntimeError, torch.OutOfMemoryError) as problem:
                refused[label] = str(problem).strip().splitlines()[0][:160]
                torch.cuda.synchronize()
                continue
            if best is None or us < best["us"]:
                best = {"us": round(us, 2), "backend": label, "error": float(f"{error:.1e}")}
    return {**(best or {"us": None}), "refused": refused}


def mla_decode(heads, rows, context):
    cache_bytes = rows * context * (LATENT + ROPE) * 2
    sets = max(2, min(32, int(L2_BYTES / cache_bytes) + 1))
    caches = [normals(rows, 1, context, LATENT + ROPE) for _ in range(sets)]
    queries = [normals(rows, heads, 1, LATENT + ROPE) for _ in range(sets)]
    values = [cache[..., :LATENT] for cache in caches]

    def heads_as_queries(i):  # [rows, 1, heads, ...]
        return F.scaled_dot_product_attention(queries[i].transpose(1, 2), caches[i], values[i], scale=SCALE)

    def grouped(i):  # a query per head, one head of keys
        return F.scaled_dot_product_attention(queries[i], caches[i], values[i], scale=SCALE, enable_gqa=True)

    expected = exact(queries[0].transpose(1, 2), caches[0], values[0], False)
    first = fastest({"heads as queries": heads_as_queries}, BACKENDS, sets, expected)
    second = fastest({"grouped queries": grouped}, BACKENDS, sets, expected[:1])
    both = [r for r in (first, second) if r["us"] is not None]
    best = min(both, key=lambda r: r["us"], default=first)
    return {"name": f"mla heads {heads}, rows {rows}, context {context}", **best,
            "refused": {**first["refused"], **second["refused"]}}


def expanded(heads, tokens, begin):
    context = begin + tokens
    sets = 4 if context <= 4096 else 2
    q = [normals(1, tokens, heads, NOPE + ROPE).transpose(1, 2) for _ in range(sets)]
    k = [normals(1, context, heads, NOPE + ROPE).transpose(1, 2) for _ in range(sets)]
    v = [normals(1, context, heads, VALUE).transpose(1, 2) for _ in range(sets)]
    padded = [F.pad(value, (0, NOPE + ROPE - VALUE)) for value in v]
    mask = {"is_causal": True} if begin == 0 else {"attn_mask": causal_lower_right(tokens, context)}
    forms = {"plain": lambda i: F.scaled_dot_product_attention(q[i], k[i], v[i], scale=SCALE, **mask),
             "values padded": lambda i: F.scaled_dot_product_attention(q[i], k[i], padded[i], scale=SCALE, **mask)}
    backends = [name for name in BACKENDS if name != "math"]
    return {"name": f"expanded heads {heads}, tokens {tokens}, begin {begin}",
            **fastest(forms, backends, sets, exact(q[0], k[0], v[0], True))}


def main():
    torch.manual_seed(1)
    results = []

    def add(result):
        results.append(result)
        print(f"{result['name']:46} {result['us'] or 'refused'} us  {result.get('backend', '')}", flush=True)

    for heads, rows, context in ((16, 128, 4096), (16, 128, 1024), (16, 32, 4096), (16, 8, 32768), (16, 1, 32768),
                                 (16, 1, 1024), (16, 1, 4096), (16, 2, 1024), (16, 2, 4096), (16, 4, 1024), (16, 4, 4096),
                                 (32, 128, 4096), (64, 128, 4096), (128, 128, 4096), (128, 128, 8192), (128, 1, 4096)):
        add(mla_decode(heads, rows, context))
    for heads, tokens, begin in ((16, 512, 0), (16, 1024, 0), (16, 4096, 0), (16, 16384, 0), (16, 2048, 6144),
                                 (16, 512, 7680), (128, 1024, 0), (128, 4096, 0), (128, 1024, 7168)):
        add(expanded(heads, tokens, begin))
    record = {"bench": "sdpa", "device": torch.cuda.get_device_name(), "torch": torch.__version__,
              "cudnn": torch.backends.cudnn.version(),
              "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"), "results": results}
    with open(sys.argv[1], "w") as file:
        file.write(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
