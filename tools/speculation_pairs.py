#!/usr/bin/env python3
"""What speculation brings on this machine's CPU over HTTP: servers of models/tiny-r1 without and with it, in turns.

    speculation_pairs.py BINARY --concurrency 1 --questions 60
    speculation_pairs.py BINARY --concurrency 32 --questions 500

Each run asks a server of its own the first of tests/golden/tiny-r1/questions.json, greedily, with `fathom bench serve`. A pair is
one run without and one with as many drafts as pay. A pair counts if other processes took at most 5 % of the cores meanwhile; those
that do not are repeated, up to as many again. Stores bench/results/speculation/tiny-r1-CONCURRENCY.json, of which
tools/make_performance.py puts figures into docs/speculation.md. Servers that answer with other numbers of tokens are an error.
"""
import argparse
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
QUESTIONS = ROOT / "tests" / "golden" / "tiny-r1" / "questions.json"
MOST_OF_OTHERS = 0.05
FLAGS = {"without": ["--no-speculation"], "with": []}


def busy_seconds():
    """Of all cores, since the machine started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """Of this process and those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(of.ru_utime + of.ru_stime for of in used)


def ask(binary, flags, questions, concurrency):
    """What `fathom bench serve` printed of a server with these flags."""
    with tempfile.NamedTemporaryFile("w+") as log:
        server = subprocess.Popen([binary, "serve", ROOT / "models" / "tiny-r1", "--port", "0", *flags], stdout=log, stderr=log)
        try:
            while not (url := re.search(r"serves \S+ on (\S+) \(ready", pathlib.Path(log.name).read_text())):
                if server.poll() is not None:
                    sys.exit(f"the server did not get ready:\n{pathlib.Path(log.name).read_text()}")
                time.sleep(0.05)
            load = ["--endpoint", "/v1/chat/completions", "--dataset-path", questions.name, "--no-ignore-eos",
                    "--num-prompts", str(len(pathlib.Path(questions.name).read_text().splitlines())),
                    "--max-concurrency", str(concurrency), "--num-warmups", str(max(10, concurrency)), "--json"]
            done = subprocess.run([binary, "bench", "serve", "--base-url", url[1], *load], capture_output=True, text=True)
        finally:
            server.terminate()
            server.wait()
    if done.returncode != 0:
        sys.exit(f"the load failed:\n{done.stderr}{done.stdout}")
    return json.loads(done.stdout)


def pair(binary, questions, concurrency, order):
    """A run of each, and the share of the cores that others took meanwhile."""
    busy, own, start = busy_seconds(), own_seconds(), time.monotonic()
    runs = {name: ask(binary, FLAGS[name], questions, concurrency) for name in order}
    of_others = (busy_seconds() - busy) - (own_seconds() - own)
    return runs, of_others / (time.monotonic() - start) / os.cpu_count()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--concurrency", type=int, required=True, help="requests at a time")
    parser.add_argument("--questions", type=int, required=True, help="how many are asked in a run")
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    pairs, left_out = [], 0
    with tempfile.NamedTemporaryFile("w+", suffix=".jsonl") as questions:
        for entry in json.loads(QUESTIONS.read_text())[:given.questions]:
            message = {"role": "user", "content": entry["question"]}
            questions.write(json.dumps({"messages": [message], "max_tokens": 200}) + "\n")
        questions.flush()
        while len(pairs) < given.pairs and left_out < given.pairs:
            order = sorted(FLAGS, reverse=(len(pairs) + left_out) % 2 == 0)  # each comes first in turn
            runs, others = pair(given.binary, questions, given.concurrency, order)
            tokens = {name: run["total_output_tokens"] for name, run in runs.items()}
            if len(set(tokens.values())) != 1:
                sys.exit(f"answers of other lengths: {tokens}")
            rates = {name: round(run["output_throughput"], 1) for name, run in runs.items()}
            print(rates, f"{rates['with'] / rates['without']:.3f} times, others {others:.1%}", flush=True)
            if others > MOST_OF_OTHERS:
                left_out += 1
                continue
            pairs.append(rates)
    if len(pairs) < given.pairs:
        sys.exit(f"others took the cores in {left_out} pairs: {len(pairs)} are left, nothing is stored")
    last = runs["with"]
    result = {
        "command": f"tools/speculation_pairs.py build/bin/fathom --concurrency {given.concurrency} --questions {given.questions}",
        **{key: last[key] for key in ("date", "version", "sources", "cpu")}, "cores": os.cpu_count(),
        "pairs": pairs, "left_out": left_out, "output_tokens": last["total_output_tokens"],
        **{key: last[key] for key in ("spec_decode_acceptance_rate", "spec_decode_acceptance_length")},
        **{name: statistics.median(rates[name] for rates in pairs) for name in FLAGS},
        "times": round(statistics.median(rates["with"] / rates["without"] for rates in pairs), 3)}
    path = ROOT / "bench" / "results" / "speculation" / f"tiny-r1-{given.concurrency}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['without']:.0f} tokens a second without, {result['with']:.0f} with: {result['times']} times")


if __name__ == "__main__":
    main()
