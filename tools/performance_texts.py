"""What docs/performance.md says between the tables that make_performance.py makes."""

INTRODUCTION = """\
# Performance

Made by `tools/make_performance.py` from `bench/results/`: every figure was measured by the command
above it. To add one, run the command with `--json`, store what it prints in `bench/results/`, and
run the tool again.
"""

OFFLINE = """\
## The engine against the machine

`fathom bench offline` times the engine on equal requests: *prefill* is prompt tokens per second
until every request has its first token; *decode* is tokens per second in steps of the whole batch
after that, EOS ignored; both are medians over the repeats.

- *ms*: of a decode step. *GB*: bytes that it must read and write at least once: every weight that
  is used (of each layer's experts as many as the last layer's router chose in the last step; in
  results without *experts* as many as uniform draws are expected to choose, which random routers do
  not reach) and the KV cache. Activations are not counted.
- *of bandwidth*: those bytes per second, as a share of what the same threads read from memory in
  the same run (best of ten passes over at least 4 GiB, unless the command says otherwise). On a
  shared machine that bandwidth changes by the minute, and with it the share: over 100 % says that
  it rose after it was measured.
- *sources*: the hash of what the engine was built from (`cmake -P cmake/source_hashes.cmake`); of
  a server under load, the server's.
- *of fp32 / BF16 / int8*: operations of the prefill (two to a multiply-add: matrices and attention)
  per second, as shares of the fp32, BF16 and int8 peaks that the same threads reached in registers
  in the same run; "-" where the CPU has no such instruction. 100 % of it is the most that any
  program could do with these cores and that instruction: V2-Lite takes 4.6 10^9 operations for each
  prompt token.
"""

SERVE = """\
## A server under load

`fathom bench serve` sends requests to an OpenAI-compatible server and times the streamed answers.
Latencies are in milliseconds, median / p99: *TTFT* to the first token, *TPOT* per token after it,
*ITL* between two events, *E2EL* to the end. The server ran on the same cores, as `fathom serve
models/tiny-r1 --port 8123` with the flags of the label.
"""

GPU = """\
## On a GPU

What `tools/gpu_check.sh` stored in `bench/results/h200/`: op tests and golden comparisons, kernels
beside the device's limits from the same run (medians of graph replays on random data; weights, and
caches of attention, rotated past the L2: the activations of small steps lie in it, as they do in a
step), and the engine (`fathom bench offline`). Of kernels only the paths that the engine takes
stand here, and the library; other tiles and splits are in the JSON. *masked*: experts' tokens at
fixed places, which the engine sorts instead; *any order*: without batch invariance. What names
other CUDA sources than the op tests is of a call before.

- *of read*, *of copy*, *of matrix*: shares of the bandwidth and of the tensor cores' peak that were
  measured in the same run. Bytes are weights, activations and results, each once. Attention's rows
  are of one token, where nothing else is said.
- *by bf16*, *by blocks*, *by tensor*, *by SDPA*: how many times as fast as the library at the same
  shape on the same machine, more than 1 being faster: cuBLASLt (its fastest of three algorithms) in
  BF16, in FP8 with the same scales (blocks) and in FP8 with one scale per tensor, which is less
  work; and PyTorch's scaled_dot_product_attention (`bench/sdpa_bench.py`: its fastest backend, on a
  cache that is gathered already).
- *floor*: the longer of the unique bytes at the measured read bandwidth and the operations at the
  measured matrix peaks; *of floor*: its share of the measured time. *sampled*: at temperature 1,
  each request with a seed of its own, the time of sampling included.
- *experts*: those of a layer that a step's tokens chose, counted as above; "-" where the model has
  no layer with experts. Routers of random weights send all tokens nearly alike, so that a step
  would read far fewer experts than a trained model's; with `--synthetic-routing uniform` each
  token's experts are drawn at random instead, all with the same chance.
"""

GOLDEN_NOTE = """\
Logits against transformers in float32, relative error: of prompts (largest and median) and of the
median position. All but tiny-r1 are random: rounding turns their untrained routers, and a turned
expert changes a position's logits by some 10 % or more, whoever rounds. How far transformers itself
gets in bfloat16 from itself in float32 stands below (`tests/golden/rounded_transformers.json`, on a
CPU; for cuda-fp8 with activations quantised to E4M3 too). `tools/gpu_check.sh` fails if tiny-r1
leaves its limit, or if the median position of any checkpoint is off by more than twice what
transformers loses. The limit is that of `fathom verify` for these ops and this cache. *Beyond* it:
the largest error is, which a turned expert suffices for.
"""

# Above the table of a result in bench/results/h200/, by the name of its file.
NOTES = {
    "fp8_gemm_other": "quantize: the same tokens in each launch, so that few of them are in the L2, and their time is "
                      "that of a launch.",
    "route": "No share of a limit is given, as this bench measures none. Few tokens are launches and trips to memory: at 4.5 TB/s "
             "the gate (V2-Lite's 0.26 MB, V3's 3.7 MB) would be there in 0.06 and 0.8 us. What bounds many tokens is not measured.",
    "sample": "No share of a limit is given, as this bench measures none. One vector is 0.4 or 0.5 MB: its time is that of launches "
              "and passes that wait for each other. 128 vectors are 52 and 66 MB, for which reading alone would take 12 and 15 us at "
              "4.5 TB/s.",
    **{f"v3-{layers}-layers-fp8": "All its layers are dense: `--synthetic-routing` changed nothing, and is refused today where there is "
                                  "nothing to draw." for layers in (1, 3)},
    "v3-5-layers-fp8": "Three dense layers and two with experts; what a further one of either kind takes says the table of V3's layers by "
                       "kind.",
    "v3-5-layers-fp8-1k": "Prompts get slower from repeat to repeat (`prefill_runs` in the JSON has each), as large products are at the "
                          "chip's power limit and its clock falls: compare prompts of one result, or of as many repeats.",
    **{f"v2-lite-{dtype}-32k": "128 requests are missing: their latents in BF16 would be 130 GB, of 150 GB that the GPU has for weights, "
                               "cache and work space together." for dtype in ("bf16", "fp8")},
}

RANDOM_SERVER = ("The weights are random, and the server has no `--synthetic-routing`: its routers send all tokens nearly alike, so that a "
                 "step reads fewer experts than in the results of `fathom bench offline`, or of a trained model.")
