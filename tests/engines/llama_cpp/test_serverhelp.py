"""What two texts of llama-server say: its build, its options, its cache types."""

import pytest
from programs import HELP

from codeneedle.engines.llama_cpp.installation import read_help

VERSION = "version: 0.6.0-dev (build 11434, commit unknown)\nbuilt with GNU 12.2.0"


def test_types_are_read_across_wrapped_lines():
    """
    A fork's types come back as it spells them, in its order, each side its own.
    """
    found = read_help(VERSION, HELP)

    assert found is not None
    assert ("f32", "f16", "bf16", "q8_0", "q4_0", "turbo3", "q8_KV") == found.k_types
    assert ("f16", "q8_0") == found.v_types


def test_options_are_those_that_begin_a_line():
    """
    An option that a description mentions is not thereby one of the server's.
    """
    found = read_help(VERSION, HELP)

    assert found is not None
    assert {"--fit", "--kv-unified", "--no-kv-unified", "--usage"} <= found.options
    assert "--not-an-option" not in found.options
    assert "-fit" not in found.options


@pytest.mark.parametrize(
    ("text", "version", "build"),
    [
        (VERSION, "0.6.0-dev (build 11434, commit unknown)", 11434),
        ("warming up\nversion: 4567 (abcdef0)\n", "4567 (abcdef0)", 4567),
        ("version: my fork\n", "my fork", None),
    ],
)
def test_old_and_new_versions_are_read(text, version, build):
    """
    The number stands before the commit, or is called a build.
    """
    found = read_help(text, HELP)

    assert found is not None
    assert (version, build) == (found.version, found.build)


def test_older_layouts_are_read():
    """
    Lines may be indented or starred, and need not list the types.
    """
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


@pytest.mark.parametrize(
    ("version", "text"),
    [("GNU bash, version 5.2", HELP), (VERSION, "usage: bash"), ("", "")],
)
def test_other_programs_are_not_mistaken(version, text):
    """
    Without a version line or the option of cache types it is another program.
    """
    assert read_help(version, text) is None
