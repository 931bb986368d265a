"""The registry of engines: what is offered, and whose settings are whose."""

from typing import Annotated

import pytest
from msgspec import Meta, Struct
from typer.main import get_command

from codeneedle.cli import engines
from codeneedle.cli.app import app
from codeneedle.cli.engines import ENGINES, Offer, offered, settings_of_engines
from codeneedle.errors import BadInput, UnknownName
from codeneedle.sweep.request import Request, read_sweep_file


class MadeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of an engine that does not exist."""

    url: Annotated[
        str, Meta(description="Where.", extra={"option": "--made-url", "metavar": "X"})
    ] = ""


@pytest.fixture
def parse(monkeypatch, tmp_path):
    """Parses the options of a sweep while there is an engine called made."""
    made = Offer(find=id, engine_for=id, settings=MadeSettings)
    monkeypatch.setattr(engines, "ENGINES", {**ENGINES, "made": made})
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CORPUS", raising=False)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "mine.toml").write_text(
        'engine = "made"\n[made]\nurl = "from-file"\n', encoding="utf-8"
    )

    def parsed(*args):
        command = get_command(app).commands["sweep"]
        return command.make_context("sweep", list(args)).obj

    return parsed


@pytest.mark.parametrize(
    ("args", "url"),
    [
        (["mine"], "from-file"),
        (["mine", "--made-url", "given"], "given"),
        (["--engine", "made", "--made-url", "given"], "given"),
    ],
)
def test_an_engine_has_a_table_in_sweep_files_and_options_of_its_own(parse, args, url):
    """
    A further engine needs one line in the registry for both.
    """
    request = parse(*args)

    assert "made" == request.engine
    assert {"made": MadeSettings(url=url)} == request.settings


def test_the_settings_of_another_engine_are_refused(parse):
    """
    They would be ignored without a word.
    """
    with pytest.raises(BadInput, match="settings of the engine made") as caught:
        offered(parse("--made-url", "given"))

    assert "--engine made" in caught.value.hint


def test_an_engine_that_does_not_exist_is_refused_by_name():
    """
    With the names of those that do.
    """
    with pytest.raises(UnknownName, match="unknown engine 'llama'") as caught:
        offered(Request(engine="llama"))

    assert "llama.cpp" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "v_types", "probes"),
    [
        ("mlx-niah", ("f16", "kv8", "kv4"), ("retrieval",)),
        ("mlx-split", ("f16", "kv8", "kv4", "kv2"), ("divergence", "throughput")),
    ],
)
def test_the_shipped_sweeps_of_mlx_make_the_published_tables(
    tmp_path, name, v_types, probes
):
    """
    Length by depth with K and V alike; K and V apart by divergence, speed and memory.
    """
    shipped = read_sweep_file(name, folder=tmp_path, engines=settings_of_engines())
    asked = Request(**shipped)

    assert ("mlx", ("f16", "kv8", "kv4")) == (asked.engine, asked.k_types)
    assert (v_types, probes) == (asked.v_types, asked.probes)
    assert 0 == asked.settings["mlx"].quantized_kv_start
    assert ENGINES["mlx"] is offered(asked)
