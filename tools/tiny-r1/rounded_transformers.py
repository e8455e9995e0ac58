"""What rounding alone costs: transformers in bfloat16 against transformers in float32.

    python rounded_transformers.py [--out ../../tests/golden/rounded_transformers.json] [NAME...]

For each checkpoint of tests/golden, and tiny-r1, the relative error of the logits, ||a - b|| / ||b||, as `fathom verify`
counts it: the largest and the median of the prompts, the median of the positions, and the share of positions beyond the
limit. "bfloat16" is the model in that type; where weights are FP8, "fp8_activations" is the model in float32 with
activations quantised to E4M3 per token and 128 channels before every product with such weights, and
"bfloat16_fp8_activations" has both. "experts_changed" is the share of tokens of which a router chose other experts than
in float32, in any layer. Runs on a CPU.
"""

import argparse
import datetime
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

import checkpoint as ckpt

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
LIMIT = 2e-2  # of BF16
exact_linear = F.linear


def quantize_runs(x, power_of_two):
    """x as E4M3 holds it with a scale per run of 128 channels."""
    width = x.shape[-1]
    runs = F.pad(x.float(), (0, -width % 128)).unflatten(-1, (-1, 128))
    scale = runs.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    if power_of_two:
        scale = torch.exp2(scale.log2().ceil())
    codes = (runs / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
    return (codes.float() * scale).flatten(-2)[..., :width].to(x.dtype)


class QuantizedActivations:
    """Products with all weights but those of routers and lm_head meet quantised activations."""

    def __init__(self, config):
        quantization = config["quantization_config"]
        self.power_of_two = quantization.get("scale_fmt") == "ue8m0"
        self.exempt = {config["n_routed_experts"], config["vocab_size"]}

    def __enter__(self):
        def linear(x, weight, bias=None):
            if weight.shape[0] not in self.exempt:
                x = quantize_runs(x, self.power_of_two)
            return exact_linear(x, weight, bias)

        F.linear = linear

    def __exit__(self, *_):
        F.linear = exact_linear


def watch_routers(model):
    """A list that every router call appends its chosen experts to, sorted: [tokens, topk]."""
    chosen = []

    def look(_, __, out):
        ids = next(t for t in reversed(out) if not t.is_floating_point())
        chosen.append(ids.view(-1, ids.shape[-1]).sort(-1)[0])

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(look)
    return chosen


@torch.no_grad()
def run(model, chosen, reference):
    """Relative errors of prompts and of positions, and chosen experts per prompt."""
    errors, positions, routes = [], [], []
    for i in range(sum(key.endswith(".prompt") for key in reference)):
        chosen.clear()
        logits = model(reference[f"{i}.prompt"].long()[None]).logits[0].float()
        if f"{i}.last_logits" in reference:
            expected = reference[f"{i}.last_logits"]
            logits = logits[-len(expected):]
        else:
            expected = reference[f"{i}.logits"]
            if f"{i}.positions" in reference:
                logits = logits[reference[f"{i}.positions"].long()]
        errors.append(((logits - expected).norm() / expected.norm()).item())
        positions += ((logits - expected).norm(dim=-1) / expected.norm(dim=-1)).tolist()
        routes.append(torch.cat(list(chosen), -1) if chosen else torch.zeros(1, 0))
    return errors, positions, routes


def summary(errors, positions, routes, exact_routes):
    same = torch.cat([(a == b).all(-1) for a, b in zip(routes, exact_routes)])
    number = lambda x: float(f"{x:.3e}")
    return {"max_relative_error": number(max(errors)),
            "median_relative_error": number(statistics.median_high(errors)),
            "median_position_error": number(statistics.median_high(positions)),
            "positions_beyond_limit": number(sum(e > LIMIT for e in positions) / len(positions)),
            "experts_changed": number(1 - same.float().mean().item())}


def measure(folder, reference_file):
    config, tensors = ckpt.read_checkpoint(folder)
    reference = load_file(reference_file)
    model = ckpt.load_transformers_model(config, tensors)
    chosen = watch_routers(model)
    errors, positions, exact_routes = run(model, chosen, reference)
    assert max(errors) < 1e-4, f"{folder}: float32 is off by {max(errors)}"
    out = {"float32": summary(errors, positions, exact_routes, exact_routes)}
    fp8 = "quantization_config" in config
    if fp8:
        with QuantizedActivations(config):
            out["fp8_activations"] = summary(*run(model, chosen, reference), exact_routes)
    model.bfloat16()
    # transformers keeps these in float32 when it loads a checkpoint in bfloat16.
    for name, buffer in model.named_buffers():
        if "e_score_correction_bias" in name:
            buffer.data = tensors[name].float()
    out["bfloat16"] = summary(*run(model, chosen, reference), exact_routes)
    if fp8:
        with QuantizedActivations(config):
            out["bfloat16_fp8_activations"] = summary(*run(model, chosen, reference), exact_routes)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=GOLDEN / "rounded_transformers.json")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(2)
    checkpoints = {"tiny-r1": ROOT / "models" / "tiny-r1",
                   **{p.parent.name: p.parent for p in sorted(GOLDEN.glob("*/config.json"))}}
    results = {}
    for name, folder in checkpoints.items():
        if options.names and name not in options.names:
            continue
        results[name] = measure(folder, GOLDEN / name / "reference.safetensors")
        print(name, json.dumps(results[name]), flush=True)
    record = {"command": "python tools/tiny-r1/rounded_transformers.py",
              "date": datetime.date.today().isoformat(), "limit": LIMIT, "torch": torch.__version__.split("+")[0],
              "transformers": transformers.__version__, "checkpoints": results}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
