"""The serve command, on the real llama-server."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest
from injections import processes_in

from codeneedle.cli.serve import chosen_api_key
from codeneedle.errors import BadInput
from codeneedle.system.processes import free_port


@pytest.mark.real
def test_a_cell_is_served_verified_until_ctrl_c(tmp_path, golden):
    command = (sys.executable, "-m", "codeneedle", "serve", "q8_0/q4_0")
    port = str(free_port("127.0.0.1"))
    with subprocess.Popen(
        [*command, "--context", "1K", "--port", port, "--", "--no-kv-offload"],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1", "CODENEEDLE_API_KEY": "of-the-user"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as serving:
        lines = [serving.stdout.readline() for _ in range(3)]
        said = dict(re.findall(r"export (\w+)=(\S+)\n", "".join(lines)))
        request = urllib.request.Request(  # noqa: S310 - of this machine
            f"{said['OPENAI_BASE_URL']}/completions",
            data=json.dumps({"prompt": "def f():", "max_tokens": 2}).encode(),
            headers={
                "Authorization": f"Bearer {said['OPENAI_API_KEY']}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request) as reply:  # noqa: S310 - likewise
            model = json.load(reply)["model"]
        serving.send_signal(signal.SIGINT)
        rest, notes = serving.communicate(timeout=60)

    assert said["OPENAI_MODEL"] == model
    assert f"http://127.0.0.1:{port}/v1" == said["OPENAI_BASE_URL"]
    assert "of-the-user" == said["OPENAI_API_KEY"]
    marks = ("is verified", "attention runs")
    assert golden == [x for x in notes.splitlines() if any(m in x for m in marks)]
    assert notes.endswith("Stopped.\n")
    assert "" == rest
    assert 0 == serving.returncode
    assert [] == processes_in(tmp_path)


@pytest.mark.parametrize("key", ["two words", "one,two", "schlüssel", "line\n"])
def test_a_key_that_no_header_holds_is_refused(key):
    with pytest.raises(BadInput):
        chosen_api_key({"CODENEEDLE_API_KEY": key})


@pytest.mark.parametrize("port", ["80", "70000", "x"])
def test_ports_of_the_system_and_none_at_all_are_refused(codeneedle, port):
    assert 2 == codeneedle("serve", "q8_0/q4_0", "--port", port).returncode


def test_arguments_that_would_change_what_is_served_are_refused(codeneedle, golden):
    refused = codeneedle("serve", "q8_0/q4_0", "--", "-fa", "off")

    assert 2 == refused.returncode
    assert golden == refused.stderr.splitlines()[-2:]


def test_types_that_the_server_has_not_are_refused(codeneedle, golden):
    refused = codeneedle("serve", "q8_0/q9_0")

    assert 2 == refused.returncode
    assert golden == refused.stderr.splitlines()[-2]


@pytest.mark.parametrize("command", ["serve q8_0/q8_0", "ask f16/f16,q8_0/q8_0 p.txt"])
@pytest.mark.parametrize("engine", ["endpoint", "command"])
def test_a_server_of_the_user_s_is_refused_with_what_measures_it(
    codeneedle, tmp_path, command, engine, golden
):
    """Once the hint named options that these commands do not take."""
    (tmp_path / "p.txt").write_text("hello")
    done = codeneedle(*command.split(), "--engine", engine)

    assert 2 == done.returncode
    assert golden == done.stderr.splitlines()[-2:]
    assert f"codeneedle sweep --engine {engine} --help" in done.stderr
