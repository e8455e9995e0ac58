"""Asks tiny-r1's questions through the OpenAI API and holds the answers against the reference's.

    accuracy.py --binary build/bin/fathom --model models/tiny-r1     # starts the server, and stops it
    accuracy.py --url http://127.0.0.1:8000                          # a running server
    accuracy.py ... --sample 10                                      # every tenth question
    accuracy.py ... --device cuda --plain                            # on a GPU; without the openai client
    accuracy.py ... --task to_json --response-format json_object     # one task, held to a form

Fails if a request fails, if the mean accuracy over the tasks is below 0.965, or if more than 1 % of
the questions are right where the reference is wrong or the other way round.
"""

import argparse
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tiny-r1"
MIN_MEAN = 0.965
MAX_CHANGED = 0.01
MAX_TOKENS = 512
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
REQUEST_TIMEOUT_S = 600


@dataclass
class Question:
    task: str
    question: str
    answer: str
    reference_correct: bool


@dataclass
class Reply:
    content: str = ""
    finish_reason: str = ""
    tokens: int = 0
    error: str = ""


def load_questions(folder, sample, task=None):
    asked = json.loads((folder / "questions.json").read_text())
    answers = json.loads((folder / "answers.json").read_text())
    if len(asked) != len(answers):
        sys.exit(f"{len(asked)} questions, but {len(answers)} answers, in {folder}")
    questions = [
        Question(q["task"], q["question"], q["answer"], a["correct"])
        for q, a in zip(asked, answers)
    ]
    if missing := {q.task for q in questions} - {q.task for q in questions[::sample]}:
        sys.exit(f"--sample {sample} leaves no question of {sorted(missing)}: take a smaller one")
    return [q for q in questions[::sample] if q.task == (task or q.task)]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def healthy(url):
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as r:
            return r.status == 200
    except (urllib.error.URLError, OSError):
        return False


@contextlib.contextmanager
def running_server(binary, model, device, flags):
    """The URL of a server that lives as long as the context; its log is shown when it fails."""
    port = free_port()
    command = [binary, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--device", device, *flags]
    with tempfile.TemporaryFile("w+") as log:

        def fail(what):
            log.seek(0)
            sys.exit(f"{' '.join(command)}: {what}; the end of its output:\n{log.read()[-4000:]}")

        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not healthy(f"http://127.0.0.1:{port}"):
                if process.poll() is not None:
                    fail(f"ended with status {process.returncode} before it was ready")
                if time.monotonic() > deadline:
                    fail(f"not ready after {START_TIMEOUT_S} s")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
            if process.poll() is not None:
                fail(f"ended with status {process.returncode} while it was asked")
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                fail(f"still there {STOP_TIMEOUT_S} s after SIGTERM")
            if process.returncode != 0:
                fail(f"ended with status {process.returncode} after SIGTERM")
        finally:
            process.kill()
            process.wait()


def parameters(model, question, form):
    return {
        "model": model,
        "messages": [{"role": "user", "content": question.question}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
    } | ({"response_format": {"type": form}} if form else {})


THINKING = {"chat_template_kwargs": {"thinking": True}}


class OpenAIClient:
    def __init__(self, url, form):
        import openai

        self.form = form
        self.error = openai.OpenAIError
        self.client = openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_TIMEOUT_S
        )
        self.model = self.client.models.list().data[0].id

    def ask(self, question):
        try:
            response = self.client.chat.completions.create(
                **parameters(self.model, question, self.form), extra_body=THINKING
            )
        except self.error as e:
            return Reply(error=f"{type(e).__name__}: {e}")
        choice = response.choices[0]
        return Reply(
            choice.message.content or "", choice.finish_reason, response.usage.completion_tokens
        )


class PlainClient:
    """For machines that have Python and nothing else."""

    def __init__(self, url, form):
        self.url, self.form = url, form
        with urllib.request.urlopen(f"{url}/v1/models", timeout=REQUEST_TIMEOUT_S) as r:
            self.model = json.load(r)["data"][0]["id"]

    def ask(self, question):
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps({**parameters(self.model, question, self.form), **THINKING}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as r:
                response = json.load(r)
        except (urllib.error.URLError, OSError) as e:
            return Reply(error=f"{type(e).__name__}: {e}")
        choice = response["choices"][0]
        return Reply(
            choice["message"]["content"] or "",
            choice["finish_reason"],
            response["usage"]["completion_tokens"],
        )


def ask_all(client, questions, concurrency):
    model = client.model
    began = time.monotonic()
    replies = []
    with ThreadPoolExecutor(concurrency) as pool:
        for reply in pool.map(client.ask, questions):
            replies.append(reply)
            if len(replies) % 100 == 0:
                print(f"{len(replies)} of {len(questions)} answered", file=sys.stderr, flush=True)
    seconds = time.monotonic() - began
    tokens = sum(r.tokens for r in replies)
    print(
        f"{len(questions)} questions to {model}, {concurrency} in flight: {tokens} tokens in "
        f"{seconds:.1f} s, {tokens / seconds:.0f} tokens/s"
    )
    return replies


def report(questions, replies, max_changed):
    """Prints the comparison; returns what is wrong, as sentences."""
    right, reference = defaultdict(list), defaultdict(list)
    changed = []
    for q, r in zip(questions, replies):
        correct = not r.error and r.content == q.answer
        right[q.task].append(correct)
        reference[q.task].append(q.reference_correct)
        if correct != q.reference_correct:
            changed.append((q, r))

    def mean(outcomes):
        return sum(outcomes) / len(outcomes)

    print(f"{'task':14}{'questions':>10}{'accuracy':>10}{'reference':>11}")
    for task, outcomes in right.items():
        print(f"{task:14}{len(outcomes):10}{mean(outcomes):10.3f}{mean(reference[task]):11.3f}")
    total = mean([mean(outcomes) for outcomes in right.values()])
    of_reference = mean([mean(outcomes) for outcomes in reference.values()])
    print(f"{'mean':14}{len(questions):10}{total:10.4f}{of_reference:11.4f}")
    share = len(changed) / len(questions)
    print(f"changed correctness: {len(changed)} of {len(questions)} questions, {share:.2%}")
    for q, r in changed[:5]:
        was = "right" if q.reference_correct else "wrong"
        print(f"  {q.task}: reference {was}; {q.question[:80]!r}: {r.error or r.content[:80]!r}")
    print("finish reasons:", dict(Counter(r.finish_reason for r in replies if not r.error)))

    problems = []
    if errors := [r.error for r in replies if r.error]:
        problems.append(f"{len(errors)} requests failed, the first with {errors[0]}")
    if total < MIN_MEAN:
        problems.append(f"the mean accuracy {total:.4f} is below {MIN_MEAN}")
    if share > max_changed:
        problems.append(f"{share:.2%} of the questions changed, more than {max_changed:.0%}")
    return problems


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_args():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = p.add_mutually_exclusive_group(required=True)
    where.add_argument("--url", help="of a running server, such as http://127.0.0.1:8000")
    where.add_argument("--binary", help="the fathom to start, on a free port")
    p.add_argument("--device", default="cpu", help="of --binary: cpu or cuda")
    p.add_argument("--max-changed", type=float, default=MAX_CHANGED,
                   help="share of questions that may change correctness (FP8 activations change some)")
    p.add_argument("--plain", action="store_true", help="without the openai client")
    p.add_argument("--model", help="the checkpoint for --binary")
    p.add_argument("--serve-flags", type=str.split, default=[], help="for --binary: such as '--quantization int8'")
    p.add_argument("--task", help="ask the questions of this task only")
    p.add_argument("--response-format", choices=["json_object"], help="hold the answers to a form")
    p.add_argument("--concurrency", type=positive, default=32, help="requests in flight (32)")
    p.add_argument("--sample", type=positive, default=1, help="ask every Nth question only")
    p.add_argument("--questions", type=Path, default=GOLDEN, help="folder of questions.json")
    args = p.parse_args()
    if (args.binary is None) != (args.model is None):
        p.error("--binary and --model go together")
    return args


def main():
    args = parse_args()
    questions = load_questions(args.questions, args.sample, args.task)
    if args.sample > 1:
        print(f"a sample: every {args.sample}th question, limits as for all of them")
    with contextlib.ExitStack() as stack:
        url = args.url or stack.enter_context(
            running_server(args.binary, args.model, args.device, args.serve_flags)
        )
        url = url.rstrip("/")
        if not healthy(url):
            sys.exit(f"no server answers at {url}/health: start one, or name it with --url")
        client = (PlainClient if args.plain else OpenAIClient)(url, args.response_format)
        replies = ask_all(client, questions, args.concurrency)
    problems = report(questions, replies, args.max_changed)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
