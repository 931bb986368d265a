"""What a user asks for: pages of a request, and sweep files."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_plans import EVERY_KEY
from msgspec.structs import replace
from outcomes import outcome

from codeneedle.corpora.registry import CorpusFile, read_corpus_file
from codeneedle.errors import BadInput, RequestError, UnknownName
from codeneedle.models.pretrained import SMOLLM2, path_unless_built_in
from codeneedle.probes.divergence.probe import DivergenceSettings
from codeneedle.probes.prompts import PromptForm
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.probes.throughput.probe import ThroughputSettings
from codeneedle.records.store import Store
from codeneedle.sweep.request import (
    MOST_PAGES,
    TABLES,
    Request,
    find_run_folder,
    join_requests,
    known_sweeps,
    merge_into_sweep_file,
    pages,
    parse_request_toml,
    read_sweep,
    request_toml_text,
    with_options,
)

SWA = {"swa": ("--swa-full",)}
BOTH = {"plain": (), **SWA}


def names(**asked):
    """What the pages of such a request are called."""
    return [name for name, _ in pages(Request(**asked))]


def test_pages_are_the_product_of_all_axes():
    asked = Request(
        models=("a.gguf", "b.gguf"),
        contexts=(4096, 8192, 4096),
        rotation=("on", "off"),
        variants=BOTH,
    )
    found = pages(asked)

    expected = [*[Path("a.gguf")] * 8, *[Path("b.gguf")] * 8]
    assert expected == [page.model for _, page in found]
    assert 8 == len({name for name, _ in found})
    assert "context-4096+rotation-on+plain" == found[0][0]
    name, last = found[-1]
    assert "context-8192+rotation-off+swa" == name
    assert (8192, False) == (last.context, last.rotates)


def test_a_sweep_of_more_grids_than_anybody_waits_for_is_refused_at_once(golden):
    """Each would ask the engine for its sizes: a third of a second for each pair."""
    contexts = tuple(range(1024, 1024 + 3000))
    models = tuple(f"{number}.gguf" for number in range(3000))
    rotation = ("on", "off")
    asked = Request(models=models, contexts=contexts, rotation=rotation)

    assert MOST_PAGES == len(pages(Request(contexts=contexts[:MOST_PAGES])))
    with pytest.raises(BadInput) as caught:
        pages(asked)
    assert golden == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [""]),
        ({"models": ("a.gguf", "b.gguf")}, ["", ""]),
        ({"contexts": (4096,)}, [""]),
        ({"contexts": (4096, 8192)}, ["context-4096", "context-8192"]),
        ({"rotation": ("on",)}, [""]),
        ({"rotation": ("off",)}, ["rotation-off"]),
        ({"rotation": ("on", "off")}, ["rotation-on", "rotation-off"]),
        ({"variants": SWA}, [""]),
        ({"variants": BOTH}, ["plain", "swa"]),
        (
            {"contexts": (4096, 8192), "rotation": ("off",)},
            ["context-4096+rotation-off", "context-8192+rotation-off"],
        ),
    ],
)
def test_a_page_is_called_after_what_pages_differ_in(asked, expected):
    assert expected == names(**asked)


def test_a_page_has_all_of_its_request_and_its_own_arguments_last():
    """llama-server takes the last of two, so a variant may change what all have."""
    variants = {"plain": (), "t": ("-t", "1")}
    asked = Request(contexts=(4096, 8192), seed=7, prefill_no_think=True)

    assert [("-t", "2"), ("-t", "2", "-t", "1")] == [
        page.server_args
        for _, page in pages(Request(server_args=("-t", "2"), variants=variants))
    ]
    assert [("", Request())] == pages(Request())
    assert ("context-4096", replace(asked, contexts=(4096,))) == pages(asked)[0]


# Sweep files


SHIPPED = [
    *("asymmetric", "corners", "gradient", "ik-llama", "koboldcpp", "kv-grid"),
    *("lm-studio", "mlx-niah", "mlx-server", "mlx-split", "ollama", "price"),
    *("published", "retrieval-depths", "row", "sglang", "tabbyapi", "vllm"),
]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def write(tmp_path):
    """Writes ``sweeps/NAME.toml`` and returns its folder."""

    def written(text, *, name="mine"):
        folder = tmp_path / "sweeps"
        folder.mkdir(exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode()
        (folder / f"{name}.toml").write_bytes(data)
        return folder

    return written


def refused(folder, name="mine"):
    """What is said of the sweep file *name*, and its hint."""
    with pytest.raises(BadInput) as caught:
        read_sweep(name, folder=folder)
    assert 2 == caught.value.exit_code
    return str(caught.value), caught.value.hint


def test_every_key_reaches_the_request(write):
    asked = read_sweep("mine", folder=write(EVERY_KEY))
    models = ("a.gguf", "~/b.gguf", "smollm2", "needle-nano")
    expected = Request(
        corpus="http_server",
        models=models,
        types=("q4_0", "q8_0"),
        v_types=("f16",),
        probes=("throughput", "recall"),
        contexts=(4096, 8192, 4096),
        rotation=("on", "off"),
        variants=BOTH,
        prompt_form=PromptForm.CHAT,
        prefill_no_think=True,
        fit=False,
        seed=7,
        server_args=("-t", "1"),
        divergence=DivergenceSettings(
            contexts=(512, 1024), chunks=(3,), file=Path.home() / "wiki.txt"
        ),
        throughput=ThroughputSettings(depths=(0, 256), repetitions=2),
    )

    assert expected == asked
    assert (("q8_0", "q4_0"), ("f16",)) == (asked.grid_k_types, asked.grid_v_types)
    weights = (Path("a.gguf"), Path.home() / "b.gguf", SMOLLM2.path, None)
    assert weights == tuple(map(path_unless_built_in, models))
    assert asked == parse_request_toml(request_toml_text(asked), source="again")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# nothing\n", Request()),
        (b"\xef\xbb\xbfseed = 7\n", Request(seed=7)),
        (
            "types = ['q4_0', 'q8_0']\nk_types = ['f16']",
            Request(k_types=("f16",), types=("q4_0", "q8_0")),
        ),
        (
            "types = ['q4_0', 'q8_0']\nv_types = ['f16']",
            Request(types=("q4_0", "q8_0"), v_types=("f16",)),
        ),
    ],
    ids=["nothing", "byte order mark", "K", "V"],
)
def test_what_a_file_leaves_out_is_as_without_one(write, text, expected):
    assert expected == read_sweep("mine", folder=write(text))


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("typs = []", "'typs'", "'types'"),
        ("model = ['a.gguf']", "'model'", "'models'"),
        ("[divergence]\nchunk = 3", "'chunk' in [divergence]", "'chunks'"),
        ("[throughput]\ndepth = [0]", "'depth' in [throughput]", "'depths'"),
        ("[throughputs]\ndepths = [0]", "'throughputs'", "'throughput'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(write, text, key, nearest):
    said, hint = refused(write(text))

    assert said.endswith(f"mine.toml: unknown key {key}")
    assert f"Did you mean {nearest}?" == hint


@pytest.mark.parametrize("table", TABLES)
def test_the_table_of_each_probe_and_engine_refuses_unknown_keys(write, table):
    said, _ = refused(write(f"[{table}]\nx-y-z = 1"))

    assert f"'x-y-z' in [{table}]" == said.rpartition(" key ")[2]


CANNOT_BE = {
    "types, no list": ("types = 'q8_0'", "$.types"),
    "types, a number": ("types = [8]", "$.types[0]"),
    "corpus, a number": ("corpus = 3", "$.corpus"),
    "contexts, one too small": ("contexts = [4096, 8]", "$.contexts[1]"),
    "contexts, a list": ("contexts = [[4096]]", "$.contexts[0]"),
    "fit, a word": ("fit = 'yes'", "$.fit"),
    "seed, a fraction": ("seed = 1.5", "$.seed"),
    "prompt form, unknown": ("prompt_form = 'chatty'", "$.prompt_form"),
    "divergence, no table": ("divergence = 3", "$.divergence"),
    "chunks, none": ("[divergence]\nchunks = [0]", "$.divergence.chunks"),
    "chunks, no list": ("[divergence]\nchunks = 8", "$.divergence.chunks"),
    "chunks, many": ("[divergence]\nchunks = [99999999999]", "$.divergence.chunks"),
    "depths, negative": ("[throughput]\ndepths = [-1]", "$.throughput.depths[0]"),
    "repetitions, none": ("[throughput]\nrepetitions = 0", "$.throughput.repetitions"),
    "repetitions, many": (
        "[throughput]\nrepetitions = 9999999999",
        "$.throughput.repetitions",
    ),
    "retrieval, many": (
        "[retrieval]\nquestions = 999999999",
        "$.retrieval.questions",
    ),
    "reuse, many": ("[reuse]\nquestions = 999999999", "$.reuse.questions"),
    "a variant, no list": ("[variants]\nswa = '--swa-full'", "$.variants"),
    "variants, no table": ("variants = ['--swa-full']", "$.variants"),
}


@pytest.mark.parametrize(("text", "key"), CANNOT_BE.values(), ids=CANNOT_BE)
def test_a_value_that_cannot_be_names_its_key(write, text, key, golden):
    said, hint = refused(write(text))

    assert f"`{key}" in said
    assert golden == (said, hint)


@pytest.mark.parametrize("name", ["a/b", "../out", "flash off", "", ".hidden", "a+b"])
def test_a_variant_is_called_like_a_folder(write, name):
    said, hint = refused(write(f"[variants]\n'{name}' = ['-t', '1']"))

    assert f"'{name}' in [variants]" in said
    assert "letters" in hint


@pytest.mark.parametrize(
    "data",
    [
        b"types = [",
        b"types = []\ntypes = []",
        b"\xff\xfe\x00",
        b"seed = " + b"9" * 5000,
        b"types = " + b"[" * 5000,
        b"seed = 9999-99-99",
    ],
    ids=["half", "twice", "bytes", "digits", "deep", "date"],
)
def test_a_file_that_is_no_toml_is_refused(write, data):
    said, hint = refused(write(data))

    assert "mine.toml: " in said
    assert hint


def test_a_folder_is_no_sweep_file(tmp_path, golden):
    (tmp_path / "mine").mkdir()
    (tmp_path / "other.toml").mkdir()

    assert SHIPPED == known_sweeps(tmp_path)
    with pytest.raises(UnknownName):
        read_sweep("mine", folder=tmp_path)
    with pytest.raises(BadInput) as caught:
        read_sweep("other", folder=tmp_path)
    assert golden == str(caught.value)
    for path in (tmp_path / "mine", tmp_path / "other.toml", tmp_path / "no.toml"):
        with pytest.raises(BadInput) as caught:
            read_sweep(str(path))
        assert golden == (str(caught.value), caught.value.hint)


def test_an_unknown_sweep_is_answered_with_the_nearest(write):
    folder = write("seed = 7", name="price")

    assert 7 == read_sweep("price", folder=folder).seed
    others = [name for name in SHIPPED if name != "price"]
    assert ["price", *others] == known_sweeps(folder)
    write("", name="nightly")
    for typo, meant in (("kvgrid", "kv-grid"), ("nightlee", "nightly")):
        with pytest.raises(UnknownName) as caught:
            read_sweep(typo, folder=folder)
        assert f"unknown sweep '{typo}'" == str(caught.value)
        assert f"Did you mean '{meant}'?" == caught.value.hint


def test_rotation_is_on_or_off(golden):
    with pytest.raises(UnknownName):
        with_options(Request(), {"rotation": ("of",)})
    with pytest.raises(UnknownName) as caught:
        parse_request_toml("rotation = ['on', 'of']", source="mine")
    assert golden == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_sweep_is_read_by_its_name_in_any_folder(tmp_path, name):
    shipped = read_sweep(str(ROOT / f"codeneedle/sweep/files/{name}.toml"))

    assert shipped == read_sweep(name, folder=tmp_path)
    assert shipped.grid or not shipped.types


def test_rows_of_the_table_of_models_are_forced_at_every_speed(tmp_path):
    """Lines that were read are not compared with lines that were forced."""
    row = read_sweep("row", folder=tmp_path)
    recall = row.settings_by_name("recall", RecallSettings)

    assert (Way.FORCE,) == recall.way


# The sweep file of a run folder


STORED = Request(
    corpus="tiny",
    types=("f16", "q8_0"),
    probes=("recall", "throughput"),
    throughput=ThroughputSettings(depths=(0, 256)),
)


def test_a_run_folder_keeps_what_all_sweeps_of_it_asked_for(tmp_path):
    store = Store(tmp_path)
    divergence = DivergenceSettings(chunks=(3,), file=tmp_path / "wiki.txt")
    wanted = replace(
        STORED,
        models=("a.gguf",),
        types=("q4_0", "f16"),
        probes=("divergence",),
        divergence=divergence,
        throughput=None,
    )

    merge_into_sweep_file(STORED, store)
    merge_into_sweep_file(wanted, store)
    grown = read_sweep(str(tmp_path))

    assert ("f16", "q8_0", "q4_0") == grown.types
    assert ("recall", "throughput", "divergence") == grown.probes
    assert (("a.gguf",), divergence) == (grown.models, grown.divergence)
    assert STORED.throughput == grown.throughput
    assert grown == join_requests(grown, grown)


def test_axes_of_their_own_grow_apart():
    apart = replace(STORED, types=(), k_types=("f16",), v_types=("q4_0", "f16"))
    grown = join_requests(STORED, apart)

    assert ((), ("f16", "q8_0")) == (grown.types, grown.grid_k_types)
    assert ("f16", "q8_0", "q4_0") == grown.grid_v_types
    assert () == join_requests(Request(), Request()).types


def test_a_run_folder_is_known_by_its_path_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sweeps" / "a" / "b"
    folder.mkdir(parents=True)

    for name in ("sweeps/a/b", f"{folder}/", "./sweeps/a/../a/b"):
        assert Path("sweeps/a/b") == find_run_folder(name)
    monkeypatch.chdir(folder.parent)
    assert folder == find_run_folder("./b")
    for name in ("b", "sweeps/none", "../a/b/sweep.toml"):
        assert find_run_folder(name) is None


# Laws of the files that users write


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
    ),
    max_leaves=6,
)
READERS = {
    "sweep": (
        lambda path: read_sweep(path.stem, folder=path.parent),
        list(Request.__struct_fields__),
    ),
    "corpus": (read_corpus_file, [field.name for field in fields(CorpusFile)]),
}


def toml(value):
    """*value* as TOML, tables inline."""
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{toml(key)} = {toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@pytest.mark.parametrize("kind", READERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_table_is_read_or_refused_with_a_hint(tmp_path, kind, data):
    read, keys = READERS[kind]
    names = st.sampled_from(keys) | TEXT
    table = data.draw(st.dictionaries(names, VALUES, max_size=5))
    path = tmp_path / "x.toml"
    lines = [f"{toml(key)} = {toml(value)}\n" for key, value in table.items()]
    path.write_text("".join(lines), encoding="utf-8")

    assert table == tomllib.loads("".join(lines))
    if not isinstance(outcome(read, path), RequestError):
        assert table.keys() <= set(keys)


# Options of probes


@pytest.mark.parametrize(
    ("probe", "field", "value"),
    [
        ("divergence", "contexts", (1,)),
        ("divergence", "chunks", (0,)),
        ("throughput", "depths", (-5,)),
        ("throughput", "repetitions", 0),
        ("throughput", "repetitions", "x"),
    ],
)
def test_a_setting_that_cannot_be_names_its_option(probe, field, value, golden):
    with pytest.raises(BadInput) as caught:
        with_options(Request(), {probe: {field: value}})

    assert golden == str(caught.value)


def test_options_of_a_probe_replace_single_settings():
    stored = Request(
        divergence=DivergenceSettings(chunks=(3,), contexts=(512,)),
        throughput=ThroughputSettings(depths=(0,)),
    )

    found = with_options(stored, {"divergence": {"chunks": ("4",), "file": "~/a.txt"}})

    assert stored.throughput == found.throughput
    assert found.divergence == DivergenceSettings(
        chunks=(4,), contexts=(512,), file=Path.home() / "a.txt"
    )


def test_a_sweep_file_that_misspells_a_model_is_refused(golden):
    with pytest.raises(BadInput) as caught:
        parse_request_toml("models = ['smolm']", source="mine")

    assert golden == (str(caught.value), caught.value.hint)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pairs": ["q8_0/q4_0", "f16/f16"]}, ["q8_0/q4_0", "f16/f16"]),
        ({"types": ["f16", "q4_0"], "same": True}, ["f16/f16", "q4_0/q4_0"]),
        ({"types": ["q4_0"], "k_types": ["f16"]}, ["f16/q4_0"]),
    ],
)
def test_a_grid_is_whole_or_of_chosen_pairs(options, expected):
    assert expected == list(map(str, with_options(Request(), options).grid))


def test_rows_and_columns_are_those_of_the_chosen_pairs():
    request = with_options(Request(), {"pairs": ["q8_0/q4_0", "f16/f16"]})

    assert (("f16", "q8_0"), ("f16", "q4_0")) == (
        request.grid_k_types,
        request.grid_v_types,
    )


def test_options_of_the_grid_overrule_all_that_a_file_says_of_it():
    stored = Request(pairs=("f16/f16", "q8_0/q8_0"))

    assert 4 == len(with_options(stored, {"types": ["f16", "q4_0"]}).grid)
    assert 1 == len(with_options(stored, {"k_types": ["f16"], "v_types": ["f16"]}).grid)
    same = with_options(Request(types=("f16", "q4_0")), {"same": True})
    assert 2 == len(same.grid)


@pytest.mark.parametrize(
    "options",
    [
        {"pairs": ["f16"]},
        {"pairs": ["f16/f16"], "types": ["f16"]},
        {"same": True, "k_types": ["f16"]},
    ],
    ids=" and ".join,
)
def test_pairs_that_cannot_be_are_refused(options, golden):
    with pytest.raises(BadInput) as caught:
        with_options(Request(), options)
    assert golden == str(caught.value)


def test_chosen_pairs_grow_by_the_pairs_of_later_sweeps():
    grown = join_requests(
        Request(pairs=("f16/f16", "q8_0/q4_0")), Request(types=("q8_0",))
    )

    assert ("f16/f16", "q8_0/q4_0", "q8_0/q8_0") == grown.pairs
    assert () == grown.types


@pytest.mark.parametrize(
    ("name", "option"),
    [("smollm2", "--model smollm2"), ("q4_0", "--types q8_0,q4_0")],
)
def test_a_name_of_another_kind_is_answered_by_its_option(tmp_path, name, option):
    """As of ``sweep --types q8_0 q4_0``, whose list has a blank for a comma."""
    with pytest.raises(BadInput) as caught:
        read_sweep(name, folder=tmp_path)

    assert option in caught.value.hint
