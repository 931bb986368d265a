"""What runs behind a script: its memory, and which program it is."""

import sys
from dataclasses import replace

import pytest
from made_servers import FAKE, fake_launch
from programs import script

from codeneedle.engines.llama_cpp.installation import Program
from codeneedle.engines.llama_cpp.server import serving_llama
from codeneedle.system import process_memory
from codeneedle.system.processes import pids_of_tree_and_group, port_is_listened_on

pytestmark = pytest.mark.slow

PYTHON = f'"{sys.executable}" -S "{FAKE}"'


def started(folder, body):
    """The fake server behind a script with that *body*."""
    launch = replace(fake_launch(), binary=Program(script(folder / "wrapper", body)))
    return serving_llama(launch, log=folder / "server.log")


def program(folder, body):
    with started(folder, body) as served:
        return served.program_hash()


def test_memory_of_a_wrapper_is_that_of_all_that_it_started(tmp_path):
    with started(tmp_path, f'nice -n 0 {PYTHON} "$@"\nexit') as served:
        shell = process_memory.peak_rss_bytes(served.child.pid)
        whole = served.peak_rss_bytes()

        assert 1 < len(pids_of_tree_and_group(served.child.pid))
        assert whole > 3 * shell


def test_memory_is_unknown_where_none_of_our_processes_serves(tmp_path, monkeypatch):
    """As of a container: what is here is its client."""
    monkeypatch.setattr(
        "codeneedle.engines.llama_cpp.server.port_is_listened_on",
        lambda _pids, _port: False,
    )
    with started(tmp_path, f'exec {PYTHON} "$@"') as served:
        assert None is served.peak_rss_bytes()


def test_a_server_is_known_to_listen_on_its_port(tmp_path):
    with started(tmp_path, f'{PYTHON} "$@"\nexit') as served:
        port = int(served.address.url.partition("//")[2].split(":")[1].split("/")[0])

        assert port_is_listened_on(pids_of_tree_and_group(served.child.pid), port)
        assert not port_is_listened_on([served.child.pid], port)


def test_the_same_program_is_known_behind_any_wrapper_and_port(tmp_path):
    bodies = (f'exec {PYTHON} "$@"', f'{PYTHON} "$@"\nexit')

    assert 1 == len({program(tmp_path, body) for body in (*bodies, bodies[0])})


@pytest.mark.parametrize("more", ["--fake noisy", "--another-option 5"])
def test_a_wrapper_that_adds_a_word_starts_another_program(tmp_path, more):
    plain, other = (f'exec {PYTHON} "$@"{end}' for end in ("", f" {more}"))

    assert program(tmp_path, plain) != program(tmp_path, other)


def test_a_script_that_says_something_else_is_another_program(tmp_path):
    copies = [tmp_path / "one" / "fake.py", tmp_path / "two" / "fake.py"]
    for number, copy in enumerate(copies):
        copy.parent.mkdir()
        copy.write_text(f"{FAKE.read_text()}\n# {number}\n")
    found = [
        program(tmp_path, f'exec "{sys.executable}" -S "{copy}" "$@"')
        for copy in copies
    ]

    assert 2 == len({*found})
