"""Keeps figures that documents repeat equal to those that are stored in bench/results/.

A sentence, or a line of a table, stands below with {} in the place of each figure. make_performance.py puts the stored
figures there; its --check fails where a document says others, or where a sentence is not found: then mend it here, or
better delete it in both places, and let the document refer to docs/performance.md.
"""
import functools
import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH = 100
FIGURE = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?)"


def shell(command):
    """A command as a block, in lines that a shell takes for one."""
    lines = ["    "]
    for part in re.split(r" (?=-)(?=(?:[^']*'[^']*')*[^']*$)", command):  # an option with its value, quotes whole
        if len(lines[-1] + part) > WIDTH - 3:
            lines.append("      ")
        lines[-1] += part + " "
    return "\n".join(lines).replace(" \n", " \\\n").rstrip()


@functools.cache
def stored(name):
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def digits(number):
    """Three of them, as docs/performance.md writes a kernel's time."""
    return f"{number:.3g}" if abs(number) < 100 else f"{number:.0f}"


def percent(share):
    return f"{100 * share:.0f}"


def count(number):
    return f"{number:,.0f}"


def power(error):
    return f"{error:.1e}".replace("e-0", "e-")


class Offline:
    """A result of `fathom bench offline`."""

    def __init__(self, name):
        self.result = stored(name)

    def decode(self, batch, key, context=None):
        context = context or self.result["results"][0].get("input_len", self.result.get("input_len"))
        return next(r[key] for r in self.result["results"]
                    if (r["batch_size"], r.get("input_len", self.result.get("input_len"))) == (batch, context))

    def prefill(self, tokens, key):
        return next(r[key] for r in self.result["prefills"] if r["input_len"] == tokens)


def kernel(bench, case, key="us"):
    """Of a bench of one kernel, on an H200."""
    result = stored(f"h200/{bench}")
    cases = {entry["name"]: entry for entry in result["results"]} if "results" in result else result
    return cases[case][key]


def kinds_of_layers():
    """V3's step by kinds of layers: (requests, kind, milliseconds, bytes, share of the bytes' rate), by what models with more of
    a kind take longer."""
    models = [stored(f"h200/{name}") for name in ("v3-1-layers-fp8", "v3-3-layers-fp8", "v3-5-layers-fp8-1k")]
    found = []

    def kinds(values):
        one, three, five = values
        dense = (three - one) / 2
        return one - dense, dense, (five - three) / 2

    for batch in (1, 8):
        steps = [next(r for r in model["results"] if (r["batch_size"], r["input_len"]) == (batch, 1024)) for model in models]
        # Not of their medians: what a host sees of single steps jumps, and differences are small.
        times, sizes = kinds([1e3 * batch / step["decode_tokens_per_s"] for step in steps]), kinds([step["unique_bytes_per_step"] for step in steps])
        found += [(batch, kind, ms, size, size / 1e6 / models[-1]["read_bandwidth_gb_s"] / ms)
                  for kind, ms, size in zip(("head and sampling", "dense layer", "layer with experts"), times, sizes)]
    return found


def of_models():
    """Figures of whole models."""
    fp8 = Offline("h200/v2-lite-fp8")
    yield ("README.md", "V2-Lite's shape in FP8, experts drawn at random: {} tokens a second for one request with a context of 1024, {} "
                        "for 128, and {} of a prompt of 4096: {}, {} and {} % of",
           [*(count(fp8.decode(batch, "decode_tokens_per_s")) for batch in (1, 128)),
            count(fp8.prefill(4096, "prefill_tokens_per_s")),
            *(percent(fp8.decode(batch, "decode_floor_share")) for batch in (1, 128)),
            percent(fp8.prefill(4096, "prefill_floor_share"))])
    for shape, name in (("V2-Lite, FP8", "v2-lite-fp8"), ("V2-Lite, BF16", "v2-lite-bf16"), ("V3's shape, FP8", "v3-5-layers-fp8")):
        of = Offline(f"h200/{name}")
        yield ("docs/design/cuda-backend.md", f"| {shape} | {{}} % | {{}} % | {{}} % |",
               [*(percent(of.decode(batch, "decode_floor_share")) for batch in (1, 128)),
                percent(of.prefill(4096, "prefill_floor_share"))])
    kinds = {(kind, batch): f"{100 * share:.1f}" for batch, kind, _, _, share in kinds_of_layers()}
    for kind, one, many in (("dense layer", "58.8", "58.6"), ("layer with experts", "59.3", "66.8"), ("head and sampling", "92.3", "91.4")):
        yield ("docs/lab/cuda-backend.md", f"| {kind} | {one} % | {{}} % | {many} % | {{}} % |", [kinds[kind, batch] for batch in (1, 8)])
    cpu = [Offline(name).decode(1, "prefill_tokens_per_s") for name in ("v2-lite-fp8", "v2-lite-bf16", "v2-lite-int8", "v2-lite-int4")]
    yield ("docs/running.md", "reads {} prompt tokens a second as it is stored, {} with `cpu-bf16`, {} with int8 and {} with int4",
           [f"{figure:.1f}" for figure in cpu])
    served = [stored(f"tiny-r1-serve-32{name}")["output_throughput"] for name in ("", "-int8", "-bf16")]
    yield ("docs/design/cpu-products.md", "{} tokens a second by default, {} with int8, {} with `cpu-bf16`", map(count, served))
    one, many = (stored(f"speculation/tiny-r1-{requests}") for requests in (1, 32))
    yield ("docs/speculation.md", "one request at a time {} tokens a second without and {} with, {} times as many, and 32 at a time {} "
                                  "without and {} with, {} times.",
           [figure for of in (one, many) for figure in (count(of["without"]), count(of["with"]), f"{of['times']:.3f}")])
    times = [pair["with"] / pair["without"] for pair in many["pairs"]]
    yield "docs/speculation.md", "the 32 requests' pairs had {} to {} times", [f"{most(times):.2f}" for most in (min, max)]
    yield ("docs/speculation.md", "drafts stood in {} % and {} %.", [f"{of['spec_decode_acceptance_rate']:.1f}" for of in (one, many)])


def of_accuracy():
    """Of the golden comparisons on a GPU, beside what transformers loses by rounding."""
    page, record = "docs/accuracy.md", stored("h200/tests")
    yardstick = json.loads((ROOT / "tests" / "golden" / "rounded_transformers.json").read_text())["checkpoints"]
    of = lambda checkpoint, key: [g[key] for name, g in record["golden"].items() if name.startswith(f"{checkpoint} cuda ")]
    for covers, checkpoint in (
            ("DeepSeek-V2-Lite: plain queries, greedy softmax router", "v2-lite"),
            ("DeepSeek-V2, Coder-V2: low-rank queries, router limited to groups", "v2"),
            ("DeepSeek-V3, R1: sigmoid router with bias", "v3"), ("DeepSeek-V3.1: `scale_fmt: ue8m0`", "v3-ue8m0"),
            ("F16 weights", "v2-f16"), ("FP8 E4M3 weights in 128x128 tiles", "v3-fp8"), ("YaRN with `mscale` and `mscale_all_dim`", "v3-mscale"),
            ("YaRN without either", "v3-no-mscale-all-dim"), ("three shard files, a prompt of 1,500 tokens", "v3-long-sharded")):
        yield (page, f"| {covers} | {{}} ({{}}) |", [power(max(of(checkpoint, "median_position_error"))),
                                                   power(yardstick[checkpoint]["bfloat16"]["median_position_error"])])
    fixtures = [name for name in yardstick if name != "tiny-r1"]
    yield (page, "prompts of the random checkpoints are off by up to {} (transformers: {})",
           [f"{max(error for name in fixtures for error in of(name, 'max_relative_error')):.2f}",
            f"{max(yardstick[name]['bfloat16']['max_relative_error'] for name in fixtures):.2f}"])
    for ops, name, rounded in (("`cuda`", "cuda", "bfloat16"), ("`cuda-portable`", "cuda-portable", "bfloat16"),
                               ("`cuda`, FP8 cache", "cuda, FP8 cache", "bfloat16"),
                               ("`cuda-fp8` (Hopper's default)", "cuda-fp8", "bfloat16_fp8_activations")):
        pair = lambda errors: [power(errors["max_relative_error"]), power(errors["median_relative_error"])]
        yield (page, f"| {ops} | {{}}, {{}} | {{}}, {{}}", pair(record["golden"][f"tiny-r1 {name}"]) + pair(yardstick["tiny-r1"][rounded]))
    fp8 = record["golden"]["tiny-r1 cuda-fp8"]
    changed = next(int(line.split()[2]) for line in record["accuracy"]["report"] if line.startswith("changed correctness"))
    yield (page, "| on an H200, FP8 activations | {}, {} | equal | {} | {} |",
           [*pair(fp8), f"{record['accuracy']['mean']:.4f}", str(changed)])


def of_passes():
    """Figures of routing, sampling, and what lies between products."""
    page = "docs/design/cuda-backend.md"
    yield (page, "One token takes {} us with V2-Lite's gate and {} with V3's, 4096 tokens take {} and {}",
           [digits(kernel("route", f"{model} {tokens} tokens")) for tokens in (1, 4096) for model in ("V2-Lite", "V3")])
    for name, line in (("norm", "norm: 13 hidden (BF16 and fp32 read; fp32, BF16, E4M3 written) | 27.0, {} | 94.6, {}"),
                       ("rotate and cache", "rotate and cache: 4 (64 heads + 576) | 6.5, {} | 35.6, {}"),
                       ("quantise", "quantise: 3 hidden | 6.2, {} | 21.8, {}"),
                       ("quantise for experts", "quantise for experts: (2 + topk) hidden | 20.8, {} | 80.1, {}"),
                       ("gather for experts", "gather for experts (BF16): (2 + 2 topk) hidden | 37.4, {} | 145.6, {}"),
                       ("sum over experts", "sum over experts: (2 + 2 topk) hidden | 37.4, {} | 145.6, {}"), ("sort", "sort | {} | {}")):
        yield page, f"| {line} |", [digits(kernel("passes", f"{model} {name} 4096 tokens")) for model in ("V2-Lite", "V3")]
    sample = lambda request, vectors=1: digits(kernel("sample", f"vocabulary 102400, deviation 1, {vectors} vectors, {request}"))
    yield (page, "One logit vector of 102,400 tokens takes {} us greedily, {} at temperature 1, {} with top_p 0.95 at 0.6, {} with "
                 "top_k 50, and 128 of them at temperature 1 take {}",
           [*map(sample, ("greedy", "temperature 1", "0.6, top_p 0.95", "1, top_k 50")), sample("temperature 1", 128)])


def of_attention():
    page, time = "docs/design/flash-attend.md", functools.partial(kernel, "flash_attend_time")
    yield (page, "{} % of `wgmma` alone with 16 heads and {} % with 128; 16,384 tokens {} %, 2048 tokens behind 6144 positions {} %, "
                 "512 tokens behind 7680 positions {} %",
           [percent(time(case, "share_of_matrix")) for case in (
               "heads 16, tokens 4096, begin 0", "heads 128, tokens 4096, begin 0", "heads 16, tokens 16384, begin 0",
               "heads 16, tokens 2048, begin 6144", "heads 16, tokens 512, begin 7680")])
    yield (page, "4 of 1024 tokens take {} us, 16 of 256 take {} us; one of 1024 tokens alone takes {}",
           [digits(time(f"heads 16, {case}")) for case in ("4 rows of 1024 tokens", "16 rows of 256 tokens", "tokens 1024, begin 0")])
    page, contexts = "docs/design/mla-decode.md", (1024, 4096, 8192)
    limits = [stored(f"h200/mla_decode_{name}")["limits"] for name in ("fp8", "narrow", "splits", "steps", "wide")]
    yield (page, "copy {} to {} GB/s, read {} to {} GB/s, wgmma on random BF16 in shared memory {} to {} TFLOPS",
           [f"{most(of[key] for of in limits):.0f}" for key in ("copy_gbps", "read_gbps", "matrix_tflops") for most in (min, max)])
    steps = stored("h200/mla_decode_steps")
    for heads in (16, 64, 128):
        for rows in (1, 4, 32, 128):
            if (heads, rows) == (64, 4):
                continue
            of = lambda context, key: next(v[key] for k, v in steps.items()
                                           if k.startswith(f"heads {heads}, rows {rows}, context {context}, tokens 1,"))
            yield (page, f"| {heads} heads, {rows} row{'s' if rows > 1 else ''} of 1024 / 4096 / 8192 | {{}} / {{}} / {{}} us |",
                   [digits(of(context, "us")) for context in contexts])
            if (heads, rows) == (16, 128):
                yield (page, "| 16 heads, 128 rows of 4096 / 8192, as shares of a copy's rate | {} / {} % |",
                       [percent(of(context, "share_of_copy")) for context in contexts[1:]])
    splits = stored("h200/mla_decode_splits")
    for heads, rows, contexts, tokens in (*((128, rows, (1024, 4096, 8192), (1,)) for rows in (1, 4, 8, 32, 128)),
                                          *((128, rows, (32768, 65536, 131072), (1,)) for rows in (1, 8)),
                                          *((heads, rows, (4096,), (1, 2, 4, 8)) for heads in (16, 32) for rows in (1, 32, 128))):
        of = lambda form, context, count: next(digits(v["us"]) for k, v in splits.items() if k.startswith(
            f"{form}heads {heads}, rows {rows}, context {context}, tokens {count},"))
        what = " / ".join(map(str, contexts)) + (f", {' / '.join(map(str, tokens))} tokens" if len(tokens) > 1 else "")
        blanks = " / ".join("{}" for _ in contexts for _ in tokens)
        yield (page, f"| {heads}, {rows} of {what} | {blanks} | {blanks} |",
               [of(form, context, count) for form in ("", "step, ") for context in contexts for count in tokens])
    cached = lambda case: digits(kernel("mla_decode_fp8", case))
    for heads, rows, contexts, splits in (*((16, rows, (1024, 4096, 8192), (512, 512)) for rows in (1, 4, 32, 128)),
                                          (16, 8, (32768,), (512, 512)), (64, 128, (4096,), (1024, 1024))):
        name = f"{heads} heads, {rows} row{'s' if rows > 1 else ''} of {' / '.join(map(str, contexts))}"
        yield ("docs/design/fp8-cache.md", f"| {name} | {' / '.join('{}' for _ in contexts)} | {' / '.join('{}' for _ in contexts)} |",
               [cached(f"{kind}heads {heads}, rows {rows}, context {context}, tokens 1, split {split}")
                for kind, split in zip(("FP8, ", ""), splits) for context in contexts])
    yield ("docs/design/fp8-cache.md", "| 16 heads, 128 rows of 4096 with 2 / 4 tokens | {} / {} | {} / {} |",
           [cached(f"{kind}heads 16, rows 128, context 4096, tokens {count}, split 512") for kind in ("FP8, ", "") for count in (2, 4)])
    for rows in (1, 4, 8, 32, 128):
        yield ("docs/design/fp8-cache.md",
               f"| 128 heads, {rows} row{'s' if rows > 1 else ''} of 1024 / 4096 / 8192 | {{}} / {{}} / {{}} | {{}} / {{}} / {{}} |",
               [cached(f"{kind}heads 128, rows {rows}, context {context}, tokens 1, split {split}")
                for kind, splits in (("FP8, ", (1024, 1024, 2048)), ("", (2048, 2048, 4096)))
                for context, split in zip((1024, 4096, 8192), splits)])


def of_products():
    page = "docs/design/fp8-gemm.md"
    for bench, m, n, k, path in (("large", 4096, 7168, 16384, "auto"), ("small", 64, 24576, 1536, "auto"), ("small", 64, 7168, 16384, "auto"),
                                 ("small", 64, 1536, 7168, "auto"), ("small", 128, 7168, 16384, "auto")):
        value = functools.partial(kernel, f"fp8_gemm_{bench}", f"dense M {m} N {n} K {k} {path}")
        yield (page, f"| M {m}, N {n}, K {k} | {{}} | {{}} | {{}} | {{}} | {{}} | {{}} |",
               [digits(value()), percent(value("share_of_read")), percent(value("share_of_matrix")),
                *(f"{value(f'times_cublaslt_{kind}'):.2f}" for kind in ("fp8_blocks", "fp8_tensor", "bf16"))])
    grouped = functools.partial(kernel, "fp8_gemm_grouped")
    yield (page, "{} % of the bandwidth where 64 experts have 16 tokens each, {} % where 32 have 8",
           [percent(grouped("64 masked M 16 N 2816 K 2048 auto", "share_of_read")),
            percent(grouped("32 masked M 8 N 7168 K 2048 auto", "share_of_read"))])
    yield (page, "gate and up take {} us, `down` {}",
           [digits(grouped("66 uneven silu M 32768 N 2816 K 2048 auto")), digits(grouped("66 uneven M 32768 N 2048 K 1408 auto"))])
    for n in (576, 1536, 2112, 4096):
        yield (page, f"| {n} | {{}}, {{}} | {{}}, {{}} |",
               [digits(kernel("fp8_gemm_chains", f"dense M {m} N {n} K 7168 {sums}")) for m in (1024, 4096) for sums in ("auto", "not invariant")])
    chains = lambda n, k=7168: [kernel("fp8_gemm_chains", f"dense M 4096 N {n} K {k} {sums}") for sums in ("auto", "not invariant")]
    yield page, "they stay: {} us, where one would take {} at 4096 tokens", map(digits, chains(2048, 10944))
    yield ("docs/determinism.md", "that is {} % of the time of V2's and V3's q_a and kv_a (2112 outputs), and at 576 outputs, which no "
                                  "published model has by themselves, {} %", [percent(1 - one / several) for several, one in map(chains, (2112, 576))])
    step = lambda tokens, shape: digits(kernel("fp8_gemm_other", f"experts of {tokens} tokens, {shape}"))
    yield (page, "V3's {} us for one token and {} for 128, V2-Lite's {} and {}",
           [step(tokens, shape) for shape in ("256 x 2048 x 7168", "64 x 1408 x 2048") for tokens in (1, 128)])
    page = "docs/design/bf16-gemm.md"
    for bench, m, n, k in (("dense", 4096, 8192, 8192), ("dense", 4096, 7168, 16384), ("dense", 4096, 3072, 2048), ("dense", 4096, 576, 2048),
                           ("some", 1024, 3072, 2048), ("some", 512, 2048, 2048), ("some", 128, 3072, 2048), ("some", 32, 3072, 2048)):
        value = functools.partial(kernel, f"bf16_gemm_{bench}", f"dense M {m} N {n} K {k} engine")
        yield (page, f"| M {m}, N {n}, K {k} | {{}} | {{}} | {{}} |",
               [digits(value()), digits(value("TFLOPS")), f"{value('times_cublaslt_bf16'):.2f}"])
    experts = lambda n, k: digits(kernel("bf16_gemm_experts", f"66 experts M 32768 N {n} K {k} engine"))
    yield page, "gate and up take {} us, `down` {}", [experts(2816, 2048), experts(2048, 1408)]
    few = lambda case: [digits(kernel("bf16_gemm_some", f"{case} {path}")) for path in ("engine", "portable")]
    yield (page, "N 3072, K 2048 takes {} us where the plain kernel takes {}, gate and up of 8 of 66 experts {} and {}, lm_head {} and {}",
           [*few("dense M 1 N 3072 K 2048"), *few("experts 8 of 66 M 1 N 2816 K 2048"), *few("lm_head M 1 N 102400 K 2048")])


def of_commands():
    """Documents, the words above a command, and what it printed: the command is the stored result's."""
    yield "README.md", "builds and runs the first two commands; the third is", "h200/v2-lite-fp8"


def with_command(text, words, command):
    """`text` with this command in the block below these words; None if they are not there, or more than once."""
    below = r"\s+".join(map(re.escape, words.split(" "))) + r"\n\n((?:    .*\n)+)"
    found = list(re.finditer(below, text))
    return text[:found[0].start(1)] + shell(command) + "\n" + text[found[0].end(1):] if len(found) == 1 else None


def rewritten(text, sentence, figures):
    """`text` with these figures in its sentence; None if it is not there, or more than once."""
    words = [r"\s+".join(map(re.escape, part.split(" "))) for part in sentence.split("{}")]
    found = list(re.finditer(FIGURE.join(words), text))
    if len(found) != 1:
        return None
    figures = list(figures)
    for group in range(len(figures), 0, -1):
        begin, end = found[0].span(group)
        text = text[:begin] + figures[group - 1] + text[end:]
    return text


def documents():
    """What each document should be, by its name; and a line for each sentence that is not there once."""
    texts, problems = {}, []
    for name, words, result in of_commands():
        text = texts.setdefault(name, (ROOT / name).read_text())
        command = "build/bin/" + stored(result)["command"].replace(" --json", "")  # which prints no table
        if (new := with_command(text, words, command)) is not None:
            texts[name] = new
        else:
            problems.append(f"{name}: no command below \"{words}\", or more than one: mend tools/document_figures.py")
    for name, sentence, figures in (*of_models(), *of_accuracy(), *of_passes(), *of_attention(), *of_products()):
        text = texts.setdefault(name, (ROOT / name).read_text())
        if (new := rewritten(text, sentence, figures)) is not None:
            texts[name] = new
        else:
            problems.append(f"{name}: not there, or more than once: \"{sentence}\": mend tools/document_figures.py")
    return texts, problems


def canary():
    """The reason why this check is broken, or None."""
    text = "It takes 5.2 us,\nand 1,024 for\n12, 13 of them."
    if rewritten(text, "takes {} us, and {} for {}, {} of", ["61", "7", "1,500", "0.1"]) != "It takes 61 us,\nand 7 for\n1,500, 0.1 of them.":
        return "figures were not put into their sentence"
    if rewritten(text, "takes {} ms", ["1"]) or rewritten(f"{text} {text}", "takes {} us", ["1"]):
        return "a sentence that is not there once was taken"
    text = "so:\n\n    old \\\n      -a\n\nBehind.\n"
    if with_command(text, "so:", "new -b") != "so:\n\n    new -b\n\nBehind.\n" or with_command(text, "not:", "new"):
        return "a command was not put below its words"
    if not documents()[0]:
        return "no document has figures"
    return None
