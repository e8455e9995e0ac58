"""What a trained tiny-r1 answers, and what transformers makes of its checkpoint."""

import random

import torch
from safetensors.torch import save_file

import checkpoint as ckpt
import make_data as data
from model import CONFIG, DEVICE
from tasks import Tasks


@torch.no_grad()
def generate(model, prompts, limit, eos):
    """Greedy continuations of equal-length-padded prompts, without a cache; returns token lists."""
    out = [list(p) for p in prompts]
    alive = list(range(len(out)))
    for _ in range(limit):
        longest = max(len(out[i]) for i in alive)
        size = (longest + 63) // 64 * 64
        batch = torch.zeros(len(alive), size, dtype=torch.long)
        for r, i in enumerate(alive):
            batch[r, : len(out[i])] = torch.tensor(out[i])
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            hidden, _, _ = model(batch.to(DEVICE))
            last = hidden[torch.arange(len(alive)), torch.tensor([len(out[i]) - 1 for i in alive])]
            nxt = model.lm_head(last).argmax(-1).tolist()
        for i, n in zip(alive, nxt):
            out[i].append(n)
        alive = [i for i, n in zip(alive, nxt) if n != eos]
        if not alive:
            break
    return [o[len(p) :] for o, p in zip(out, prompts)]


def evaluate(model, tok, words, per_task):
    """Greedy accuracy by task on unseen questions, in the thinking mode."""
    rng, eos, scores, questions = random.Random(424242), tok.token_to_id(data.EOS), {}, []
    tasks = Tasks(rng, words)
    for kind in tasks.WEIGHTS:
        if kind == "small_talk":
            continue
        items = [getattr(tasks, kind)() for _ in range(per_task)]
        prompts = [tok.encode(data.prompt(q), add_special_tokens=False).ids for q, _, _ in items]
        answers = [
            tok.decode(g, skip_special_tokens=False) for g in generate(model, prompts, 320, eos)
        ]
        good = [
            a.split(data.END_THINK)[-1].removesuffix(data.EOS) == want
            for a, (_, _, want) in zip(answers, items)
        ]
        scores[kind] = sum(good) / len(good)
        questions += [{"task": kind, "question": q, "answer": want} for q, _, want in items]
        wrong = [(q, a) for (q, _, _), a, g in zip(items, answers, good) if not g][:1]
        print(f"{kind}: {scores[kind]:.3f}", wrong, flush=True)
    return scores, questions


def reference(tensors, tok, words, path):
    """Logits and greedy tokens of transformers, in float32 over `tensors`; saved at path.*"""
    torch.set_float32_matmul_precision("highest")
    hf = ckpt.load_transformers_model(CONFIG, tensors).to(DEVICE)
    tasks = Tasks(random.Random(31337), words)
    kinds = ("add", "mul", "story", "sort", "recall", "to_json", "count_letter", "calendar")
    out, texts = {}, []
    for i, q in enumerate([getattr(tasks, k)()[0] for k in kinds]):
        ids = tok.encode(data.prompt(q), add_special_tokens=False).ids
        x = torch.tensor([ids], device=DEVICE)
        with torch.no_grad():
            logits = hf(x).logits[0].float().cpu()
            greedy = hf.generate(
                x,
                max_new_tokens=160,
                do_sample=False,
                pad_token_id=0,
                eos_token_id=tok.token_to_id(data.EOS),
            )[0][len(ids) :].cpu()
        out[f"{i}.prompt"] = torch.tensor(ids, dtype=torch.int32)
        out[f"{i}.last_logits"] = logits[-4:].contiguous()
        top = torch.log_softmax(logits, -1).topk(8, -1)
        out[f"{i}.top_logprobs"], out[f"{i}.top_ids"] = (
            top[0].contiguous(),
            top[1].int().contiguous(),
        )
        out[f"{i}.greedy"] = greedy.int().contiguous()
        texts.append(
            {"question": q, "greedy": tok.decode(greedy.tolist(), skip_special_tokens=False)}
        )
    save_file(out, path + ".safetensors")
    ckpt.write_json(texts, path + ".json", indent=1)
    return out


def parity(model, ref):
    """The largest relative difference of our last logits from the reference's, over its prompts."""
    torch.set_float32_matmul_precision("highest")
    worst = 0.0
    with torch.no_grad():
        for i in range(8):
            x, theirs = ref[f"{i}.prompt"].long()[None].to(DEVICE), ref[f"{i}.last_logits"]
            mine = model.lm_head(model(x)[0])[0, -4:].float().cpu()
            worst = max(worst, ((mine - theirs).norm() / theirs.norm()).item())
    return worst
