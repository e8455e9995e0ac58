"""All sorts of clients at once (soak.py), for as long as FATHOM_HOSTILE_S says: 5 s unless given.

The server is the same process at the end, said how it was within a second all the time, and has
given back memory and descriptors."""

import os
import time

from conftest import eventually, serving
from soak import FLAGS, Soak
from test_memory import MIB, resident

SECONDS = float(os.environ.get("FATHOM_HOSTILE_S", "5"))
SEED = int(os.environ.get("FATHOM_HOSTILE_SEED", time.time_ns() % 1_000_000))


def test_all_sorts_of_clients_at_once(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("a sk-a\n")
    with serving("--api-key-file", keys, *FLAGS) as server:
        soak = Soak(server, keys, SECONDS, SEED)
        soak.run()
        assert max(soak.clients.health_s) < 1
        assert eventually(lambda: resident(server)[0] - soak.before < 64 * MIB), f"seed {SEED}"
        soak.check()
