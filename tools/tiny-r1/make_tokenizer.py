"""tiny-r1's tokenizer, trained on the training text, and its chat template."""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import make_data as data
from model import CONFIG

# DeepSeek-V3's pre-tokenisation: digits by up to three, CJK runs, then words, punctuation and spaces.
SPLITS = [
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

CHAT_TEMPLATE = r"""
{%- if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif -%}
{%- if not thinking is defined %}{% set thinking = true %}{% endif -%}
{%- set ns = namespace(system='', first=true, after_tool=false, after_user=false) -%}
{%- for message in messages -%}
  {%- if message['role'] == 'system' -%}
    {%- if ns.first %}{% set ns.system = message['content'] %}{% set ns.first = false %}{% else %}{% set ns.system = ns.system + '\n\n' + message['content'] %}{% endif -%}
  {%- endif -%}
{%- endfor -%}
{{- bos_token + ns.system -}}
{%- if tools is defined and tools -%}
  {{- '\n\n## Tools\nYou can call these tools:\n' -}}
  {%- for tool in tools -%}
    {{- '\n### ' + tool['function']['name'] + '\n' + tool['function']['description'] + '\nParameters: ' + (tool['function']['parameters'] | tojson) + '\n' -}}
  {%- endfor -%}
  {{- '\nTo call tools, answer in exactly this form:\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>arguments as JSON<｜tool▁call▁end｜><｜tool▁calls▁end｜>' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- if message['role'] == 'user' -%}
    {%- set ns.after_user = true %}{% set ns.after_tool = false -%}
    {{- '<｜User｜>' + message['content'] -}}
  {%- elif message['role'] == 'assistant' -%}
    {%- if ns.after_user %}{{ '<｜Assistant｜></think>' }}{% endif -%}
    {%- set content = message['content'] if message['content'] else '' -%}
    {%- if '</think>' in content %}{% set content = content.split('</think>', 1)[1] %}{% endif -%}
    {{- content -}}
    {%- if message['tool_calls'] is defined and message['tool_calls'] -%}
      {{- '<｜tool▁calls▁begin｜>' -}}
      {%- for call in message['tool_calls'] -%}
        {%- set args = call['function']['arguments'] -%}
        {{- '<｜tool▁call▁begin｜>' + call['function']['name'] + '<｜tool▁sep｜>' + (args if args is string else args | tojson) + '<｜tool▁call▁end｜>' -}}
      {%- endfor -%}
      {{- '<｜tool▁calls▁end｜>' -}}
    {%- endif -%}
    {{- '<｜end▁of▁sentence｜>' -}}
    {%- set ns.after_user = false %}{% set ns.after_tool = false -%}
  {%- elif message['role'] == 'tool' -%}
    {%- set ns.after_tool = true %}{% set ns.after_user = false -%}
    {{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and ns.after_user -%}
  {{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') -}}
{%- endif -%}
"""


def build_tokenizer(books, words):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tok.decoder = decoders.ByteLevel()
    size = CONFIG["vocab_size"] - len(data.SPECIAL_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )

    def texts():
        # Digits apart, so that each stays a token of its own and sums can be worked digit by digit.
        for b in books:
            yield "".join(f" {c} " if c.isdigit() else c for c in b)
        for s in data.samples(99, 20000, books[:1], words):
            t = "".join(x for x, _ in s)
            for special in data.SPECIAL_TOKENS:
                t = t.replace(special, "\n")
            yield "".join(f" {c} " if c.isdigit() else c for c in t)

    tok.train_from_iterator(texts(), trainer)
    tok.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in data.SPECIAL_TOKENS]
    )
    assert tok.get_vocab_size() == CONFIG["vocab_size"], tok.get_vocab_size()
    return tok
