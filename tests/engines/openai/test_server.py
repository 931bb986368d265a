"""Estimates of lengths, and the memory of a server's processes."""

from types import SimpleNamespace

import pytest

from codeneedle.engines.openai import server
from codeneedle.engines.openai.server import Estimates, Server


@pytest.mark.parametrize(
    ("host", "device", "has_devices", "held"),
    [
        (5, 7, True, 12),
        (5, None, True, None),
        (None, 7, True, None),
        (5, None, False, 5),
    ],
)
def test_memory_of_which_a_part_is_unknown_is_unknown(
    monkeypatch, host, device, has_devices, held
):
    """
    A device that did not answer once would look like a small cache.
    """
    monkeypatch.setattr(server.machine, "nvidia_smi", lambda: "x" * has_devices or None)
    monkeypatch.setattr(server.machine, "group_rss_bytes", lambda _pid: host)
    monkeypatch.setattr(server.machine, "group_pids", lambda _pid: [1])
    monkeypatch.setattr(server.machine, "used_bytes", lambda *_pids: device)
    client = SimpleNamespace(prompt_tokens=len)
    made = Server(client=client, command=(), child=SimpleNamespace(pid=1))

    assert held == made.memory_bytes()


def test_lengths_are_estimated_from_the_servers_counts():
    """
    A long text by its middle, and rather too high; each sample is counted once.
    """
    asked = []

    def count(text):
        asked.append(text)
        return len(text) // 4

    estimates = Estimates(count)
    assert [2, 2550, 2550] == [
        estimates.count_tokens("x" * n) for n in (8, 10_000, 10_000)
    ]
    assert [8, 2000] == [len(text) for text in asked]
    assert [25, 50] == estimates.counts(["a" * 100, "b" * 200])
    assert 0 == estimates.count_tokens("")


def test_a_text_is_not_estimated_shorter_with_something_behind_it():
    """
    Its middle is another one then, which may have fewer tokens.
    """
    estimates = Estimates(lambda text: text.count("x"))
    text = "-" * 4000 + "x" * 1500 + "-" * 4000

    assert estimates.count_tokens(text) <= estimates.count_tokens(text + "-" * 1500)
