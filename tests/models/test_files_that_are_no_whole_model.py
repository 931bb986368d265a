"""Pieces of a model are to be joined, downloads to end, and other GGUF files named."""

import re
import shlex
import subprocess

import pytest
from gguf_files import SHAPE, gguf_bytes, write_gguf

from codeneedle.errors import WeightsUnusable
from codeneedle.models.weights import read_weights_from_headers, slug_from_path

DATA = gguf_bytes({**SHAPE, "tokenizer.chat_template": "x" * 3_000})


def refusal_of(path):
    with pytest.raises(WeightsUnusable) as refused:
        read_weights_from_headers(path)
    return refused.value


def cut(folder, names, data=DATA):
    """*data* in files of these *names*, in order."""
    size = -(-len(data) // len(names))
    paths = [folder / name for name in names]
    for at, path in enumerate(paths):
        path.write_bytes(data[at * size : (at + 1) * size])
    return paths


NAMES = {
    "part1of2": ["m.gguf.part1of2", "m.gguf.part2of2"],
    "twelve": [f"m.gguf.part{at}of12" for at in range(1, 13)],
    "inside": ["m.part1of2.gguf", "m.part2of2.gguf"],
    "part1": ["m.gguf.part1", "m.gguf.part2"],
    "part-aa": ["m.gguf.part-aa", "m.gguf.part-ab"],
    "split -b": ["m.gguf.aa", "m.gguf.ab", "m.gguf.ac"],
    "split without a dot": ["m.ggufaa", "m.ggufab"],
    "split-a": ["m.gguf-split-a", "m.gguf-split-b"],
    "numbers": ["m.gguf.001", "m.gguf.002"],
    "from zero": ["m.gguf.00", "m.gguf.01"],
    "of a split model": ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"],
    "capitals": ["m.GGUF.Part1Of2", "m.GGUF.Part2Of2"],
}


@pytest.mark.parametrize("names", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("which", [0, -1], ids=["the first", "the last"])
def test_pieces_are_to_be_joined_by_a_command_that_does_it(tmp_path, names, which):
    paths = cut(tmp_path, names)
    refused = refusal_of(paths[which])
    command = re.fullmatch("Join them: (cat .*)", refused.hint)

    is_read_first = names == NAMES["of a split model"]
    assert f"part {1 if is_read_first else which % len(names) + 1} of " in str(refused)
    assert "download" not in f"{refused} {refused.hint}"
    assert [str(path) for path in paths] == shlex.split(command[1])[1:-2]
    subprocess.run(["/bin/sh", "-c", command[1]], check=True)
    whole = shlex.split(command[1])[-1]
    assert 4 == read_weights_from_headers(tmp_path / whole).layers


def test_pieces_of_zeros_are_pieces(tmp_path):
    """Large models have them; it is no download that has only just begun."""
    data = gguf_bytes({**SHAPE, "zeros": bytes(1_000_000).decode()})
    first, second = cut(tmp_path, NAMES["part1of2"], data)

    assert "part 2 of 2" in str(refusal_of(second))
    assert "part 1 of 2" in str(refusal_of(first))


def test_a_piece_whose_others_are_missing_says_which(tmp_path):
    (path,) = cut(tmp_path, ["m.gguf.part2of3"], DATA[:1_000])
    refused = refusal_of(path)

    assert "part 2 of 3 of m.gguf" in str(refused)
    assert "Fetch 2 parts (1, 3) of m.gguf" in refused.hint


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.gguf.aa", "the other parts"),
        ("m.gguf.ab", "the first part"),
        ("m.gguf.part1", "1 part (2)"),
    ],
)
def test_a_piece_that_is_alone_asks_for_the_others(tmp_path, name, words):
    (path,) = cut(tmp_path, [name], DATA[:1_000])

    assert words in refusal_of(path).hint


def test_a_whole_that_is_missing_is_told_by_its_pieces(tmp_path):
    paths = cut(tmp_path, NAMES["part1of2"])

    for asked in (tmp_path / "m.gguf", tmp_path):
        assert f"cat {paths[0]} {paths[1]} > " in refusal_of(asked).hint


def test_a_split_model_that_lacks_a_part_names_it(tmp_path):
    path = write_gguf(tmp_path / "m-00001-of-00002.gguf")
    refused = refusal_of(path)

    assert "m-00002-of-00002.gguf" in str(refused)
    assert "download" not in f"{refused} {refused.hint}"


def test_a_part_of_a_split_model_that_is_short_was_not_cut_by_size(tmp_path):
    data = gguf_bytes({**SHAPE, "split.count": 2})
    cut(tmp_path, NAMES["of a split model"][:1], data[:-1])
    write_gguf(tmp_path / NAMES["of a split model"][1])

    refused = refusal_of(tmp_path / NAMES["of a split model"][0])
    assert "cut short" in str(refused)


UNFINISHED = [
    *("m.gguf.incomplete", "0123abcd.incomplete", "m.gguf.part", "m.crdownload"),
    *("m.gguf.partial", "sha256-00-partial", "m.gguf.downloadInProgress"),
]
"""Names of files that are being fetched."""


@pytest.mark.parametrize(
    "data", [DATA[:500], bytes(500), b""], ids=["a beginning", "zeros", "nothing"]
)
def test_what_a_download_has_so_far_is_called_that(tmp_path, data, golden):
    told = set()
    for name in UNFINISHED:
        (tmp_path / name).write_bytes(data)
        refused = refusal_of(tmp_path / name)
        told.add((str(refused).replace(name, "NAME"), refused.hint))

    assert golden == sorted(told)


@pytest.mark.parametrize("name", ["m.gguf.part1of1", "m.gguf.part", "my-part-a.gguf"])
def test_a_whole_file_is_read_whatever_it_is_called(tmp_path, name):
    (tmp_path / name).write_bytes(DATA)

    assert 4 == read_weights_from_headers(tmp_path / name).layers


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x02\0\0\0\x13\0\0\0blk.0.attn_k.weight", "an importance matrix"),
        (b"algg\x01\0\0\0", "a LoRA adapter"),
    ],
)
def test_old_formats_of_other_files_are_named(tmp_path, start, words):
    (tmp_path / "imatrix.dat").write_bytes(start + bytes(100))

    assert words in str(refusal_of(tmp_path / "imatrix.dat"))


def test_an_archive_is_no_piece(tmp_path):
    (tmp_path / "m.gguf.gz").write_bytes(b"\x1f\x8b" + bytes(100))

    assert "a gzip archive" in str(refusal_of(tmp_path / "m.gguf.gz"))


NO_TENSORS = {"tensors": 0}
OTHERS = [
    ({"general.type": "imatrix", "imatrix.chunk_count": 1}, {}, "importance matrix"),
    ({"imatrix.datasets": ["a"]}, NO_TENSORS, "importance matrix"),
    ({"general.type": "adapter"}, {}, "LoRA adapter"),
    ({"adapter.type": "lora"}, {}, "LoRA adapter"),
    ({"general.type": "mmproj"}, {}, "projector"),
    ({"general.architecture": "clip"}, {}, "projector"),
    ({"general.architecture": "controlvector"}, {}, "control vector"),
    ({"general.architecture": "flux"}, {}, "diffusion model of pictures"),
    ({"general.architecture": "sdxl"}, {}, "diffusion model of pictures"),
    ({**SHAPE, "general.architecture": "llada"}, {}, "diffusion model of text"),
    ({"general.architecture": "eagle3"}, {}, "drafts tokens"),
    ({"tokenizer.ggml.tokens": ["a"]}, NO_TENSORS, "a vocabulary alone"),
    ({**SHAPE}, NO_TENSORS, "a vocabulary alone"),
    ({"general.name": "vae"}, {}, "without an architecture"),
    ({}, {}, "without an architecture"),
]


@pytest.mark.parametrize(("keys", "changes", "words"), OTHERS)
def test_a_gguf_that_is_no_language_model_is_said_to_be_what_it_is(
    tmp_path, keys, changes, words
):
    path = write_gguf(tmp_path / "m.gguf", keys, **changes)
    write_gguf(tmp_path / "good.GGUF")
    refused = refusal_of(path)

    assert words in str(refused)
    assert "Models beside it: good.GGUF." == refused.hint


def test_a_folder_offers_language_models_alone(tmp_path):
    for at, (keys, changes, _) in enumerate(OTHERS):
        write_gguf(tmp_path / f"{at}.gguf", keys, **changes)
    for name in ("Model.mmproj-f16.gguf", "model-imatrix.gguf", "U.GGUF", "v.gguf"):
        write_gguf(tmp_path / name)
    cut(tmp_path, NAMES["inside"])

    assert f"In it: {tmp_path}/U.GGUF, {tmp_path}/v.gguf." == refusal_of(tmp_path).hint
    assert "Did you mean 'v.gguf'?" == refusal_of(tmp_path / "w.gguf").hint


def test_an_ending_in_capitals_is_an_ending(tmp_path):
    path = write_gguf(tmp_path / "U.GGUF")

    assert path == read_weights_from_headers(path).path
    assert "u" == slug_from_path(path)
