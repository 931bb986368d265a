"""What masks the secrets that a program from outside was given, and what finds them."""

from dataclasses import replace

import msgspec
import pytest
from made_records import made_record

from codeneedle.errors import CellError
from codeneedle.probes.evaluation.readers import read_samples_of_known_tool
from codeneedle.records.store import encode_masked_and_sealed
from codeneedle.system.secrets import (
    SHORTEST_IN_ANSWERS,
    has_known_secret,
    mask_text,
    masked_values,
    masking_errors,
    register_secrets_to_mask,
    secret_name_in,
    secrets_of,
)

KEY = "sk-judge-0123456789abcdef"
STARS = "*" * len(KEY)


@pytest.fixture(autouse=True)
def _known():
    register_secrets_to_mask(KEY)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"bad key {KEY}!", f"bad key {STARS}!"),
        (f"{KEY[:9]}\n{KEY[9:]}", f"{'*' * 9}\n{'*' * (len(KEY) - 9)}"),
        (f"{KEY[:9]} {KEY[9:]}", f"{'*' * 9} {'*' * (len(KEY) - 9)}"),
        (f"cut {KEY[:8]}", f"cut {'*' * 8}"),
        (f"cut {KEY[:8]}… there", f"cut {'*' * 8}… there"),
        (f"{KEY[-9:]} of a tail", f"{'*' * 9} of a tail"),
        ("no key here", "no key here"),
    ],
)
def test_a_known_secret_is_masked_however_it_is_broken_or_cut(text, expected):
    assert expected == mask_text(text)


@pytest.mark.parametrize(
    "key",
    [*("sk\\nine\\tail", 'a "quoted" key', "pass wörd-éàü12", "--------"), "12345678"],
)
@pytest.mark.parametrize("white", ["", "\n", "\u00a0\u2028\x0b"])
def test_a_key_of_any_letters_is_found_in_json_whatever_breaks_it(key, white):
    register_secrets_to_mask(key)
    stored = msgspec.json.encode({"reply": f"x{key[:4]}{white}{key[4:]}y"})

    assert has_known_secret(stored)
    assert key[4:] not in masked_values(msgspec.json.decode(stored))["reply"]


def test_a_placeholder_that_is_a_word_is_masked_in_errors_and_in_no_answer():
    register_secrets_to_mask("none")

    assert ["**** left", "none left"] == [
        mask_text("none left"),
        mask_text("none left", shortest=SHORTEST_IN_ANSWERS),
    ]


def test_a_password_in_an_address_is_a_secret_by_itself():
    address = "http://me:hunter22@judge"

    assert [address, "hunter22"] == secrets_of({"JUDGE_URL": address, "HOME": "/h"})


def test_an_error_tells_no_secret_in_message_hint_or_log():
    with pytest.raises(CellError) as caught, masking_errors():
        raise CellError(f"a {KEY}", hint=f"b {KEY}", log_excerpt=(f"c {KEY}",))

    error = caught.value
    assert (f"a {STARS}", f"b {STARS}", (f"c {STARS}",)) == (
        str(error),
        error.hint,
        error.log_excerpt,
    )


@pytest.mark.parametrize("key", [KEY, f"{KEY[:7]}\n{KEY[7:]}"], ids=["whole", "broken"])
def test_no_record_holds_a_known_secret_in_any_text(key):
    record = made_record("f16/f16", ())
    record = replace(
        record,
        reason=key,
        log_excerpt=(key,),
        command=(key,),
        observation={key: [key, {"text": f"a {key} b"}]},
    )

    assert KEY.encode() not in encode_masked_and_sealed(record).replace(b"\\n", b"")


@pytest.mark.parametrize("field", ["id", "group", "error", "prompt_sha"])
def test_no_sample_of_an_evaluation_holds_a_known_secret(field, tmp_path):
    line = {"id": "a", "score": 1, field: "x" * 190 + KEY}
    (tmp_path / "results.jsonl").write_bytes(msgspec.json.encode(line))
    _, samples = read_samples_of_known_tool(tmp_path)

    assert KEY[:8] not in str(samples)


def test_two_results_of_one_sample_are_told_without_the_secret(tmp_path):
    line = msgspec.json.encode({"id": KEY, "score": 1})
    (tmp_path / "results.jsonl").write_bytes(line + b"\n" + line)
    with pytest.raises(CellError) as caught:
        read_samples_of_known_tool(tmp_path)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "--password=autobahn",
        "--token nullbyte",
        "--password=-x",
        "--token=$ecret",
        "--token 12345678",
        "HF_TOKEN=12345678",
        "--api-key=none-of-yours",
        "--token=trueblue",
    ],
)
def test_a_secret_is_found_however_its_value_begins(text):
    assert secret_name_in(f"serve {text} --port 1") != ""


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 8192",
        "--n-token=512",
        "--api-key $API_KEY",
        "--api-key=${key}",
        "--password --other",
        "--override-kv tokenizer.ggml.add_bos_token=bool:false",
        '{"add_token": null}',
    ],
)
def test_counts_variables_and_words_are_no_secrets(text):
    assert secret_name_in(f"serve {text} --port 1") == ""


@pytest.mark.parametrize("unit", ["a=", "a ", "a:", "-", "x://", " ", "token=none "])
def test_a_long_command_is_searched_in_linear_time(unit):
    """One in quadratic time would take minutes."""
    assert secret_name_in(unit * (200_000 // len(unit))) == ""
