"""A quantity is read in every usual form; one that could mean two is refused."""

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from codeneedle.errors import BadInput
from codeneedle.quantities import (
    memory_size_text,
    parse_memory_size,
    parse_percent_as_share,
    parse_seconds,
    parse_token_count,
)
from codeneedle.sweep.request import Request, parse_request_toml, with_options


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("32768", 32768), ("32K", 32768), (" 16k ", 16384), ("1M", 1 << 20), ("0", 0)],
)
def test_tokens_are_counted_or_in_units_of_1024(text, tokens):
    assert tokens == parse_token_count("--at", text)


@pytest.mark.parametrize("text", ["-5", "1.7K", "K", "many", "", "²", "4KB", "1,5"])
def test_what_is_no_number_of_tokens_is_refused(text):
    with pytest.raises(BadInput, match="--at") as caught:
        parse_token_count("--at", text)
    assert "--at 32K" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90m", 5400.0), ("1.5h", 5400.0), ("2d", 172800.0), ("15 min", 900.0)],
)
def test_a_time_has_a_unit(text, seconds):
    assert seconds == parse_seconds("--budget", text)


@pytest.mark.parametrize("text", ["2", "h", "-1h", "0s", "soon", "infh", "", "1.2.3h"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(BadInput, match="--budget"):
        parse_seconds("--budget", text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30),
        ("512mib", 512 << 20),
        ("1.5 KiB", 1536),
        ("2GB", 2_000_000_000),
        ("700 MB", 700_000_000),
        ("2G", 2 << 30),
        ("512m", 512 << 20),
    ],
)
def test_a_size_of_memory_is_binary_or_decimal(text, size):
    assert size == parse_memory_size("--max-memory", text)


@pytest.mark.parametrize(
    ("size", "word"),
    [
        (2 << 30, "2GiB"),
        (900 * 10**6, "900MB"),
        (3 << 29, "1536MiB"),
        (1537, "1.5009765625KiB"),
    ],
)
def test_a_size_of_memory_is_written_so_that_it_can_be_read(size, word):
    assert word == memory_size_text(size)


@given(st.integers(min_value=1, max_value=1 << 50))
def test_a_size_of_memory_is_read_as_it_was_written(size):
    assert size == parse_memory_size("--max-memory", memory_size_text(size))


@pytest.mark.parametrize("text", ["2", "2X", "GiB", "0GiB", "-1GiB", "nanGiB", ""])
def test_what_is_no_size_of_memory_is_refused(text):
    with pytest.raises(BadInput, match="--max-memory") as caught:
        parse_memory_size("--max-memory", text)
    assert "--max-memory 2GiB or --max-memory 2GB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "share"),
    [
        *(("1%", 0.01), (" 0.5% ", 0.005), ("3 %", 0.03)),
        *(("3", 0.03), ("1", 0.01), ("0.03", 0.03), ("10", 0.1)),
    ],
)
def test_a_limit_is_a_percentage_or_a_share(text, share):
    assert share == pytest.approx(parse_percent_as_share("--max-loss", text))


@pytest.mark.parametrize(("text", "other"), [("0.5", "50%"), ("0.10", "10%")])
def test_a_number_that_is_a_share_or_a_percentage_is_refused_with_both(text, other):
    with pytest.raises(BadInput, match="may mean") as caught:
        parse_percent_as_share("--max-loss", text)
    assert f"--max-loss {float(text):g}% or --max-loss {other}" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["0%", "0", "-1%", "100%", "100", "200%", "nan%", "inf%", "%", "one%", ""]
)
def test_what_is_no_percentage_is_refused(text):
    with pytest.raises(BadInput, match="between 0% and 100%") as caught:
        parse_percent_as_share("--max-loss", text)
    assert "--max-loss 1%" in caught.value.hint


TOKEN_KEYS = {
    "--context": "contexts",
    "--divergence-context": "divergence.contexts",
    "--depths": "throughput.depths",
    "--lengths": "retrieval.lengths",
}


def nested(key, value):
    """*value* at *key*, whose table is before the dot."""
    table, _, name = key.rpartition(".")
    return {table: {name: value}} if table else {name: value}


@pytest.mark.parametrize("key", TOKEN_KEYS.values())
def test_every_number_of_tokens_takes_thousands_in_options_and_files(key):
    table, _, name = key.rpartition(".")
    header = f"[{table}]\n" if table else ""

    asked = with_options(Request(), nested(key, ("4K", "8192")))
    stored = parse_request_toml(f'{header}{name} = ["4K", 8192]', source="a.toml")

    assert asked == stored
    chosen = getattr(asked, table) if table else asked
    assert (4096, 8192) == getattr(chosen, name)


@pytest.mark.parametrize(("option", "key"), TOKEN_KEYS.items())
def test_what_is_no_number_of_tokens_is_refused_by_the_name_of_its_option(option, key):
    with pytest.raises(BadInput, match=f"{option}: '4KB'") as caught:
        with_options(Request(), nested(key, ("4KB",)))
    assert f"{option} 32K" in caught.value.hint
    with pytest.raises(BadInput, match=f"a.toml, key '{key}': 'many'"):
        parse_request_toml(tomli_w.dumps(nested(key, ["many"])), source="a.toml")
