"""Two hosts that share an engine's ranks: the second one in a network namespace of its own, or, where the kernel forbids that,
a process beside the first."""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest
import requests
from conftest import BINARY, MODEL, ROOT, Server, eventually
from test_stages import KINDS, answers, ask

FLAGS = ("--max-num-seqs", "16", "--prefill-chunk", "64", "--threads", "1")


class Network:
    """The first host's address, and what a command of the second one begins with."""

    def __init__(self):
        self.name = f"fathom{os.getpid() % 10000}"
        octet = os.getpid() % 250
        self.address, self.prefix, self.why_not = f"10.213.{octet}.1", ["ip", "netns", "exec", self.name], ""
        commands = (f"netns add {self.name}", f"link add {self.name} type veth peer name {self.name}b",
                    f"link set {self.name}b netns {self.name}", f"addr add {self.address}/24 dev {self.name}",
                    f"link set {self.name} up", f"-n {self.name} addr add 10.213.{octet}.2/24 dev {self.name}b",
                    f"-n {self.name} link set {self.name}b up", f"-n {self.name} link set lo up")
        for command in commands:
            done = self.ip(command)
            if done.returncode != 0:
                self.close()
                self.address, self.prefix, self.why_not = "127.0.0.1", [], done.stderr.strip()
                return

    @staticmethod
    def ip(command):
        try:
            return subprocess.run(["ip", *command.split()], capture_output=True, text=True)
        except FileNotFoundError:
            return subprocess.CompletedProcess(command, 1, "", "there is no ip command")

    def close(self):
        self.ip(f"link del {self.name}")
        self.ip(f"netns del {self.name}")


@pytest.fixture(scope="module")
def network():
    network = Network()
    if network.why_not:
        print(f"no network namespaces ({network.why_not}): both hosts are on the loopback interface")
    yield network
    network.close()


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text("a secret of more than sixteen bytes\n")
    return file


class OtherHost:
    """The second one, which prints no address to ask."""

    def __init__(self, network, *flags, binary=BINARY):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*network.prefix, binary, "serve", MODEL, "--port", "8712", "--node-rank", "1", *flags],
                                        stdout=self.log, stderr=subprocess.STDOUT)

    def output(self):
        self.log.seek(0)
        return self.log.read()

    def health(self, network):
        """Asked from where it is."""
        asked = subprocess.run([*network.prefix, "curl", "-s", "-m", "2", "-o", "/dev/null", "-w", "%{http_code}",
                                "http://127.0.0.1:8712/health"], capture_output=True, text=True)
        return asked.stdout


def shared_flags(network, secret):
    with socket.create_server((network.address, 0)) as free:
        port = free.getsockname()[1]
    flags = {"--nnodes": 2, "--master-addr": network.address, "--master-port": port, "--hosts-secret-file": secret, "--max-num-seqs": 16,
             "--prefill-chunk": 64, "--threads": 1}
    return [str(word) for flag in flags.items() for word in flag]


@contextlib.contextmanager
def two_hosts(network, secret, *flags):
    flags = [*shared_flags(network, secret), *flags]
    other = OtherHost(network, *flags)
    first = None
    try:
        first = Server(*flags)
        yield first, other
    finally:
        other.process.kill()
        other.process.wait()
        if first:
            first.kill()


@contextlib.contextmanager
def one_host(*flags):
    server = Server(*FLAGS, *flags)
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.parametrize("flags", [["-pp", "2"], ["-dp", "2", "-ep"], ["-tp", "2"], ["-pp", "2", "-tp", "2"],
                                   ["-dp", "2"],
                                   ["-tp", "2", "-dp", "2", "-ep", "--no-speculation"]], ids=" ".join)
def test_answers_are_those_of_one_host(flags, network, secret):
    """Ranks that cut heads or experts round otherwise than one: these are held against one host with as many."""
    with one_host(*flags if "-tp" in flags or flags == ["-dp", "2"] else []) as server:
        expected = answers(server)
    with two_hosts(network, secret, *flags) as (server, other):
        assert eventually(lambda: other.health(network) == "200")
        assert answers(server) == expected
        assert [ask(server, number) for number in range(len(KINDS))] == expected[:len(KINDS)], "alone"
        last = str(math.prod(int(flag) for flag in flags if flag.isdigit()) - 1)  # of the other host
        assert eventually(lambda: server.metric("fathom:rank_steps_total", rank=last) == server.metric("fathom:rank_steps_total", rank="0"))
        assert server.metric("fathom:rank_memory_bytes", rank=last, kind="weights") > 0
        assert server.stop() == 0
        assert other.process.wait(10) == 0, other.output()


def on_both(network, secret, *words):
    """What both hosts print of a command that ends by itself."""
    words = [str(word) for word in words]
    flags = shared_flags(network, secret)
    flags = words + flags[:flags.index("--max-num-seqs")]
    with subprocess.Popen([*network.prefix, BINARY, *flags, "--node-rank", "1"], stdout=subprocess.PIPE, text=True) as other:
        first = subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=60)
        said = other.communicate(timeout=60)[0]
        assert first.returncode == 0 and other.returncode == 0, first.stderr
    return first.stdout, said


@pytest.mark.parametrize("layout", ["--pp", "--tp"])
def test_logits_are_those_of_one_host(layout, network, secret):
    reference = ROOT / "tests" / "golden" / "tiny-r1" / "reference.safetensors"
    command = ["verify", MODEL, "--reference", reference, "--ops", "cpu", "--json", layout, "2"]
    alone = json.loads(subprocess.run([BINARY, *command], capture_output=True, check=True).stdout)
    said = [json.loads(text) for text in on_both(network, secret, *command) if text]
    assert len(said) == (1 if layout == "--pp" else 2), "hosts that have the last stage"
    assert all(report["passed"] and report["logits_hash"] == alone["logits_hash"] for report in said)


def test_hosts_verify_the_same_prompts(network, secret, tmp_path):
    """Else they would be at other steps, and what they compare would mean nothing."""
    reference = (ROOT / "tests" / "golden" / "tiny-r1" / "reference.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", reference[:8])
    begin, _ = json.loads(reference[8:8 + size])["0.prompt"]["data_offsets"]
    token = 8 + size + begin + 4
    files = [tmp_path / name for name in ("first", "other")]
    files[0].write_bytes(reference)
    files[1].write_bytes(reference[:token] + bytes([reference[token] ^ 1]) + reference[token + 1:])
    flags = shared_flags(network, secret)
    flags = ["--tp", "2", *flags[:flags.index("--max-num-seqs")]]
    first = subprocess.Popen([BINARY, "verify", MODEL, "--reference", files[0], *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = subprocess.run([*network.prefix, BINARY, "verify", MODEL, "--reference", files[1], *flags, "--node-rank", "1"],
                              capture_output=True, text=True, timeout=60)
        assert said.returncode == 1 and "--reference differs: host 1 has prompts with hash " in said.stderr, said.stderr
    finally:
        first.kill()
        first.wait()


def test_verify_does_not_wait_for_ever(network, secret):
    """The other host halts in the middle: before it counts as silent, a step is given up."""
    reference = ROOT / "tests" / "golden" / "tiny-r1" / "reference.safetensors"
    flags = shared_flags(network, secret)
    flags = ["verify", MODEL, "--reference", reference, "--ops", "reference", "--tp", "2", "--step-timeout", "1",
             *flags[:flags.index("--max-num-seqs")]]
    first = subprocess.Popen([BINARY, *flags], stderr=subprocess.PIPE, text=True)
    other = subprocess.Popen([*network.prefix, BINARY, *flags, "--node-rank", "1"], stderr=subprocess.PIPE, text=True)
    try:
        assert any("weights: tensors" in line for line in other.stderr)  # it is about to begin
        other.send_signal(signal.SIGSTOP)
        said = first.communicate(timeout=60)[1]
        assert first.returncode == 1 and "fathom verify: " in said
        assert re.search(r"rank 0 has waited 1 s for rank 1 of host 1 \(in step \d+, op all_reduce_norm of F32 \[\d+, 256\]\)", said), said
    finally:
        for process in (first, other):
            process.kill()
            process.wait()


@pytest.mark.parametrize("layout", ["--pp", "--tp"])
def test_a_bench_is_of_the_whole_model(layout, network, secret):
    command = ["bench", "offline", MODEL, "--device", "cpu", "--json", "--batch-size", "2", "--input-len", "8", "--output-len", "2",
               "--repeats", "1", "--read-bytes", "1MiB", "--no-speculation", layout, "2"]
    alone = json.loads(subprocess.run([BINARY, *command], capture_output=True, check=True).stdout)
    said, other = on_both(network, secret, *command)
    said = json.loads(said)
    assert not other
    assert said["weight_bytes"] == alone["weight_bytes"]
    for key in ("weight_bytes_per_step", "operations_per_step"):
        assert said["results"][0][key] == pytest.approx(alone["results"][0][key], rel=0.2), "distinct experts are not counted"
    assert said["results"][0]["decode_tokens_per_s"] > 0


def test_a_prompt_is_answered_by_two_hosts(network, secret):
    command = ["generate", MODEL, "What is 12 + 13?", "--pp", "2"]
    assert "25" in on_both(network, secret, *command)[0]


def test_other_seeds_say_something_else(network, secret):
    """The canary: the comparison above would see it."""
    with two_hosts(network, secret, "-pp", "2") as (server, _):
        first = [ask(server, number) for number in range(5)]
        assert [ask(server, number, seed=number + 999) for number in range(5)] != first


def errors_of(events):
    return [at for at, line in events if b'"error"' in line]


def streams(server, events):
    """Reads one answer after the other until one ends with an error, and notes what came and when."""
    body = {"prompt": "1 + 1", "max_tokens": 400, "min_tokens": 400, "stream": True}
    while not errors_of(events):
        try:
            with requests.post(f"{server.url}/v1/completions", json=body, stream=True, timeout=60) as answer:
                for line in answer.iter_lines():  # of one that had not begun, an error alone
                    events.append((time.monotonic(), line))
        except requests.ConnectionError:  # it came when all was over
            events.append((time.monotonic(), b'"error"'))


def healthy(server):
    try:
        return requests.get(f"{server.url}/health", timeout=2).status_code == 200
    except requests.ConnectionError:
        return False


def lose(process, network):
    process.send_signal(signal.SIGKILL)


def silence(process, network):
    """Its network is gone, and nobody is told."""
    if network.prefix:
        network.ip(f"link set {network.name} down")
    else:
        process.send_signal(signal.SIGSTOP)


@pytest.mark.parametrize("flags", [["-pp", "2"], ["-tp", "2"]], ids=" ".join)
@pytest.mark.parametrize("how, within_s", [(lose, 5), (silence, 15)])
def test_a_lost_host_ends_everything_with_a_word(how, within_s, flags, network, secret):
    with two_hosts(network, secret, *flags, "--max-model-len", "512", "--shutdown-timeout", "5") as (server, other):
        events = []
        reader = threading.Thread(target=streams, args=(server, events))
        reader.start()
        assert eventually(lambda: len(events) > 20)
        how(other.process, network)
        lost = time.monotonic()
        try:
            reader.join(within_s)
            assert errors_of(events), f"{events[-1]} {server.output()[-3000:]}"
            assert errors_of(events)[0] - lost < within_s
            assert eventually(lambda: not healthy(server))
            assert server.process.wait(10) == 1
            assert "host 1" in server.output(), server.output()[-2000:]
        finally:
            if network.prefix:
                network.ip(f"link set {network.name} up")
        if how is silence:
            other.process.send_signal(signal.SIGCONT)
            assert other.process.wait(20) == 1, other.output()
            assert "host 0" in other.output()


def test_the_first_host_that_is_lost_ends_the_others(network, secret):
    with two_hosts(network, secret, "-pp", "2") as (server, other):
        server.process.kill()
        assert other.process.wait(10) == 1
        assert "host 0" in other.output()


def test_a_host_that_is_told_to_stop_is_a_lost_one(network, secret):
    with two_hosts(network, secret, "-pp", "2") as (server, other):
        assert eventually(lambda: other.health(network) == "200")
        other.process.send_signal(signal.SIGTERM)
        assert other.process.wait(10) == 0, other.output()
        assert server.process.wait(10) == 1
        assert "host 1 has left" in server.output()


def source_hash(of, root=ROOT):
    """Of this tree, of which the binary is built."""
    return subprocess.run(["cmake", f"-DOF={of}", "-P", root / "cmake" / "source_hashes.cmake"], capture_output=True, text=True,
                          check=True).stdout.strip()


def another_build(folder, of="cpu"):
    """The same program, with another hash of its sources."""
    hashed = source_hash(of).encode()
    content = BINARY.read_bytes()
    assert content.count(hashed) >= 1
    binary = folder / "fathom"
    binary.write_bytes(content.replace(hashed, hashed[::-1]))
    binary.chmod(0o755)
    return binary


def test_kernels_of_gpus_are_part_of_the_build(network, secret, tmp_path):
    """Hosts of GPUs are refused for another one, those of CPUs are not. The GPUs themselves come after the handshake."""
    for folder in ("src", "apps", "cmake"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    with open(tmp_path / "src" / "parallel" / "peer_barrier.cu", "a") as source:
        source.write("int more;\n")
    assert source_hash("cpu", tmp_path) == source_hash("cpu")
    assert source_hash("all", tmp_path) != source_hash("all")
    binary, gpus = another_build(tmp_path, "all"), ["--device", "cuda", "--ops", "cuda"]
    flags = [*shared_flags(network, secret), "-pp", "2"]
    first = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", *flags, *gpus],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        other = OtherHost(network, *flags, *gpus, binary=binary)
        assert other.process.wait(30) != 0
        assert "build differs: " in other.output(), other.output()
    finally:
        first.kill()
        first.wait()


def test_hosts_route_alike(network, secret, tmp_path):
    """Under a routing that is not the router's own; a file is known by what is in it."""
    shares = tmp_path / "shares"
    shares.write_text("1 " * 8)
    flags = shared_flags(network, secret)
    command = [BINARY, "bench", "offline", MODEL, *flags[:flags.index("--max-num-seqs")], "--pp", "2", "--no-speculation"]
    first = subprocess.Popen([*command, "--synthetic-routing", shares], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        said = subprocess.run([*network.prefix, *command, "--node-rank", "1", "--synthetic-routing", "zipf"], capture_output=True,
                              text=True, timeout=60)
        assert said.returncode != 0 and "--synthetic-routing differs: " in said.stderr, said.stderr
        assert "a file with hash" in said.stderr
    finally:
        first.kill()
        first.wait()


def test_a_host_that_differs_is_refused_by_name(network, secret, tmp_path):
    flags = [*shared_flags(network, secret), "-pp", "2"]
    other_secret = tmp_path / "secret"
    other_secret.write_text("another secret, long enough\n")
    wrong = {
        "has another secret": dict(flags=[other_secret if word == str(secret) else word for word in flags]),
        "--max-num-seqs differs: ": dict(flags=["8" if word == "16" else word for word in flags]),
        "--speculative-config differs: host 1 has none (--no-speculation), this host the default\n": dict(flags=[*flags, "--no-speculation"]),
        "build differs: ": dict(flags=flags, binary=another_build(tmp_path)),
    }
    first = subprocess.Popen([BINARY, "serve", MODEL, "--port", "0", *flags], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for message, how in wrong.items():
            other = OtherHost(network, *how.pop("flags"), **how)
            assert other.process.wait(30) != 0
            assert message in other.output(), other.output()
        other = OtherHost(network, *flags)
        said = ""
        while "serves" not in said:
            line = first.stdout.readline()
            assert line, said
            said += line
        for message in wrong:
            assert message in said, said
        other.process.kill()
        other.process.wait()
    finally:
        first.kill()
        first.wait()
