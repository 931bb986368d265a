"""llama.cpp: where it is searched, and what its programs say about themselves."""

import os
from pathlib import Path

import pytest
from programs import HELP, llama_like, script, single_llama

from codeneedle.cache_types import Pair
from codeneedle.engines.llama_cpp import installation, release
from codeneedle.engines.llama_cpp.installation import (
    Program,
    ask_server_facts,
    locate_tools,
    read_help,
)
from codeneedle.errors import MachineError, ToolFailed, ToolMissing

VERSION = "version: 0.6.0-dev (build 11434, commit unknown)\nbuilt with GNU 12.2.0"


@pytest.fixture(autouse=True)
def _empty_world(tmp_path, monkeypatch):
    """No llama.cpp anywhere, and an empty cache folder."""
    monkeypatch.setenv("CODENEEDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("LLAMA_SERVER", raising=False)


def test_the_order_is_argument_environment_path_cache(tmp_path, monkeypatch):
    built = llama_like(release.built_folder() / "llama-server")
    assert (built, "the cache folder") == (
        locate_tools().server.path,
        locate_tools().source,
    )

    on_path = llama_like(tmp_path / "bin" / "llama-server")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert (on_path, "PATH") == (locate_tools().server.path, locate_tools().source)

    named = llama_like(tmp_path / "elsewhere" / "my-server")
    monkeypatch.setenv("LLAMA_SERVER", str(named))
    assert (named, "LLAMA_SERVER") == (
        locate_tools().server.path,
        locate_tools().source,
    )

    given = llama_like(tmp_path / "given")
    found = locate_tools(llama_server=given)
    assert (given, "--llama-server") == (found.server.path, found.source)
    assert (None, None) == (found.perplexity, found.bench)


def test_a_missing_server_is_reported_with_the_ways_to_get_one():
    with pytest.raises(ToolMissing) as caught:
        locate_tools()

    assert "codeneedle llama" in caught.value.hint
    assert "brew install llama.cpp" in caught.value.hint
    assert 3 == caught.value.exit_code


def test_a_path_that_is_no_program_is_refused_for_what_it_is(tmp_path, monkeypatch):
    llama_like(tmp_path / "llama-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").touch()

    for path, words in (
        (tmp_path / "nothing", "does not exist"),
        (tmp_path, "is a folder"),
        (tmp_path / "file", "is not executable"),
    ):
        with pytest.raises(ToolFailed, match=words):
            locate_tools(llama_server=path)
        monkeypatch.setenv("LLAMA_SERVER", str(path))
        with pytest.raises(ToolFailed, match=f"from LLAMA_SERVER, {words}"):
            locate_tools()


def test_the_other_programs_are_found_through_links_both_ways(tmp_path):
    """They may lie beside the link, as with Homebrew, or beside what it points to."""
    real = llama_like(tmp_path / "cellar" / "llama-server")
    perplexity = script(tmp_path / "cellar" / "llama-perplexity", "")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server").symlink_to(real)
    bench = script(tmp_path / "bin" / "llama-bench", "")

    found = locate_tools(llama_server=tmp_path / "bin" / "llama-server")

    assert tmp_path / "bin" / "llama-server" == found.server.path
    assert Program(perplexity) == found.perplexity
    assert Program(bench) == found.bench


ALL_PARTS = ("serve", "perplexity", "bench", "fit-params")


def commands(found):
    """What each program of an installation is started by, without its folder."""
    programs = (found.server, found.perplexity, found.bench, found.fit_params)
    return [program and program.name for program in programs]


def test_the_single_program_is_used_where_there_is_no_server(tmp_path, monkeypatch):
    llama_like(release.built_folder() / "llama-server")
    single = single_llama(tmp_path / "bin" / "llama", *ALL_PARTS)
    monkeypatch.setenv("PATH", f"{single.parent}:{os.environ['PATH']}")
    found = locate_tools()

    assert [f"llama {part}" for part in ALL_PARTS] == commands(found)
    assert ("PATH", f"{single} serve") == (found.source, str(found.server))
    assert 11434 == ask_server_facts(found.server).build

    llama_like(single.with_name("llama-server"))
    assert ["llama-server", *commands(found)[1:]] == commands(locate_tools())


@pytest.mark.parametrize("way", ["itself", "as it is shown", "by a link", "by name"])
def test_the_single_program_is_taken_where_it_is_named(tmp_path, monkeypatch, way):
    single = single_llama(tmp_path / "bin" / "llama", *ALL_PARTS)
    monkeypatch.setenv("PATH", f"{single.parent}:{os.environ['PATH']}")
    link = tmp_path / "llama-server"
    link.symlink_to(single)
    named = {
        "itself": single,
        "as it is shown": tmp_path / "bin" / "llama serve",
        "by a link": link,
        "by name": "llama",
    }[way]

    found = locate_tools(llama_server=Path(named))
    assert ("serve", "--llama-server") == (found.server.subcommand, found.source)
    assert 11434 == ask_server_facts(found.server).build


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("serve",), ["llama serve", None, None, None]),
        (("serve", "bench"), ["llama serve", None, "llama bench", None]),
        (ALL_PARTS[:3], ["llama serve", "llama perplexity", "llama bench", None]),
    ],
    ids=["the server alone", "no perplexity", "no fit-params"],
)
def test_each_part_of_the_single_program_is_tried(tmp_path, parts, expected):
    single = single_llama(tmp_path / "llama", *parts)

    assert expected == commands(locate_tools(llama_server=single))


def test_a_part_that_is_missing_may_be_a_program_beside_it(tmp_path):
    single = single_llama(tmp_path / "llama", "serve")
    script(tmp_path / "llama-bench", "")

    assert "llama-bench" == commands(locate_tools(llama_server=single))[2]


@pytest.mark.parametrize(
    "body",
    [
        "echo 'usage: llama [model|stack]'",
        "echo 'No such command' >&2; exit 2",
        "exec sleep 60",
        "kill -4 $$",
    ],
    ids=["another usage", "no such command", "hangs", "crashes"],
)
def test_another_program_of_that_name_is_no_server(tmp_path, monkeypatch, body):
    monkeypatch.setattr(installation, "TRY_TIMEOUT_S", 0.5)
    other = script(tmp_path / "bin" / "llama", body)
    monkeypatch.setenv("PATH", f"{other.parent}:{os.environ['PATH']}")

    with pytest.raises(ToolMissing, match=f"{other} is another program"):
        locate_tools()
    built = llama_like(release.built_folder() / "llama-server")
    assert built == locate_tools().server.path


OLD = "-fa,   --flash-attn                     enable Flash Attention (default: off)"
NEW = "-fa,   --flash-attn [on|off|auto]       set Flash Attention use"


@pytest.mark.parametrize(
    ("version", "help_text", "is_old"),
    [
        ("version: 5186 (abcdef12)", "", True),
        ("version: 6324 (abcdef12)", "", True),
        ("version: 6325 (abcdef12)", "", False),
        # Of archives, and clones without history.
        ("version: 0 (unknown)", "", False),
        ("version: 1 (abcdef12)", "", False),
        ("version: 1 (abcdef12)", OLD, True),
        ("version: 4100 (abcdef12)", NEW, False),
    ],
    ids=["5186", "6324", "6325", "0", "1", "1 by its help", "4100 by its help"],
)
def test_a_build_whose_flash_attention_takes_no_value_is_too_old(
    version, help_text, is_old, tmp_path, golden
):
    """By its help, and by its number where that does not tell."""
    server = llama_like(tmp_path / "llama-server", version=version)
    text = server.read_text().replace("-fit,", f"{help_text}\n-fit,")
    server.write_text(text)

    if not is_old:
        assert ask_server_facts(Program(server)).version in version
        return
    with pytest.raises(ToolFailed) as caught:
        ask_server_facts(Program(server))
    assert golden == (str(caught.value), caught.value.hint)


def test_a_server_tells_its_build_types_options_and_devices(tmp_path):
    """Free memory is left out of a device, because it changes from hour to hour."""
    server = llama_like(
        tmp_path / "llama-server",
        devices="  CUDA0: NVIDIA L4 (Ada) (22563 MiB, 22000 MiB free)",
    )
    facts = ask_server_facts(Program(server))

    assert 11434 == facts.build
    assert "0.6.0 (build 11434, commit abc)" == facts.version
    assert "turbo3" in facts.k_types
    assert ("f16", "q8_0") == facts.v_types
    assert "--fit" in facts.options
    assert ("CUDA0 NVIDIA L4 (Ada) (22563 MiB)",) == facts.devices


def test_a_line_of_the_log_that_is_lost_once_is_asked_for_again(tmp_path):
    """The thread that writes it ends with the program, which ends at once."""
    line = "system_info: n = 1 / 2 | CPU : AVX = 1 | "
    server = llama_like(tmp_path / "llama-server", system_info=line)
    text = server.read_text().replace(
        "#!/bin/sh\n",
        f"#!/bin/sh\n[ $1 = --model ] && mkdir {tmp_path}/once 2>/dev/null && exit 1\n",
        1,
    )
    server.write_text(text)

    assert "AVX" == ask_server_facts(Program(server)).cpu_features
    assert (tmp_path / "once").exists()


@pytest.mark.parametrize(
    ("system_info", "expected"),
    [
        (
            "0.00.002.060 I cmn: system_info: n = 1 / 2 | CPU : AVX = 1 | F = 1 | ",
            "AVX F",
        ),
        (
            "system_info: n = 1 | CUDA : ARCHS = 890 | CPU : SVE_CNT = 16 | ",
            "SVE_CNT=16",
        ),
        ("system_info: n_threads = 4 / 4 | AVX = 1 | AVX2 = 0 | ", ""),
        ("", ""),
    ],
    ids=["as of the pinned build", "with other backends", "an old build", "nothing"],
)
def test_a_server_tells_what_it_uses_of_the_processor(tmp_path, system_info, expected):
    """Only its numbers of threads differ from start to start; they are left out."""
    server = llama_like(tmp_path / "llama-server", system_info=system_info)

    assert expected == ask_server_facts(Program(server)).cpu_features


@pytest.mark.parametrize(
    ("features", "compiled", "converted", "unknown"),
    [
        ("FA_QUANTS = q8_0-q8_0,q8_0-q4_0 | ", "q8_0/q4_0", "q4_0/q8_0", None),
        ("FA_QUANTS = all | BLACKWELL_NATIVE_FP4 = 1 | ", "q4_0/q8_0", None, None),
        ("FA_ALL_QUANTS = 1 | ", "q4_0/q8_0", None, None),
        ("", "f16/f16", None, "q8_0/q8_0"),
    ],
    ids=["chosen", "all", "an older build", "not told"],
)
def test_a_cuda_server_tells_which_pairs_it_was_compiled_for(
    tmp_path, features, compiled, converted, unknown
):
    """The line is composed as ``llama_print_system_info`` does it; no GPU wrote it."""
    told = f"CUDA : ARCHS = 800,890 | USE_GRAPHS = 1 | {features}CPU : AVX = 1 | "
    line = f"0.00.002.060 I cmn  common_param: system_info: n_threads = 1 / 2 | {told}"
    server = Program(llama_like(tmp_path / "llama-server", system_info=line))
    facts = ask_server_facts(server)

    expected = {compiled: True, converted: False, unknown: None}
    for pair in filter(None, expected):
        assert expected[pair] is facts.has_compiled(Pair.parse(pair))
    assert "AVX" == facts.cpu_features


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"#!/bin/sh\necho 'cannot open libggml.so' >&2; exit 127", "libggml.so"),
        (b"#!/bin/sh\nkill -4 $$", "SIGILL"),
        (b"#!/bin/sh\necho I am a teapot", "a teapot"),
        (b"#!/bin/sh\nexec sleep 60", "no answer"),
        (b"\x7fELF\x02\x01\x01" + bytes(64), "cannot be started"),
    ],
    ids=["a missing library", "a crash", "another program", "hangs", "a binary"],
)
def test_what_is_no_working_server_is_reported(tmp_path, monkeypatch, content, words):
    monkeypatch.setattr(installation, "ASK_TIMEOUT_S", 1.0 if "no" in words else 60.0)
    path = script(tmp_path / "llama-server", "")
    path.write_bytes(content)

    with pytest.raises(MachineError, match=words):
        ask_server_facts(Program(path))


def test_types_and_options_are_read_from_the_help():
    found = read_help(VERSION, HELP)

    assert found is not None
    assert ("f32", "f16", "bf16", "q8_0", "q4_0", "turbo3", "q8_KV") == found.k_types
    assert ("f16", "q8_0") == found.v_types
    assert {"--fit", "--kv-unified", "--no-kv-unified", "--usage"} <= found.options
    assert not {"--not-an-option", "-fit"} & found.options


@pytest.mark.parametrize(
    ("text", "help_text", "expected"),
    [
        (VERSION, HELP, ("0.6.0-dev (build 11434, commit unknown)", 11434)),
        ("warming up\nversion: 4567 (abcdef0)\n", HELP, ("4567 (abcdef0)", 4567)),
        ("version: my fork\n", HELP, ("my fork", None)),
        ("GNU bash, version 5.2", HELP, None),
        (VERSION, "usage: bash", None),
        ("", "", None),
    ],
)
def test_old_and_new_versions_are_told_from_other_programs(text, help_text, expected):
    found = read_help(text, help_text)

    assert expected == (found and (found.version, found.build))


def test_older_layouts_are_read():
    text = (
        "usage: llama-server\n\n"
        "  -h,    --help, --usage          print usage\n"
        "*        --no-warmup              skip warming up\n"
        "  -ctk,  --cache-type-k TYPE      KV cache data type for K (default: f16)\n"
    )
    found = read_help("version: 3000 (abc)", text)

    assert found is not None
    assert {"--help", "--usage", "--no-warmup", "--cache-type-k"} == found.options
    assert () == found.k_types


@pytest.mark.real
def test_the_real_server_answers_every_question(llama_server):
    facts = ask_server_facts(locate_tools(llama_server=llama_server).server)
    upstream = {
        *("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"),
    }

    assert upstream <= set(facts.k_types)
    assert facts.k_types == facts.v_types
    assert facts.build is not None
    assert facts.cpu_features
    assert facts.options >= {
        *("--fit", "--log-colors", "--reasoning-budget", "--swa-full", "--spec-type"),
        *("--cache-ram", "--kv-unified", "--no-repack", "--list-devices"),
    }
