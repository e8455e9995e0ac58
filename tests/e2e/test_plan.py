"""`fathom plan`: what a model would take of GPUs, and how fast it would be, where there is none."""

import json
import re
import subprocess

import pytest

from conftest import BINARY, MODEL, ROOT


def run(*arguments):
    return subprocess.run([BINARY, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def plan(*arguments):
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def refused(*arguments):
    done = run(*arguments)
    assert done.returncode != 0 and done.stdout == ""
    return done.stderr.splitlines()[0].removeprefix("fathom plan: ")


OF_EIGHT = {"pp 8"} | {name + ep for ep in ("", " + ep") for name in (
    "tp 8", "tp 4 x dp 2", "tp 2 x dp 4", "dp 8", "pp 2 x tp 4", "pp 2 x tp 2 x dp 2", "pp 2 x dp 4", "pp 4 x tp 2", "pp 4 x dp 2")}


@pytest.mark.parametrize(
    "preset, gpus, layouts",
    [
        ("v2-lite", 1, {"one GPU"}),
        ("v2-lite", 2, {"tp 2", "tp 2 + ep", "dp 2", "dp 2 + ep", "pp 2"}),
        ("v2", 8, OF_EIGHT),
        ("v3", 8, OF_EIGHT),
    ],
)
def test_a_preset(preset, gpus, layouts):
    found = plan("--config-preset", preset, "--gpus", gpus, "--max-model-len", "32k")
    assert {layout["name"] for layout in found["layouts"]} == layouts and found["refused"] == []
    assert set(found["best_for_latency"]) == set(found["best_for_throughput"]) == layouts
    for layout in found["layouts"]:
        groups = layout["data_parallel_size"]
        stages = layout["pipeline_parallel_size"]
        assert len(layout["ranks"]) == layout["tensor_parallel_size"] * groups * stages == gpus
        for rank in layout["ranks"]:
            items = rank["items"]
            assert {"weights", "activations", "work space", "request state", "logits", "kernels and recorded steps"} <= set(items)
            assert rank["total"] == sum(items.values()) + rank["kv_cache"] <= 0.9 * found["memory_bytes"]
            assert (rank["replicated_weights"] > 0) == (gpus > stages)
            assert rank["recorded_steps"] > 0
        assert layout["group_kv_cache_tokens"] == min(rank["kv_cache_tokens"] for rank in layout["ranks"])
        assert layout["kv_cache_tokens"] == groups * layout["group_kv_cache_tokens"]
        for decode in layout["decode"]:
            assert decode["step_ms"] == pytest.approx(sum(part["ms"] for part in decode["parts"].values()))
            assert decode["tokens_per_s"] == pytest.approx(1e3 * decode["batch_size"] * groups / decode["step_ms"])
            assert decode["fits"] == (decode["batch_size"] * 4160 <= layout["group_kv_cache_tokens"])
    by_name = {layout["name"]: layout for layout in found["layouts"]}
    latency = [by_name[name]["decode"][0]["step_ms"] for name in found["best_for_latency"]]
    assert latency == sorted(latency)
    most = [max(d["tokens_per_s"] for d in by_name[name]["decode"] if d["fits"]) for name in found["best_for_throughput"]]
    assert most == sorted(most, reverse=True)


def test_the_published_capacity():
    """R1 in FP8 on 8 H200s, latents in BF16: 512,000 tokens in vLLM, which keeps more back."""
    (layout,) = plan("--config-preset", "v3", "--tp", 8)["layouts"]
    assert 0.75 < layout["kv_cache_tokens"] / 512_000 < 1.25


def test_the_fullest_rank_is_shown():
    """Of eight stages the first, which has the dense layers, is not it."""
    of = ("--config-preset", "v3", "--pp", 8)
    (layout,) = plan(*of)["layouts"]
    least = min(range(8), key=lambda rank: layout["ranks"][rank]["kv_cache_tokens"])
    assert least > 0
    text = run(*of).stdout
    weights = layout["ranks"][least]["items"]["weights"] / 2**30
    assert f"\nRank {least}, " in text and re.search(rf"^pp 8 +{weights:.2f} ", text, re.M)


def test_one_position_has_no_context():
    (layout,) = plan("--config-preset", "v3", "--tp", 8, "--max-model-len", 1)["layouts"]
    assert [prefill["input_len"] for prefill in layout["prefill"]] == [1] and layout["prefill"][0]["tokens_per_s"] > 0


def test_a_folder():
    found = plan(MODEL, "--tp", 2)
    assert found["model"] == "tiny-r1"
    (layout,) = found["layouts"]
    assert layout["name"] == "tp 2"


def test_one_layout_is_explained():
    done = run("--config-preset", "v2-lite", "--dp", 2, "--enable-expert-parallel", "--max-model-len", "32k", "--batch-size", 16)
    assert done.returncode == 0, done.stderr
    for said in ("Rank 0, than which none has less room, GiB", "of these on all ranks", "A step of 16 requests in each group", "exchange of experts' tokens"):
        assert said in done.stdout
    said = run("--config-preset", "v2-lite", "--num-layers", 1, "--batch-size", 1).stdout
    assert "v2-lite, 1 layer, " in said and "A step of 1 request: " in said


def test_figures_of_another_gpu(tmp_path):
    halves = ("--config-preset", "v2-lite", "--max-model-len", "32k", "--batch-size", 1)
    (whole,), (slow,) = plan(*halves)["layouts"], plan(*halves, "--gpu-bandwidth", 1000)["layouts"]
    assert slow["decode"][0]["step_ms"] > 2 * whole["decode"][0]["step_ms"]
    (small,) = plan(*halves, "--gpu-memory", "80GB")["layouts"]
    assert small["kv_cache_tokens"] < whole["kv_cache_tokens"] / 2
    figures = tmp_path / "gpu.json"
    figures.write_text('{"name": "x"}')
    assert refused(*halves, "--gpu-file", figures) == f'--gpu-file {figures}: "hopper" is missing'
    stored = (ROOT / "apps" / "plan" / "gpu_types" / "h200.json").read_text()
    for wrong in ("1e400", "1e30", "1e-300", "-1"):  # of the first no step time would be a number
        figures.write_text(re.sub(r'("barrier_s": {\s*"value": )[^,]*', rf"\g<1>{wrong}", stored))
        assert refused(*halves, "--gpu-file", figures) == (
            f'--gpu-file {figures}: figures: barrier_s needs a "value" from 1e-18 to 1e+18')


def test_two_hosts():
    """R1 on 2 x 8 GPUs of 79 GB, which hold it over both hosts only."""
    of = ("--config-preset", "v3", "--gpu-memory", "79GB", "--max-model-len", "32k", "--batch-size", 8)
    assert "GiB are needed" in run(*of, "--tp", 8).stdout
    found = plan(*of, "--nnodes", 2, "--tp", 8, "--pp", 2)
    (layout,) = found["layouts"]
    assert found["hosts"] == 2 and found["network_assumed"] and len(layout["ranks"]) == 16
    assert layout["kv_cache_tokens"] > 100_000
    (decode,) = layout["decode"]
    crossing = {name for name, part in decode["parts"].items() if part["network_bytes"] > 0}
    assert crossing == {"handing on to the next stage", "drawn tokens to all stages"}
    # With several GPUs of a host nothing is recorded, with one each step is.
    assert {rank["recorded_steps"] for rank in layout["ranks"]} == {0}
    said = (*of, "--nnodes", 2, "--tp", 8, "--pp", 2, "--network-bandwidth", 1, "--network-latency", 1000)
    slow = plan(*said)
    assert not slow["network_assumed"]
    assert slow["layouts"][0]["decode"][0]["step_ms"] > decode["step_ms"] + 2
    text = run(*said).stdout
    assert "2 hosts with 8 GPUs each; between them 1 GB/s of each GPU and 1000 us an exchange, as was said" in text
    assert "do not record their steps" in text and "Start-up records" not in text
    (layout,) = plan("--config-preset", "v2-lite", "--tp", 2, "--nnodes", 2)["layouts"]
    assert all(rank["recorded_steps"] > 0 for rank in layout["ranks"])
    found = plan("--config-preset", "v2-lite", "--gpus", 2, "--nnodes", 2)
    assert "pp 2 x tp 2" in {layout["name"] for layout in found["layouts"]} and all(len(e["ranks"]) == 4 for e in found["layouts"])


def test_lengths_in_thousands():
    found = plan("--config-preset", "v2-lite", "--context", "4K", "--prefill-len", "8k,2K")
    assert found["context"] == 4096
    assert [prefill["input_len"] for prefill in found["layouts"][0]["prefill"]] == [8000, 2048]


def test_more_requests_than_run_at_once():
    of = ("--config-preset", "v2-lite", "--max-num-seqs", 4, "--batch-size", "4,8")
    fits, beyond = plan(*of)["layouts"][0]["decode"]
    assert fits["fits"] and not fits["exceeds_max_num_seqs"]
    assert not beyond["fits"] and beyond["exceeds_max_num_seqs"]
    text = run(*of).stdout
    assert "too many: --max-num-seqs is less" in text and "no room" not in text


def test_what_does_not_fit_is_said():
    done = run("--config-preset", "v3", "--gpus", 4)
    assert done.returncode == 1
    assert "tp 4: " in done.stdout and "GiB are needed and 139.3 can be had" in done.stdout
    found = run("--config-preset", "v3", "--gpus", 4, "--json")
    assert found.returncode == 1
    assert {entry["name"] for entry in json.loads(found.stdout)["refused"]} == {
        "tp 4", "tp 4 + ep", "tp 2 x dp 2", "tp 2 x dp 2 + ep", "dp 4", "dp 4 + ep",
        "pp 2 x tp 2", "pp 2 x tp 2 + ep", "pp 2 x dp 2", "pp 2 x dp 2 + ep", "pp 4"}


@pytest.mark.parametrize(
    "arguments, said",
    [
        ([], "say which model: its folder, or --config-preset, and not both"),
        ([MODEL, "--config-preset", "v3"], "say which model: its folder, or --config-preset, and not both"),
        (["--config-preset", "v3", "--gpus", 2, "--tp", 2],
         "--gpus asks for all layouts of so many GPUs, --tensor-parallel-size for a single one, of as many GPUs as its sizes make: "
         "leave one of the two out"),
        (["--config-preset", "v3", "--nnodes", 2, "--tp", 3],
         "--nnodes 2: 3 ranks cannot be dealt evenly; the sizes of --tp, --pp and --dp multiplied must be a multiple of it"),
        (["--config-preset", "v3", "--network-latency", 2],
         "--network-latency: it means nothing without --nnodes: say that too, or leave it out"),
        (["--config-preset", "v3", "--gpu-memory", "0"], "--gpu-memory: 0 is not a number from 1 to 1e+18"),
        (["--config-preset", "v3", "--gpu-memory", 2**64 - 1], f"--gpu-memory: {2**64 - 1} is not a number from 1 to 1e+18"),
        (["--config-preset", "v3", "--num-layers", 100], "--num-layers 100: the model has 61"),
        (["--config-preset", "v3", "--max-model-len", 4000, "--context", 4096, "--prefill-len", 100],
         "--context 4096 and --prefill-len 100 must be within --max-model-len, which is 4000"),
        (["--config-preset", "v3", "--experts-per-layer", 300], "--experts-per-layer 300: the model has 256"),
        (["--config-preset", "v3", "--experts-per-layer", 7.5], "--experts-per-layer 7.5: a single token draws 8"),
        (["--config-preset", "v3", "--tp", 8, "--pp", 2], "16 GPUs of a host: at most 8; say --nnodes, with more hosts"),
        (["--config-preset", "v3", "--gpu-type", "a100"], "--gpu-type: a100 not in {h200}"),
        (["--config-preset", "v3", "--kv-cache-memory-bytes", "-1GiB"], "--kv-cache-memory-bytes: -1GiB is below 0"),
        (["--config-preset", "r1"], "no preset r1: there are v2-lite, v2, v3 (R1 and V3.1, too), v2-lite-mtp"),
    ],
)  # fmt: skip
def test_refusals(arguments, said):
    assert refused(*arguments) == said
