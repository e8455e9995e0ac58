"""What the command line says of what it cannot take."""

import os
import resource
import subprocess

import pytest
import requests

from conftest import BINARY, MODEL, serving


def run(*arguments, **options):
    return subprocess.run(
        [BINARY, *arguments], capture_output=True, text=True, timeout=60, **options
    )


def refused(*arguments):
    """The lines of a usage error, but for the last one."""
    result = run(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    *lines, last = result.stderr.splitlines()
    assert last.endswith("--help says what it takes")
    return lines


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["serve", MODEL, "--port", "99999"], ["fathom serve: --port: Value 99999 not in range 0 to 65535"]),
        (["serve", MODEL, "--max-body-bytes", "0"], [
            "fathom serve: --max-body-bytes: Value 0 not in range 1 to 1099511627776"]),
        (["serve", MODEL, "--served-model-name", "a", ""], ["fathom serve: --served-model-name: a name is empty"]),
        (["serve", MODEL, "--port"], ["fathom serve: --port needs a value"]),
        (["serve", MODEL, "--port", "1", "--port", "2"], ["fathom serve: --port is given more than once"]),
        (["serve", MODEL, "--uds", "f", "--port", "1"], ["fathom serve: --port excludes --uds"]),
        (["serve", MODEL, "--no-speculation", "--speculative-config", "{}"], [
            "fathom serve: --speculative-config excludes --no-speculation"]),
        (["serve", MODEL, "--allowed-hosts", "a.example", "http://x"], [
            "fathom serve: --allowed-hosts: http://x is not a name as models.example.com: no scheme, no port, no path"]),
        (["serve", MODEL, "--allowed-hosts", "x:80"], [
            "fathom serve: --allowed-hosts: x:80 is not a name as models.example.com: no scheme, no port, no path"]),
        (["serve"], ["fathom serve: no model: name its folder"]),
        (["serve", MODEL, "elsewhere"], ["fathom serve: one argument too many: elsewhere"]),
        (["serv", MODEL], ["fathom: there is no command serv; did you mean serve?"]),
        (["bench"], ["fathom bench: say which command: offline, serve"]),
        (["bench", "serve", "--seed", "x"], ["fathom bench serve: --seed = x: it does not take such a value"]),
        (
            ["serve", MODEL, "--prot", "1", "--nonsense"],
            [
                "fathom serve: there is no --prot; did you mean --port?",
                "fathom serve: there is no --nonsense",
            ],
        ),
        (["generate", MODEL, "hi", "--temprature", "0"], [
            "fathom generate: there is no --temprature; did you mean --temperature?"]),
        (["generate", MODEL, ""], [
            "fathom generate: prompt: it is empty: leave it out to talk, or to read standard input"]),
        (["serve", MODEL, "--nnodes", "0"], ["fathom serve: --nnodes: Value 0 not in range 1 to 1024"]),
        (["plan", MODEL, "--nnodes", "0"], ["fathom plan: --nnodes: Value 0 not in range 1 to 64"]),
        (["plan", MODEL, "--node-rank", "1"], [
            "fathom plan: --node-rank: it is for ranks of several hosts, which serve, generate, verify and bench offline have: "
            "leave it out"]),
        (["compare", MODEL, "--server", "http://x", "--nnodes", "2"], [
            "fathom compare: --nnodes: 2 is not 1; it is for ranks of several hosts, which serve, generate, verify and bench "
            "offline have: leave it out"]),
        (["bench", "offline", MODEL, "--max-num-seqs", "2"], [
            "fathom bench offline: --max-num-seqs: it is the largest --batch-size: leave it out"]),
    ],
)  # fmt: skip
def test_mistakes_are_named(arguments, said):
    assert refused(*arguments) == said


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["inspect", MODEL],
        ["inspect", MODEL, "--tensors"],  # more than a buffer holds
        ["plan", MODEL, "--json"],
        ["generate", MODEL, "hi", "--max-tokens", "1"],
    ],
)  # fmt: skip
def test_output_that_cannot_be_written_is_no_success(arguments):
    with open("/dev/full", "w") as full:
        result = subprocess.run([BINARY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] in (
        "fathom: the output could not be written whole",
        "fathom: cannot write to file: No space left on device",
    )


def test_a_byte_that_is_no_utf8_is_counted_in_the_text_that_was_given():
    result = subprocess.run([BINARY, "generate", MODEL], input=b"a\xff\n", capture_output=True, timeout=60)
    assert result.returncode == 1
    assert b"byte 1 (0xFF) begins no character" in result.stderr


@pytest.mark.parametrize(
    "flags, hint",
    [
        (["--seed", "1"], "send \"seed\""),
        (["--enable-eplb"], "one process"),
        (["--max-num-queued-reqs", "5"], "say --max-queue"),
        (["--max-logprobs", "50"], "at most 20"),
        (["--tool-call-parser", "hermes"], "deepseek_v31"),
        (["--reasoning-parser=qwen3"], "deepseek_r1"),
        (["--gpu-memory-utilization", "0.95"], "--kv-cache-memory-bytes"),
        (["--block-size", "16"], "a page has 64 tokens"),
        (["--num-gpu-blocks-override", "512"], "--kv-cache-memory-bytes"),
        (["--attention-backend", "FLASHMLA"], "leave it out"),
        (["--compilation-config", "3"], "leave it out"),
        (["--cuda-graph-sizes", "8"], "leave it out"),
        (["--dtype", "float16"], "weights keep the types"),
        (["--kv-cache-dtype", "fp8_e5m2"], "fp8 is E4M3"),
    ],
)
def test_flags_of_vllm_get_a_hint(flags, hint):
    (line,) = refused("serve", MODEL, *flags)
    assert hint in line
    assert line.startswith(f"fathom serve: {flags[0].split('=')[0]}:")


def test_what_vllm_says_of_one_process_and_the_models_own_length_is_taken():
    for length in ("auto", "-1", "0"):
        result = run(
            "serve", "nowhere", "--tensor-parallel-size", "1", "--pipeline-parallel-size=1",
            "--data-parallel-size", "1", "--max-model-len", length, "--port", "0",
        )  # fmt: skip
        assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"
    assert refused("serve", MODEL, "--max-model-len", "8m")


def test_what_a_command_line_of_vllm_asks_for_and_gets_anyway_is_taken():
    result = run(
        "serve", "nowhere", "--trust-remote-code", "--enable-auto-tool-choice", "--tool-call-parser", "deepseek_v31",
        "--reasoning-parser=deepseek_r1", "--gpu-memory-utilization", "0.9", "--block-size=64", "--enable-chunked-prefill",
        "--enable-prefix-caching", "--async-scheduling", "--disable-log-requests", "--port", "0",
    )  # fmt: skip
    assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"


def test_more_of_what_runs_anyway_is_taken():
    result = run(
        "serve", "nowhere", "-tp", "1", "-pp", "1", "-dp", "1", "--enforce-eager", "--seed", "0", "--dtype", "bfloat16",
        "--kv-cache-dtype", "fp8_e4m3", "--load-format", "safetensors", "--tokenizer-mode", "auto",
        "--scheduling-policy", "fcfs", "--swap-space", "0", "--distributed-executor-backend", "mp",
        "--disable-log-stats", "--uvicorn-log-level", "info", "--enable-request-id-headers",
        "--exclude-tools-when-tool-choice-none", "--disable-custom-all-reduce", "--max-cudagraph-capture-size", "512",
        "-O3", "--max_model_len", "32k", "--port", "0",
    )  # fmt: skip
    assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"
    with serving("--quantization", "fp8"):  # as it is stored
        pass


def test_flags_from_the_environment_and_a_file(tmp_path):
    def length(*flags, **environment):
        with serving(*flags, env=os.environ | environment) as server:
            return requests.get(f"{server.url}/server_info", timeout=10).json()["max_model_len"]

    config = tmp_path / "fathom.yaml"
    config.write_text("max-model-len: 512\nserved_model_name: [a, b]\nenforce-eager: true\nseed: 0\n")
    assert length("--max_model_len", "1K") == 1024
    assert length(FATHOM_MAX_MODEL_LEN="256") == 256
    assert length(FATHOM_MAX_MODEL_LEN="256", FATHOM_PORT="tcp://10.0.0.1:8000") == 256
    assert length("--config", str(config), FATHOM_MAX_MODEL_LEN="256") == 512
    assert length("--config", str(config), "--max-model-len", "128") == 128
    with serving(f"--config={config}") as server:
        assert [m.id for m in server.client().models.list()] == ["a", "b"]
    config.write_text("- 5\n")
    result = run("serve", MODEL, "--config", str(config))
    assert result.returncode == 2 and "is not a map of flags" in result.stderr


def test_how_long_a_step_may_take():
    (line,) = refused("serve", MODEL, "--step-timeout", "0")
    assert "--step-timeout" in line and "0 is not a number from 0.1 to 86400" in line
    result = run("serve", "nowhere", env=os.environ | {"FATHOM_STEP_TIMEOUT": "never"})
    assert result.returncode == 2 and "never is not a number from 0.1 to 86400" in result.stderr
    for command in (["serve"], ["generate"], ["verify"], ["bench", "offline"]):
        assert "--step-timeout FLOAT=120 " in run(*command, "--help").stdout


@pytest.mark.parametrize("flag", [["--node-rank", "1"], ["--node-rank", "0"], ["--master-addr", "10.0.0.1"], ["--master-port", "29500"],
                                  ["--headless"], ["--hosts-secret-file", "/etc/hostname"]])
@pytest.mark.parametrize("command", [["serve", MODEL], ["verify", MODEL, "--reference", "f"], ["generate", MODEL, "hi"],
                                     ["bench", "offline", MODEL]])
def test_what_is_between_hosts_means_nothing_of_one(command, flag):
    (line,) = refused(*command, *flag)
    assert line.endswith(f": {flag[0]}: it means nothing without --nnodes: say that too, or leave it out")
    result = run("serve", "nowhere", "--nnodes", "1", "--master-addr", "10.0.0.1", "--node-rank", "0")
    assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"


@pytest.mark.parametrize("gpus", ["0,1", "all", "-1", "cuda:0"])
def test_a_model_runs_on_one_gpu(gpus):
    (line,) = refused("serve", MODEL, "--device", "cuda", f"--gpu={gpus}")
    assert f"{gpus} is not the number of a GPU: the first is 0" in line


@pytest.mark.parametrize("flag", ["--tensor-parallel-size", "-tp"])
def test_ranks_share_the_heads_evenly(flag):
    result = run("serve", MODEL, flag, "8")
    assert result.returncode == 1 and result.stdout == ""
    assert "--tensor-parallel-size 8: the model's 4 heads cannot be shared out evenly; 1, 2, 4" in result.stderr


@pytest.mark.parametrize(
    "flags, said",
    [
        (["--dp=40", "-tp", "4"], "160 ranks cannot cut the model's experts of 128 inner channels between them; at most 32"),
        (["-dp", "2", "--bf16-residual"], "--bf16-residual: one stage hands nothing on; leave it out, or take"),
        (["-dp", "20", "-ep", "-tp", "2"], "--data-parallel-size 20: 40 ranks for the model's 16 routed experts, of which each"),
        (["-dp", "2", "-ep", "-tp", "3"], "--tensor-parallel-size 3: the model's 4 heads cannot be shared out evenly"),
    ],
)
def test_groups_share_experts(flags, said):
    result = run("serve", MODEL, *flags)
    assert result.returncode == 1 and result.stdout == ""
    assert said in result.stderr


@pytest.mark.parametrize("flags", [["-pp", "7"], ["--pp=7"], ["--pipeline-parallel-size", "7"]])
def test_each_stage_has_a_layer(flags):
    result = run("serve", MODEL, *flags)
    assert result.returncode == 1 and result.stdout == ""
    assert "--pipeline-parallel-size 7: the model has 6 layers, and each stage needs one; at most 6 would do" in result.stderr


def test_a_gpu_without_device_cuda_is_refused():
    for command in (["generate", MODEL, "hi"], ["verify", MODEL, "--reference", "none"]):
        result = run(*command, "--gpu", "1")
        assert result.returncode == 1 and result.stdout == ""
        assert "--gpu 1: --ops cpu runs on the CPU; say --device cuda" in result.stderr


def test_verify_takes_a_device_as_others_do():
    verify = ("verify", MODEL, "--reference", "none")
    for command in (verify, ("serve", MODEL)):
        (line,) = refused(*command, "--device", "gpu")
        assert "cpu,cuda" in line
        result = run(*command, "--device", "cuda", "--ops", "cpu")
        assert result.returncode == 1 and "--ops cpu does not run on --device cuda" in result.stderr
    # Nobody who says --ops cuda must say --device cuda too: what is then missing is the GPU, or the reference.
    assert "--device cpu" not in run(*verify, "--ops", "cuda").stderr


@pytest.mark.parametrize("flags", [("--ops", "gpu"), ("--kv-cache-dtype", "int2"), ("-q", "int2")])
def test_commands_agree_on_what_is_no_backend(flags):
    said = {
        refused(*command, *flags)[0].partition(": ")[2]
        for command in (
            ("serve", MODEL),
            ("generate", MODEL, "hi"),
            ("bench", "offline", MODEL),
            ("verify", MODEL, "--reference", "none"),
        )
    }
    assert len(said) == 1 and flags[1] in said.pop()


def test_steps_too_long_for_the_memory_are_refused_with_the_plan():
    result = run(
        "generate", MODEL, "hi", "--max-num-batched-tokens", "1048576",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)),
    )  # fmt: skip
    assert result.returncode == 1
    assert "weights 0.02 GiB" in result.stderr and "--max-num-batched-tokens" in result.stderr


def test_a_cache_that_could_not_be_used_whole_is_said():
    # Two pages, and far more, which is of use only to a prefix cache.
    for size, caching, said in (("2016KiB", "--no-enable-prefix-caching", False),
                                ("1GiB", "--no-enable-prefix-caching", True), ("1GiB", "--enable-prefix-caching", False)):
        result = run("generate", MODEL, "hi", "--max-tokens", "1", "--max-model-len", "100", "--kv-cache-memory-bytes", size, caching)
        assert result.returncode == 0
        assert ("--kv-cache-memory-bytes 1073741824: the KV cache takes 2064384 of them" in result.stderr) == said


def test_one_request_is_not_called_requests():
    result = run("generate", MODEL, "hi", "--max-tokens", "1", "--log-level", "info")
    assert result.returncode == 0 and "at most 1 request and 1024 tokens a step" in result.stderr


def test_nothing_to_answer_is_said():
    result = run("generate", MODEL, stdin=subprocess.DEVNULL)
    assert result.returncode == 1 and "nothing on standard input" in result.stderr


def test_model_as_a_flag_gets_a_hint():
    assert refused("serve", "--model", MODEL) == refused("serve", f"--model={MODEL}")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nowhere", "--served-model-name", "a", "b"],
        ["--served-model-name", "a", "b", "nowhere"],
        ["--served-model-name", "a", "b", "nowhere", "--port", "0"],
        ["--served-model-name=a", "nowhere", "--port", "0"],
        ["--allowed-origins", "http://a", "nowhere"],
        ["--allowed-origins", '["http://a", "null"]', "nowhere", "--port", "0"],
        ["--served-model-name", "a", "--allowed-origins", "*", "nowhere"],
        ["nowhere", "--allowed-origins", "http://a", "http://b"],
    ],
)
def test_the_model_may_stand_behind_lists_of_words(arguments):
    result = run("serve", *arguments)
    assert result.returncode == 1 and result.stderr == "fathom serve: there is no folder nowhere\n"


@pytest.mark.parametrize("flag", ["--batch-size", "--input-len", "--prefill-len"])
def test_the_model_may_stand_behind_lists_of_numbers(flag):
    result = run("bench", "offline", flag, "1,2", "nowhere")
    assert result.returncode == 1 and result.stderr == "fathom bench offline: there is no folder nowhere\n"


def test_an_origin_alone_is_no_model():
    assert refused("serve", "--allowed-origins", "http://a") == ["fathom serve: no model: name its folder"]


def test_a_served_name_is_no_model():
    for flags in ([], ["--port", "0"]):
        assert refused("serve", "--served-model-name", "a", *flags) == [
            "fathom serve: no model: name its folder"
        ]


def test_help_is_no_error():
    for command in (["--help"], ["serve", "--help"], ["bench", "serve", "--help"]):
        result = run(*command)
        assert result.returncode == 0 and "{}" not in result.stdout
    assert run().returncode == 2
