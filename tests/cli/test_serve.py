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


@pytest.mark.real
def test_a_cell_is_served_verified_until_ctrl_c(tmp_path):
    command = (sys.executable, "-m", "codeneedle", "serve", "q8_0/q4_0")
    with subprocess.Popen(
        [*command, "--context", "1K"],
        cwd=tmp_path,
        env=os.environ | {"NO_COLOR": "1"},
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
    assert "q8_0/q4_0 is verified, KV cache " in notes
    assert "1,024 tokens" in notes
    assert notes.endswith("Stopped.\n")
    assert "" == rest
    assert 0 == serving.returncode
    assert [] == processes_in(tmp_path)


def test_types_that_the_server_has_not_are_refused(codeneedle):
    refused = codeneedle("serve", "q8_0/q9_0")

    assert 2 == refused.returncode
    assert "llama.cpp has no q9_0 for the cache" in refused.stderr
