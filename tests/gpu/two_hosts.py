#!/usr/bin/env python3
"""Two processes as two hosts whose GPUs NCCL joins over sockets; on one GPU, which they share by turns, or on two.

    two_hosts.py --binary FOLDER/bin/fathom --model models/tiny-r1 --reference tests/golden/tiny-r1/reference.safetensors

Stages, and groups with experts over them, must have the bits of one GPU, alone and in company; ranks that cut heads or experts the same
bits alone and in company, on both hosts, and one rank's limits. A host that is killed ends the other with a word, in time.
Needs nothing but Python. Prints a line for each check, and last a line of JSON, which tools/ranks_record.py stores; the exit status
says whether all passed.
"""
import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOCKETS = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
LAYOUTS = (["--pp", "2"], ["--dp", "2", "--enable-expert-parallel"], ["--dp", "2"], ["--tp", "2"])
ENGINE = ["--device", "cuda", "--max-num-seqs", "16", "--max-model-len", "1024", "--kv-cache-memory-bytes", "256MiB"]
QUESTIONS = [f"What is {a} + {b}?" for a, b in ((12, 13), (7, 5), (40, 2), (19, 23), (8, 64), (31, 31), (5, 90), (77, 11))]


def gpus():
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.splitlines())


def of_host(index, folder):
    return {**os.environ, **SOCKETS, "NCCL_HOSTID": f"host{index}", "CUDA_VISIBLE_DEVICES": str(index % gpus()),
            "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{folder}/nccl.%p"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


class Hosts:
    """How two commands find each other."""

    def __init__(self, folder):
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text("a secret of more than sixteen bytes\n")

    def transports(self):
        """What NCCL says that it moved bytes through, so far."""
        said = "".join(path.read_text(errors="replace") for path in self.folder.glob("nccl.*"))
        return sorted(set(re.findall(r"Channel .* via ([A-Z]\w*(?:/[A-Z]\w*)?)", said)))

    def flags(self):
        return ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--hosts-secret-file", str(self.secret)]


class Process:
    def __init__(self, command, index, folder):
        self.log = tempfile.TemporaryFile("w+")
        self.running = subprocess.Popen(list(map(str, command)), stdout=self.log, stderr=subprocess.STDOUT, env=of_host(index, folder))

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def end(self, timeout):
        try:
            return self.running.wait(timeout)
        except subprocess.TimeoutExpired:
            self.running.kill()
            self.running.wait()
            return None


def verified(args, hosts, *layout):
    """What both hosts say of the model's logits; of one GPU without a layout."""
    command = [args.binary, "verify", args.model, "--reference", args.reference, "--device", "cuda", "--json", *layout]
    others = hosts.flags() if layout else []
    processes = [Process([*command, *others, *(["--node-rank", index] if layout else [])], index, hosts.folder)
                 for index in range(2 if layout else 1)]
    codes = [process.end(120) for process in processes]
    outputs = [process.output() for process in processes]
    assert codes == [0] * len(codes), f"exit statuses {codes}: {[text[-1500:] for text in outputs]}"
    return [json.loads(line) for text in outputs for line in text.splitlines() if line.startswith("{")]


@contextlib.contextmanager
def serving(args, hosts, *layout):
    command = [args.binary, "serve", args.model, *ENGINE, "--port", "0", *layout]
    others = hosts.flags() if layout else []
    processes = [Process([*command, *others, *(["--node-rank", index] if layout else [])], index, hosts.folder)
                 for index in range(2 if layout else 1)]
    try:
        until = time.monotonic() + 120
        while not (url := re.search(r"http://[\d.]+:\d+", processes[0].output())):
            ended = [process.running.poll() for process in processes]
            assert time.monotonic() < until and ended == [None] * len(ended), f"{ended}: {[p.output()[-1500:] for p in processes]}"
            time.sleep(0.2)
        yield url[0], processes
    finally:
        for process in processes:
            process.running.kill()
            process.running.wait()


def ask(url, number, seed=0):
    """Greedy and sampled by turns."""
    body = {"prompt": QUESTIONS[number % len(QUESTIONS)], "max_tokens": 24, "min_tokens": 24, "seed": seed + number, "logprobs": 2,
            "temperature": number % 2 * 3}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def answers(url, count=16):
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: ask(url, number), range(count)))


def stops(processes):
    """Both hosts end as they should when the first is told to."""
    processes[0].running.terminate()
    codes = [process.end(20) for process in processes]
    assert codes == [0, 0], f"exit statuses {codes}: {[process.output()[-1500:] for process in processes]}"


def errors_after_a_host_is_lost(url, processes):
    """Seconds from the loss to a stream's error event, and to the process's end."""
    body = json.dumps({"prompt": "1 + 1", "max_tokens": 900, "min_tokens": 900, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as stream:
        for _ in range(20):
            stream.readline()
        processes[1].running.kill()
        lost = time.monotonic()
        for line in stream:
            if b'"error"' in line:
                break
        else:
            raise AssertionError("the stream ended without an error")
        error_s = time.monotonic() - lost
    code = processes[0].end(20)
    assert code == 1, f"exit status {code}: {processes[0].output()[-1500:]}"
    assert "host 1" in processes[0].output()
    return error_s, time.monotonic() - lost


class Record:
    """The verdict of each check."""

    def __init__(self):
        self.checks = {}

    def check(self, name, body):
        """Whether it passed. `body` returns what it says in words, and figures by name."""
        begin = time.monotonic()
        try:
            said, figures = body()
            verdict = {"passed": True, "said": said, **figures}
        except Exception as error:
            verdict = {"passed": False, "said": str(error)}
        verdict["seconds"] = round(time.monotonic() - begin, 1)
        self.checks[name] = verdict
        print(f"{'ok' if verdict['passed'] else 'FAILED':7} {name}: {verdict['said']} ({verdict['seconds']:.0f} s)", flush=True)
        return verdict["passed"]


def check_layout(record, args, hosts, layout, one_gpu):
    """`one_gpu`: its report of logits, and its answers."""
    report_of_one, expected = one_gpu
    cut = layout in (["--dp", "2"], ["--tp", "2"])

    def logits():
        # In BF16 where ranks cut: rounding a sum of parts to FP8 turns a router of tiny-r1 at one position or another.
        reports = verified(args, hosts, *layout, *(["--ops", "cuda"] if cut else []))
        assert all(report["passed"] for report in reports), reports
        assert len({report["logits_hash"] for report in reports}) == 1, "the hosts differ"
        assert cut or reports[0]["logits_hash"] == report_of_one["logits_hash"], "not the bits of one GPU"
        return "the same on both hosts" if cut else "the bits of one GPU", {}

    def over_http():
        with serving(args, hosts, *layout) as (url, processes):
            together = answers(url)
            alone = [ask(url, number) for number in range(4)]
            assert alone == together[:4], "alone and in company differ"
            assert cut or together == expected, "not the answers of one GPU"
            error_s, end_s = errors_after_a_host_is_lost(url, processes)
            assert error_s < 1 and end_s < 10, f"{error_s:.2f} s, {end_s:.2f} s"
        with serving(args, hosts, *layout) as (url, processes):
            assert ask(url, 0) == alone[0], "another run says something else"
            stops(processes)
        return (f"as they should be; a lost host: an error after {error_s:.2f} s, the end after {end_s:.2f} s",
                {"error_s": round(error_s, 3), "end_s": round(end_s, 3)})

    record.check(f"logits of {' '.join(layout)}", logits)
    record.check(f"answers of {' '.join(layout)}", over_http)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", default=ROOT / "models" / "tiny-r1")
    parser.add_argument("--reference", default=ROOT / "tests" / "golden" / "tiny-r1" / "reference.safetensors")
    args = parser.parse_args()
    if gpus() == 0:
        sys.exit("two_hosts.py needs a GPU, and nvidia-smi lists none")
    record, one_gpu = Record(), []
    with tempfile.TemporaryDirectory() as folder:
        hosts = Hosts(pathlib.Path(folder))

        def alone():
            one_gpu.extend(verified(args, hosts))
            with serving(args, hosts) as (url, _):
                expected = answers(url)
                assert [ask(url, number) for number in range(4)] == expected[:4], "alone and in company differ"
                assert [ask(url, number, seed=99) for number in range(4)] != expected[:4], "the canary: other seeds say the same"
            one_gpu.append(expected)
            return "says the same again, and something else with other seeds", {}

        def over_sockets():
            found = hosts.transports()
            assert set(found) <= {"NET/Socket"}, f"NCCL took {', '.join(found)}"
            return ", ".join(found) or "NCCL does not say what it took", {"transports": found}

        if record.check("one GPU", alone):
            for layout in LAYOUTS:
                check_layout(record, args, hosts, layout, one_gpu)
            record.check("bytes travelled over", over_sockets)
    failed = [name for name, verdict in record.checks.items() if not verdict["passed"]]
    print(json.dumps({"gpus": gpus(), "checks": record.checks, "failed": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
