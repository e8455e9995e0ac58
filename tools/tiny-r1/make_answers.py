"""The reference's greedy answers to questions.json: transformers, float32, dequantised weights.

    python make_answers.py CHECKPOINT QUESTIONS OUT [--sample N] [--verify N]

Each question is one user message in thinking mode; at most 512 new tokens. OUT is a list in the
order of the questions: `answer_text` (what follows </think>; empty if it never came), `correct`
(equal to the expected answer), `tokens` (generated, EOS included).
"""

import argparse
import json
import os
from collections import defaultdict

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache

import checkpoint as ckpt
import make_data as data
from model import DEVICE

MAX_NEW_TOKENS = 512
MAX_BATCH = 64


@torch.no_grad()
def greedy(model, prompts, eos):
    """Continuations, up to and with EOS, of prompts of one length (nothing is padded)."""
    x = torch.tensor(prompts, device=model.device)
    cache = DynamicCache(config=model.config)
    out, places = [[] for _ in prompts], list(range(len(prompts)))
    for _ in range(MAX_NEW_TOKENS):
        logits = model(x, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        x = logits.argmax(-1)
        for place, token in zip(places, x[:, 0].tolist()):
            out[place].append(token)
        going = (x[:, 0] != eos).nonzero()[:, 0]
        if len(going) < len(places):
            if len(going) == 0:
                break
            cache.batch_select_indices(going)
            x, places = x[going], [places[i] for i in going.tolist()]
    return out


def greedy_alone(model, ids, eos, pad):
    """The same for one prompt, by transformers' own loop."""
    x = torch.tensor([ids], device=model.device)
    out = model.generate(
        x,
        attention_mask=torch.ones_like(x),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return out[0, len(ids) :].tolist()


def answer_all(model, prompts, eos):
    by_length = defaultdict(list)
    for i, ids in enumerate(prompts):
        by_length[len(ids)].append(i)
    out, done = [None] * len(prompts), 0
    for length, indices in sorted(by_length.items()):
        for start in range(0, len(indices), MAX_BATCH):
            batch = indices[start : start + MAX_BATCH]
            for i, ids in zip(batch, greedy(model, [prompts[i] for i in batch], eos)):
                out[i] = ids
            done += len(batch)
            print(f"{done} of {len(prompts)} answered, prompts of {length} tokens", flush=True)
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("checkpoint")
    p.add_argument("questions")
    p.add_argument("out")
    p.add_argument("--sample", type=int, default=1, help="ask every Nth question only")
    p.add_argument("--verify", type=int, default=0, help="ask every Nth also alone, and compare")
    args = p.parse_args()
    torch.set_float32_matmul_precision("highest")
    model = ckpt.load_transformers_model(*ckpt.read_checkpoint(args.checkpoint)).to(DEVICE)
    tok = Tokenizer.from_file(os.path.join(args.checkpoint, "tokenizer.json"))
    eos, pad = tok.token_to_id(data.EOS), tok.token_to_id(data.PAD)
    with open(args.questions) as f:
        questions = json.load(f)[:: args.sample]
    prompts = [
        tok.encode(data.prompt(q["question"]), add_special_tokens=False).ids for q in questions
    ]
    generated = answer_all(model, prompts, eos)
    for i in range(0, len(prompts), args.verify) if args.verify else ():
        alone = greedy_alone(model, prompts[i], eos, pad)
        assert alone == generated[i], f"question {i} is answered otherwise alone"
    entries, scores = [], defaultdict(list)
    for q, ids in zip(questions, generated):
        _, thought, text = tok.decode(ids, skip_special_tokens=False).rpartition(data.END_THINK)
        text = text.removesuffix(data.EOS) if thought else ""
        entries.append({"answer_text": text, "correct": text == q["answer"], "tokens": len(ids)})
        scores[q["task"]].append(text == q["answer"])
    with open(args.out, "w") as f:
        lines = (json.dumps(entry, ensure_ascii=False) for entry in entries)
        f.write("[\n" + ",\n".join(lines) + "\n]\n")
    for task, good in scores.items():
        print(f"{task}: {sum(good) / len(good):.3f}")
    print(f"mean {sum(sum(g) / len(g) for g in scores.values()) / len(scores):.4f}")


if __name__ == "__main__":
    main()
