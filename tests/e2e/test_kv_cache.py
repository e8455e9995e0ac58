"""The formats of the KV cache, through the API."""

import re

from conftest import serving


def test_fp8_cache_answers_as_the_reference_in_less_memory(reference):
    question, _, content = reference[0]
    with serving("--kv-cache-dtype", "fp8") as server:
        answer = server.client().chat.completions.create(
            model="tiny-r1", messages=[{"role": "user", "content": question}], temperature=0
        )
        assert answer.choices[0].message.content == content
        # 6 layers and one of MTP, of 512 codes, a scale and 64 numbers in BF16.
        page = 64 * 7 * (512 + 4 + 64 * 2)
        assert f"{(1 << 30) // page * 64} per GiB" in server.output()
