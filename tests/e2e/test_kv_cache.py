"""The KV cache, through the API: its formats, and when its memory is taken."""

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


def plans_of(server):
    """Before the model is loaded, and with what it took."""
    plans = re.findall(r"memory(?: plan)?: [^\n]*", server.output())
    assert len(plans) == 2
    return plans


def test_memory_is_taken_at_the_start_and_planned_with_that_of_requests():
    cache = 256 << 20
    with serving("--kv-cache-memory-bytes", str(cache), "--max-request-memory-bytes", "900MiB",
                 "--max-grammar-memory-bytes", "400MiB") as server:
        with open(f"/proc/{server.process.pid}/status") as status:
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", status.read())[1]) << 10
        assert cache < resident < cache + (128 << 20)  # what requests may take is not taken yet
        plans = plans_of(server)  # of grammars with two compilers, each of 16 MiB and 1 KiB a token, and a half
        assert all("requests' text 0.88 GiB" in plan and "grammars 0.45 GiB" in plan for plan in plans)


def test_ranks_of_one_machine_share_what_the_server_takes():
    with serving("--tp", "2", "--max-request-memory-bytes", "900MiB", "--max-grammar-memory-bytes", "400MiB") as server:
        assert all("requests' text 0.44 GiB" in plan and "grammars 0.22 GiB" in plan for plan in plans_of(server))
