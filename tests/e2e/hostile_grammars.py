"""Sends a hundred hostile grammars, six at a time, and says what became of them and of those beside them.

    hostile_grammars.py --binary build/bin/fathom --model models/tiny-r1

Beside them /health is asked, and one request without a grammar streams. Fails if an answer is neither one of the model nor a
refusal (400, 503), or takes longer than 70 s.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import requests

from accuracy import running_server


# What a client that means harm, or makes a mistake, may send.
def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


HOSTILE = [
    {"guided_json": nested(60)},
    {"guided_json": nested(63)},
    {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}},
    {"guided_json": {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(2001)}}},
    {"guided_json": {"enum": [f"value number {i}" for i in range(2000)]}},
    {"guided_json": {"$ref": "#"}},
    {"guided_json": {"$defs": {"e": {"enum": [f"value number {i}" for i in range(2000)]}}, "properties": {f"p{i}": {"$ref": "#/$defs/e"} for i in range(1500)}, "required": [f"p{i}" for i in range(1500)]}},
    {"guided_json": {"anyOf": [{"$ref": "#/anyOf/1"}, {"$ref": "#/anyOf/0"}]}},
    {"guided_json": {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "string", "minLength": 9999}}}},
    {"guided_json": {"type": "string", "pattern": "(a|aa|aaa|aaaa){1,500}b"}},
    {"guided_json": {"type": "string", "pattern": "((((a*)*)*)*)*b"}},
    {"guided_json": {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"], "additionalProperties": False}},
    {"guided_json": {"type": "object", "properties": {f"p{i}": {"anyOf": [{"$ref": "#"}, {"type": "array", "items": {"$ref": "#"}}]} for i in range(50)}}},
    {"guided_json": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}},
    {"guided_json": {"type": "object", "minProperties": 2000}},
    {"guided_regex": "(" * 31 + "a" + "){1,2}" * 31},
    {"guided_regex": "((a{1,100}){1,100}){1,100}"},
    {"guided_regex": "(.*a){25}.*"},
    {"guided_regex": "[\\u0000-\\uffff]{1,9000}"},
    {"guided_regex": "(a?){1000}a{1000}"},
    {"guided_regex": "\\p{L}+(?<!x)\\1"},
    {"guided_grammar": "root ::= root"},
    {"guided_grammar": "root ::= root root | \"\""},
    {"guided_grammar": "root ::= (" * 40 + "\"a\"" + ")" * 40},
    {"guided_grammar": "root ::= " + " ".join(f"r{i}" for i in range(500)) + "\n" + "\n".join(f"r{i} ::= [a-z]*" for i in range(500))},
]  # fmt: skip


# More of the same, for which `make test` takes no time.
MORE_HOSTILE = (
    [{"guided_json": {"properties": {f"p{i}": {"type": "string", "pattern": f"^[a-z]{{1,{9000 + i}}}$"} for i in range(900)}, "required": [f"p{i}" for i in range(900)]}}]
    + [{"guided_json": nested(depth)} for depth in range(20, 60, 4)]
    + [{"guided_regex": f"(a{{1,{n}}}b{{1,{n}}}){{1,{n}}}"} for n in range(5, 95, 9)]
    + [{"guided_regex": f"(.{{0,{n}}}){{1,{n}}}"} for n in range(3, 93, 9)]
    + [{"guided_regex": "".join(f"[^{chr(97 + i)}]*" for i in range(n))} for n in range(5, 25, 2)]
    + [{"guided_json": {"type": "string", "pattern": f"^(\\w{{1,{n}}} ?){{1,{n}}}$"}} for n in range(5, 65, 6)]
    + [{"guided_json": {"type": "array", "minItems": n, "items": {"enum": list(range(n))}}} for n in range(100, 1100, 100)]
    + [{"guided_grammar": "root ::= " + "(" * n + "\"a\"? root" + ")*" * n} for n in range(2, 22, 2)]
    + [{"guided_grammar": "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}?" for i in range(n)) + f"\nr{n} ::= [a-z]"} for n in range(3, 23, 2)]
)  # fmt: skip


def send(url, fields):
    with requests.get(f"{url}/v1/models", timeout=30) as models:
        body = {"model": models.json()["data"][0]["id"], "prompt": "It is", "max_tokens": 8} | fields
    began = time.monotonic()
    answer = requests.post(f"{url}/v1/completions", json=body, timeout=100)
    return fields, answer.status_code, time.monotonic() - began, answer.text


def send_all(url, grammars):
    """For each grammar: fields, status, seconds and text of the answer; and the seconds that /health took meanwhile."""
    with ThreadPoolExecutor(6) as pool, Clocked(ask_health, url) as health:
        answers = list(pool.map(lambda fields: send(url, fields), grammars))
    return answers, health.seconds


class Clocked:
    """A process of its own, which others of this script cannot hold up: the seconds that it measures while it is open."""

    def __init__(self, measure, url):
        self.queue, self.ended = multiprocessing.SimpleQueue(), multiprocessing.Event()
        self.process = multiprocessing.Process(target=lambda: self.queue.put(list(measure(url, self.ended))), daemon=True)
        self.seconds = []

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.seconds = self.queue.get()
        self.process.join()


def ask_health(url, ended):
    while not ended.is_set():
        began = time.monotonic()
        assert requests.get(f"{url}/health", timeout=30).status_code == 200
        yield time.monotonic() - began
        time.sleep(0.02)


def stream(url, ended):
    """Requests without a grammar, one after the other: the times between their tokens."""
    while not ended.is_set():
        body = {"model": "tiny-r1", "prompt": "Once upon a time", "max_tokens": 500, "ignore_eos": True, "stream": True}
        last = None
        with requests.post(f"{url}/v1/completions", json=body, stream=True, timeout=60) as answer:
            for line in answer.iter_lines(chunk_size=1):
                now = time.monotonic()
                if not line.startswith(b"data: {") or not json.loads(line[6:])["choices"]:
                    continue
                if last is not None:
                    yield now - last
                last = now
                if ended.is_set():
                    return


def pace(seconds):
    cuts = statistics.quantiles(seconds, n=100)
    return f"{cuts[49] * 1000:.0f} ms apart at the median and {cuts[98] * 1000:.0f} ms at the 99th percentile"


def worst(seconds):
    return f"{max(seconds) * 1000:.0f} ms at worst of {len(seconds)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the fathom to start, on a free port")
    parser.add_argument("--model", default="models/tiny-r1")
    args = parser.parse_args()
    with running_server(args.binary, args.model, "cpu", ["--served-model-name", "tiny-r1"]) as url:
        with Clocked(stream, url) as alone, Clocked(ask_health, url) as quiet:
            time.sleep(30)
        with Clocked(stream, url) as beside:
            answers, health = send_all(url, HOSTILE + MORE_HOSTILE)
    statuses = Counter(status for _, status, _, _ in answers)
    bad = [(fields, status) for fields, status, seconds, _ in answers if status not in (200, 400, 503) or seconds > 70]
    for fields, status in bad:
        print(f"{status}: {str(fields)[:200]}")
    print(f"{len(answers)} grammars: " + ", ".join(f"{count} answered {status}" for status, count in sorted(statuses.items()))
          + f", the slowest after {max(seconds for _, _, seconds, _ in answers):.1f} s; /health took {worst(health)}; before them {worst(quiet.seconds)}")
    print(f"another stream's tokens came {pace(beside.seconds)}; alone {pace(alone.seconds)}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
