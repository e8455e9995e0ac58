"""DeepSeek checkpoints: published tensor names, FP8 blocks, and models of transformers."""

import copy
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

FP8_SUFFIXES = (
    "q_a_proj.weight",
    "q_b_proj.weight",
    "q_proj.weight",
    "kv_a_proj_with_mqa.weight",
    "kv_b_proj.weight",
    "o_proj.weight",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
)


def quantize_block(w, block=128, power_of_two=False):
    """FP8 E4M3 weight and FP32 scales [ceil(o/128), ceil(i/128)], as DeepSeek-V3 stores them."""
    o, i = w.shape
    po, pi = -o % block, -i % block
    x = F.pad(w.float(), (0, pi, 0, po)).view((o + po) // block, block, (i + pi) // block, block)
    scale = x.abs().amax((1, 3)).clamp(min=1e-12) / 448.0
    if power_of_two:  # scale_fmt "ue8m0": rounded up, so that nothing saturates
        scale = torch.exp2(scale.log2().ceil())
    q = (x / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return q.view(o + po, i + pi)[:o, :i].contiguous(), scale


def dequantize_block(q, scale, block=128):
    full = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)
    return q.float() * full[: q.shape[0], : q.shape[1]]


def quantize_tensors(tensors, power_of_two=False):
    """What an FP8 checkpoint stores: blocks and their `_scale_inv`; other tensors as given."""
    out = {}
    for name, t in tensors.items():
        if name.endswith(FP8_SUFFIXES):
            out[name], out[name + "_scale_inv"] = quantize_block(t, power_of_two=power_of_two)
        else:
            out[name] = t
    return out


def dequantize_tensors(tensors):
    """Float32 values of the tensors of a checkpoint."""
    out = {}
    for name, t in tensors.items():
        scale = tensors.get(name + "_scale_inv")
        if not name.endswith("_scale_inv"):
            out[name] = t.float() if scale is None else dequantize_block(t, scale)
    return out


def read_checkpoint(folder):
    """config.json, and float32 values of all tensors, of a checkpoint folder."""
    tensors = {}
    for file in sorted(os.listdir(folder)):
        if file.startswith("model") and file.endswith(".safetensors"):
            tensors.update(load_file(f"{folder}/{file}"))
    with open(f"{folder}/config.json") as f:
        return json.load(f), dequantize_tensors(tensors)


def write_json(obj, path, indent):
    with open(path, "w") as f:
        f.write(json.dumps(obj, indent=indent, ensure_ascii=False) + "\n")


def save_shards(tensors, folder, shard_bytes):
    """Sharded safetensors, names in order, with model.safetensors.index.json."""
    os.makedirs(folder, exist_ok=True)
    shards, size, total = [{}], 0, 0
    for name in sorted(tensors):
        t = tensors[name].cpu().contiguous()
        if size + t.nbytes > shard_bytes and shards[-1]:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += t.nbytes
        total += t.nbytes
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, f"{folder}/{file}", metadata={"format": "pt"})
        index["weight_map"].update({name: file for name in shard})
    write_json(index, f"{folder}/model.safetensors.index.json", indent=2)


def split_experts(tensors):
    """transformers stacks experts; published checkpoints store them one by one."""
    out = {}
    for name, t in tensors.items():
        if name.endswith("mlp.experts.gate_up_proj"):
            base = name[: -len("gate_up_proj")]
            for e in range(t.shape[0]):
                gate, up = t[e].chunk(2, 0)
                out[f"{base}{e}.gate_proj.weight"] = gate.contiguous()
                out[f"{base}{e}.up_proj.weight"] = up.contiguous()
        elif name.endswith("mlp.experts.down_proj"):
            base = name[: -len("down_proj")]
            for e in range(t.shape[0]):
                out[f"{base}{e}.down_proj.weight"] = t[e].contiguous()
        else:
            out[name] = t.contiguous()
    return out


def stack_experts(tensors):
    """The inverse of split_experts."""
    out, experts = {}, {}
    for name, t in tensors.items():
        base, found, rest = name.partition(".mlp.experts.")
        if not found:
            out[name] = t
            continue
        expert, projection, _ = rest.split(".")
        experts.setdefault(base + ".mlp.experts.", {})[int(expert), projection] = t
    for base, parts in experts.items():
        count = 1 + max(e for e, _ in parts)
        pairs = [(parts[e, "gate_proj"], parts[e, "up_proj"]) for e in range(count)]
        out[base + "gate_up_proj"] = torch.stack([torch.cat(pair) for pair in pairs])
        out[base + "down_proj"] = torch.stack([parts[e, "down_proj"] for e in range(count)])
    return out


def new_transformers_model(config):
    """A float32 model of transformers for config.json's fields, with random weights."""
    import transformers as hf

    version = {"deepseek_v2": "DeepseekV2", "deepseek_v3": "DeepseekV3"}[config["model_type"]]
    skipped = ("architectures", "torch_dtype", "model_type", "quantization_config")
    fields = {
        k: copy.deepcopy(v)  # transformers writes into rope_scaling
        for k, v in config.items()
        if k not in skipped and (v is not None or k == "q_lora_rank")
    }
    model = getattr(hf, version + "ForCausalLM")(getattr(hf, version + "Config")(**fields))
    return model.float().eval()


def load_transformers_model(config, tensors):
    """That model with a checkpoint's float32 tensors. The MTP layer, if any, is left out."""
    model = new_transformers_model(config)
    mtp = f"model.layers.{config['num_hidden_layers']}."
    own = {k: v for k, v in tensors.items() if not k.startswith(mtp)}
    model.load_state_dict(stack_experts(own))
    return model
