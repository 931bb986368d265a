"""Servers started by a command: the evidence of their caches, and how they ended."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_engine import made_weights
from fake_openai import MODEL, endpoint
from programs import llama_like

from codeneedle.cache_types import Pair
from codeneedle.engines.engine import Ability, CellSpec, ModelSpec
from codeneedle.engines.messages import Completion, Readiness
from codeneedle.engines.openai import engine, server
from codeneedle.engines.openai.client import OpenAi
from codeneedle.engines.openai.engine import LENGTHS, command_engine_factory
from codeneedle.engines.openai.server import (
    CommandServer,
    fingerprint_prompt,
    request_fingerprints,
)
from codeneedle.engines.openai.settings import CommandSettings
from codeneedle.errors import BadInput, CellError, MachineError, ToolFailed, ToolMissing
from codeneedle.records.record import Status
from codeneedle.system.secrets import mask_text

pytestmark = pytest.mark.slow

FAKE = Path(engine.__file__).parents[3] / "tests" / "helpers" / "fake_openai.py"
ARGS = "--port ${port} --k ${k} --v ${v} --context ${context}"
CELL = CellSpec(Pair("q8_0", "q4_0"), 2048)
SPEC = ModelSpec(weights=made_weights(), name="made")
QUESTION = Completion(prompt="a:\n  one\na:", max_tokens=8)


def command(*faults, args=ARGS, spec=SPEC, types=("f16", "q8_0", "q4_0"), **settings):
    """The engine that starts the fake server with *faults*."""
    words = " ".join(f"--fake {fault}" for fault in faults)
    told = {"health": "/health", "evidence_by_memory": False, **settings}
    asked = CommandSettings(command=f"{sys.executable} {FAKE} {args} {words}", **told)
    return command_engine_factory(asked, types=types, environment=os.environ)(spec)


def test_a_cell_is_served_by_the_command_and_ends_with_its_block(tmp_path):
    log = tmp_path / "cell.log"

    with command().serving(CELL, log=log) as served:
        reply = served.client.complete(QUESTION)
        pid = served.child.pid
        assert served.peak_rss_bytes() > 1 << 20

    assert "  one\n" == reply.text
    words = served.command[served.command.index("--k") :]
    assert ("--k", "q8_0", "--v", "q4_0", "--context", "2048") == words[:6]
    assert "serving with 0 bytes" in log.read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_evidence_repeats_itself_and_differs_between_types(tmp_path):
    fingerprints = {}
    for k in ("f16", "q8_0"):
        cell = CellSpec(Pair(k, "f16"), 2048)
        with command().serving(cell, log=tmp_path / "log") as served:
            fingerprints[k] = served.effective().cache_evidence.fingerprints

    assert fingerprints["f16"][0] == fingerprints["f16"][1]
    assert fingerprints["f16"][0] != fingerprints["q8_0"][0]
    assert 32 == len(fingerprints["f16"][0].logprobs)


def test_memory_is_looked_at_with_two_contexts(tmp_path):
    """The slope is what a token takes, once for all probes of a cell."""
    made = command("leak=20000", evidence_by_memory=True)

    with made.serving(CELL, log=tmp_path / "log") as served:
        evidence = served.effective().cache_evidence

    assert [1024, 2048] == [context for context, _ in evidence.memory]
    assert 20_000 == pytest.approx(evidence.bytes_per_token, rel=0.2)
    assert (tmp_path / "log.half.log").exists()


@pytest.mark.parametrize(
    ("faults", "status"),
    [(("die=3",), Status.CRASHED), (("die-in-round=4",), Status.CRASHED)],
    ids=["at-once", "in-a-round"],
)
def test_a_server_that_ends_says_why(tmp_path, golden, faults, status):
    with (
        pytest.raises(CellError) as caught,
        command(*faults).serving(CELL, log=tmp_path / "log"),
    ):
        pass

    assert status == caught.value.status
    assert golden == str(caught.value)
    assert caught.value.log_excerpt


@pytest.mark.parametrize(
    "faults",
    [("flood", "loading=9999"), ("flood-in-round", "mute")],
    ids=["loading", "mute"],
)
def test_a_server_whose_log_has_no_end_is_stopped(
    tmp_path, monkeypatch, golden, faults
):
    monkeypatch.setattr(server, "FILE_LIMIT_BYTES", 8 << 20)

    with (
        pytest.raises(CellError) as caught,
        command(*faults).serving(CELL, log=tmp_path / "log"),
    ):
        pass

    what, why, *_ = str(caught.value).split(": ")
    assert golden == f"{what}: {why}"
    assert (tmp_path / "log").stat().st_size < 3 << 20


def test_a_command_that_does_not_stay_is_told_so(tmp_path, golden):
    ours = tmp_path / "fake_openai.py"  # a name that no other test's processes have
    ours.symlink_to(FAKE)
    script = tmp_path / "serve.sh"
    script.write_text(f"setsid {sys.executable} {ours} --port $1 &", encoding="utf-8")
    asked = CommandSettings(command=f"sh {script} ${{port}} ${{k}}")
    made = command_engine_factory(asked, types=("f16",), environment=os.environ)(SPEC)

    with (
        pytest.raises(CellError, match="exit code 0") as caught,
        made.serving(CELL, log=tmp_path / "log"),
    ):
        pass

    assert golden == caught.value.hint
    commands = (each.info["cmdline"] for each in psutil.process_iter(["cmdline"]))
    assert not any(str(ours) in (words or ()) for words in commands)


def test_a_port_that_was_taken_is_changed(tmp_path):
    taken = tmp_path / "taken"
    taken.touch()

    with command(f"port-taken={taken}").serving(CELL, log=tmp_path / "log") as served:
        assert "  one\n" == served.client.complete(QUESTION).text


@pytest.mark.parametrize(
    ("faults", "settings", "said", "option"),
    [
        (("other-model",), {}, "lists another, not made/model", "--served-name"),
        ((), {"health": "/healthz"}, "404", "--health"),
        (("other-model",), {"health": ""}, "lists another", "--served-name"),
    ],
)
def test_a_server_that_never_becomes_ready_is_given_up(
    tmp_path, monkeypatch, faults, settings, said, option
):
    monkeypatch.setattr(server, "STRANGER_S", 0.1)
    monkeypatch.setattr(server, "LOAD_TIMEOUT_S", 20.0)
    made = command(*faults, served_name=MODEL, **settings)

    with (
        pytest.raises(CellError, match=said) as caught,
        made.serving(CELL, log=tmp_path / "log"),
    ):
        pass

    assert option in caught.value.hint
    assert Status.TIMED_OUT == caught.value.status


def test_a_server_that_wants_a_key_is_not_waited_for(tmp_path):
    with (
        pytest.raises(CellError, match="401") as caught,
        command("wants=sk-right").serving(CELL, log=tmp_path / "log"),
    ):
        pass

    assert "--api-key-env" in caught.value.hint


def test_what_a_server_writes_of_its_secrets_is_not_told(tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", "hf-of-the-user")
    monkeypatch.setenv("KEY", "sk-of-the-user")
    script = tmp_path / "serve.py"
    script.write_text(
        "import os\n"
        "print(os.environ['HUB_TOKEN'])\n"
        "raise SystemExit('key sk-of-the-user')",
        encoding="utf-8",
    )
    asked = CommandSettings(
        command=f"{sys.executable} {script} ${{port}} ${{k}} ${{v}}",
        env=("HUB_TOKEN",),
        api_key_env="KEY",
        evidence_by_memory=False,
    )
    made = command_engine_factory(asked, types=("f16",), environment=os.environ)(SPEC)

    with (
        pytest.raises(CellError, match=r"exit code 1: key \*+$") as caught,
        made.serving(CELL, log=tmp_path / "log"),
    ):
        pass

    stars = "*" * len("hf-of-the-user")
    assert (stars, f"key {stars}") == caught.value.log_excerpt


def test_what_a_server_is_handed_and_may_say_is_known_as_secret(monkeypatch, tmp_path):
    handed = {"HUB_TOKEN": "hf-1", "PROXY": "http://me:pass@host", "DEVICE": "0"}
    for name, value in handed.items():
        monkeypatch.setenv(name, value)

    with command(env=tuple(handed)).serving(CELL, log=tmp_path / "log"):
        assert "**** ******************* 0" == mask_text("hf-1 http://me:pass@host 0")
        assert "my ****" == mask_text("my pass")


def test_variables_reach_the_server_and_its_record(tmp_path):
    args = "--port ${port}"
    made = command(args=args, env=("OLLAMA_KV_CACHE_TYPE=${k}",))

    with made.serving(CELL, log=tmp_path / "log") as served:
        text = Path(f"/proc/{served.child.pid}/environ").read_text(encoding="utf-8")

    assert "OLLAMA_KV_CACHE_TYPE=q8_0" == served.command[0]
    assert "OLLAMA_KV_CACHE_TYPE=q8_0" in text.split("\0")


def test_with_one_placeholder_pairs_are_of_one_type(golden):
    one, both = command(args="--port ${port} --k ${k}"), command()

    assert {Pair(t, t) for t in ("f16", "q8_0", "q4_0")} == one.cache_types().pairs
    assert both.cache_types().pairs is None
    assert golden == [note for note in one.notes() if "K = V" in note]
    assert not any("K = V" in note for note in both.notes())


def test_the_identity_repeats_the_command():
    identity = command(served_name=MODEL).identity()

    assert "command" == identity.name
    assert identity.version.startswith("Python 3")
    assert "--command" == identity.arguments[0]
    assert "${k}" in identity.arguments[1]
    assert ("--served-name", MODEL) == identity.arguments[-2:]
    assert LENGTHS == identity.lengths


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec(weights=made_weights(), name="made", arguments=("-ngl", "9")),
        ModelSpec(weights=made_weights(), name="made", rotation=False),
    ],
    ids=["arguments", "rotation"],
)
def test_what_is_meant_for_llama_server_is_refused(spec, golden):
    with pytest.raises(BadInput) as caught:
        command(spec=spec).refuse_unusable_arguments()

    assert golden == str(caught.value)
    command().refuse_unusable_arguments()


def test_tools_that_are_llama_cpps_are_missing():
    for ability in set(Ability) - {Ability.FORCED, Ability.ADDRESS}:
        with pytest.raises(ToolMissing, match=ability.value) as caught:
            command().require(ability)
        assert "with llama.cpp" in caught.value.hint
    with pytest.raises(MachineError):
        command().divergence_tool()


def test_chats_are_not_forced(golden):
    chats, texts = command(spec=replace(SPEC, is_chat=True)), command()

    texts.require(Ability.FORCED)
    with pytest.raises(BadInput) as caught:
        chats.require(Ability.FORCED)
    assert golden == (str(caught.value), caught.value.hint)
    assert golden == [note for note in chats.notes() if "in chats" in note]
    assert any("as vLLM does" in note for note in texts.notes())


@pytest.mark.parametrize("is_chat", [False, True])
@pytest.mark.parametrize(
    "start", ["{}", "sh -c 'exec {}'", "env A=1 {}"], ids=["itself", "sh", "env"]
)
def test_llama_server_is_known_to_score_nothing_through_this_api(
    is_chat, start, tmp_path, golden
):
    llama_like(tmp_path / "llama-server")
    server = f"{tmp_path}/llama-server --port ${{port}} -ctk ${{k}} -ctv ${{v}}"
    spec = replace(SPEC, is_chat=is_chat)
    made = command_engine_factory(
        CommandSettings(command=start.format(server)),
        types=("f16",),
        environment=os.environ,
    )(spec)

    with pytest.raises(BadInput) as caught:
        made.require(Ability.FORCED)

    assert golden == (str(caught.value), caught.value.hint)
    assert Ability.FORCED not in made.abilities
    assert any("--engine llama.cpp scores right lines" in each for each in made.notes())


def test_a_program_that_is_not_there_is_named(golden):
    asked = CommandSettings(command="no-such-program ${port} ${k}")

    with pytest.raises(ToolMissing) as caught:
        command_engine_factory(asked, types=("f16",), environment={})
    assert golden == str(caught.value)


def test_lengths_are_counted_by_a_server_of_the_command(tmp_path):
    with command().tokenizing(log=tmp_path / "log") as tokenizer:
        assert 25 == tokenizer.count_tokens("x" * 100)


def test_a_server_that_does_not_count_stops_the_sweep(tmp_path):
    with (
        pytest.raises(ToolFailed, match="cannot count"),
        command("no-usage").tokenizing(log=tmp_path / "log") as tokenizer,
    ):
        tokenizer.count_tokens("x")


def made_server(*, log=None, child=None, **client):
    """A server of a command whose client says what *client* has."""
    answers = SimpleNamespace(ask_prompt_token_count=len, **client)
    return CommandServer(client=answers, command=(), log=log, child=child)


@pytest.mark.parametrize(
    ("host", "device", "has_devices", "held"),
    [
        (5, 7, True, 12),
        (5, None, True, None),
        (None, 7, True, None),
        (5, None, False, 5),
    ],
)
def test_memory_of_which_a_part_is_unknown_is_unknown(host, device, has_devices, held):
    """A device that did not answer once would look like a small cache."""
    assert held == server.held_bytes(host, device, has_devices=has_devices)


@pytest.mark.parametrize("context", [256, 512, 4096])
def test_the_fixed_text_leaves_room_and_ends_with_its_first_line(context):
    text = fingerprint_prompt(context)
    first = text.partition("\n")[0]

    assert text.endswith(f"\n{first}\n")
    assert len(text) < context or context < 4096


@pytest.mark.parametrize("faults", [(), ("chat-only",)])
def test_evidence_is_two_replies_to_a_text_that_is_in_the_cache_by_then(faults):
    with endpoint(*faults) as asked, OpenAi(asked.url) as client:
        client.model = MODEL
        found = request_fingerprints(client, context=4096)

    answered = [body for body in asked.bodies if ("messages" in body) == bool(faults)]
    assert (2, 3) == (len(found), len(answered))
    assert found[0] == found[1]
    assert found[0].text


@pytest.mark.parametrize(
    ("seen", "strange"),
    [
        (Readiness.LOADING, ""),
        (Readiness.STRANGER, ""),
        (Readiness.SILENT, ""),
        (Readiness.STRANGER, "it is another"),
    ],
    ids=["loading", "no-model", "silent", "another"],
)
def test_why_a_server_did_not_get_ready_is_told(tmp_path, golden, seen, strange):
    log = tmp_path / "log"
    log.write_text("one\n\ntwo\n")

    found = made_server(log=log, strange=strange, advice="Mend it.").delay_error(seen)

    assert golden == str(found)
    assert Status.TIMED_OUT == found.status
    assert ("one", "two") == found.log_excerpt


def test_how_a_server_ended_is_told_by_the_last_line_of_its_log(tmp_path, golden):
    log = tmp_path / "log"
    ended = made_server(log=log, child=SimpleNamespace(returncode=1))
    killed = made_server(log=log, child=SimpleNamespace(returncode=-9))
    log.write_text(f"{'x' * 5000}\n")

    told = str(ended.death_error())

    assert golden == told
    assert len(told) < 300
    assert golden == str(killed.death_error())


@pytest.mark.parametrize(
    ("waited_s", "client", "left_s"),
    [
        (100.0, {"strange": "", "wants_key": False}, 3500.0),
        (100.0, {"strange": "it is another", "wants_key": False}, 30.0),
        (3590.0, {"strange": "it is another", "wants_key": False}, 10.0),
        (100.0, {"strange": "it wants a key", "wants_key": True}, 0.0),
    ],
)
def test_a_stranger_has_less_time_to_become_ready(tmp_path, waited_s, client, left_s):
    stranger = made_server(log=tmp_path / "log", **client)

    assert left_s == stranger.left_s(waited_s)
    if left_s == 30.0:
        assert 20.0 == stranger.left_s(waited_s + 10.0)
