"""
Programs from outside that tell the secrets they were given, in every field they write:
none of it is stored or shown.
"""

import html
import json
import re
import shlex
import sys

import fake_openai
import pytest
import telling_evaluation
from calls import called
from injections import put_corpus
from programs import server
from started_sweeps import impatient

from codeneedle.system.secrets import forget_secrets

pytestmark = pytest.mark.slow

KEY = "sk-Zq7Xw4Kd9Rv2Ty6Bn8"
JUDGE = "judge-Hp3Lm5Ws1Fc7Gj"
SHORTEST_SHOWN = 8
"""So many characters of a secret, one after the other, are a part of it."""

FORMS = ("whole", "line", "blank", "three", "often")
FIELDS = [
    *(".choices.0.text", ".choices.0.delta.reasoning_content", ".choices.0.logprobs"),
    *(".choices.0.logprobs.tokens.0", ".choices.0.logprobs.top_logprobs.0.+"),
    *(".choices.0.logprobs.text_offset", ".choices.0.finish_reason", ".choices"),
    *(".usage", ".usage.prompt_tokens", ".usage.+", ".id", ".system_fingerprint"),
    *(".error.message", ".error.type", ".error.code", ".error", ".object"),
    *("Location:", "Set-Cookie:", "Content-Length:", "Content-Type:", "Retry-After:"),
    *("reason", "line", "log"),
]
TOLD = [
    *((place, "whole", ()) for place in FIELDS),
    *((".choices.0.text", how, ()) for how in FORMS[1:]),
    *((".error.message", how, ("refuse=418",)) for how in FORMS),
    *((".error.type", how, ("refuse=418",)) for how in FORMS),
    (".error.code", "whole", ("refuse=418",)),
    (".error", "often", ("refuse=418",)),
    ("reason", "whole", ("refuse=418",)),
    ("Location:", "whole", ("refuse=307",)),
    *(("log", how, ("die-in-round=3",)) for how in FORMS),
    ("log", "whole", ("refuse=418",)),
]
"""Place, form, and faults that bring it to light."""

PARTS = 4
"""Sweeps that share the places: a grid of few types is soon judged."""

BRIEFLY = ("--chunks", "2", "--functions", "2", "--no-more")
"""Each place is told in every reply: more of them take time and tell nothing new."""


def parts_of(secret):
    """All parts of *secret* that would tell it."""
    ends = range(SHORTEST_SHOWN, len(secret) + 1)
    return [secret[end - SHORTEST_SHOWN : end] for end in ends]


def telling(text, *secrets):
    """What *text*, stored or shown, tells of *secrets*, by white space or not."""
    plain = html.unescape(text).replace("<!-- -->", "")
    plain = re.sub(r"\\\\?(?:[nrtfv]|xa0|u2028|u000b)|\\u00a0|\s|\\", "", plain)
    return [part for secret in secrets for part in parts_of(secret) if part in plain]


def leaks(folder, *secrets, but=()):
    """Files below *folder* that tell one of *secrets*; their own are left out."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): found
        for path in files
        if not any(part in path.parts for part in but)
        if (found := telling(path.read_text(errors="replace"), *secrets))
    }


def reports(folder, pairs):
    """All that says something of the run in *folder*, knowing of no secret."""
    (run,) = (each.parent for each in folder.rglob("setup.json"))
    forget_secrets()
    for word in ("grid", "verdict", "table"):
        for form in ((), ("--markdown",), ("--json",)):
            yield called(folder, word, run, *form)
    for pair in pairs:
        yield called(folder, "show", run, pair)
    yield called(folder, "table", run, "--csv")
    yield called(folder, "compare", run, run)
    for word in ("memory", "heatmap", "page", "receipt"):
        yield called(folder, word, run)


def swept(folder, faults, *arguments, **variables):
    """A sweep of servers, each with the faults of its cache type."""
    put_corpus(folder)
    fakes = folder / "fakes.json"
    fakes.write_text(json.dumps(faults))
    words = (
        f"{fake_openai.COMMAND} --port ${{port}} --k ${{k}} --fake echo --fakes {fakes}"
    )
    done = called(
        folder,
        *("sweep", "--engine", "command", "--command", words, "--health", "/health"),
        *("--served-name", fake_openai.MODEL, "--no-evidence-by-memory"),
        *("--corpus", "tiny", "--context", "4096", "--prompt-form", "completion"),
        *("--types", ",".join(dict.fromkeys(["f16", *faults]))),
        *("--api-key-env", "MY_KEY", *arguments),
        **{"MY_KEY": KEY, **variables},
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in {0, 1}, done.stderr
    return done


def swept_and_reported(folder, faults, *arguments, **variables):
    """What such a sweep says, and all reports of it."""
    done = swept(folder, faults, *arguments, **variables)
    return done, *reports(folder, [f"{each}/{each}" for each in faults])


@pytest.mark.parametrize("part", range(PARTS))
def test_what_a_server_tells_of_its_key_is_in_no_file_and_on_no_screen(tmp_path, part):
    """Reports read these files alone; what they show is looked at below."""
    faults = {
        f"t{at}": [f"tells={place}", f"tells-how={how}", *others]
        for at, (place, how, others) in enumerate(TOLD[part::PARTS])
    }
    said = swept(tmp_path, faults, *BRIEFLY)

    assert "***" in said.stderr
    assert [] == telling(said.stdout + said.stderr, KEY)
    # A log holds whatever a server prints.
    assert {} == leaks(tmp_path, KEY, but=("logs",))


def test_what_an_evaluation_tells_of_its_secrets_is_in_no_file_and_on_no_screen(
    tmp_path,
):
    places = {f"t{at}": place for at, place in enumerate(telling_evaluation.PLACES)}
    listed = tmp_path / "places.json"
    listed.write_text(json.dumps(places))
    evaluation = [sys.executable, telling_evaluation.__file__, str(listed), "${out}"]
    said = swept(
        tmp_path,
        {each: [] for each in places},
        *("--probe", "eval", "--eval", shlex.join(evaluation)),
        *("--eval-env", "JUDGE_API_KEY"),
        JUDGE_API_KEY=JUDGE,
    )
    assert "***" in said.stderr
    assert [] == telling(said.stdout + said.stderr, KEY, JUDGE)
    # What it writes itself is kept as it is; its log is not.
    assert {} == leaks(tmp_path, KEY, JUDGE, but=("evaluations",))


def test_what_a_server_answers_freely_is_stored_and_shown_without_its_key(tmp_path):
    """Answers are in the records, and the reference's in what it settles, too."""
    told = {
        name: ["tells=.choices.0.text", f"tells-how={how}"]
        for name, how in zip(("f16", "t1", "t2", "t3"), FORMS, strict=False)
    }
    answered = ("--probe", "generation", "--generation-tokens", "16")

    said = swept_and_reported(tmp_path, told, *answered)

    (settled,) = tmp_path.rglob("settled.json")
    assert "***" in settled.read_text()
    for each in said:
        assert [] == telling(each.stdout + each.stderr, KEY), each.args
    for name in told:
        shown = called(tmp_path, "show", settled.parent, f"{name}/{name}", "steps")
        assert (0, []) == (shown.returncode, telling(shown.stdout, KEY)), shown.stderr
    assert {} == leaks(tmp_path, KEY, but=("logs",))


OF_LLAMA = {
    "f32": ("tells=/v1/models",),
    "bf16": ("tells=/health",),
    "q8_0": ("tells=/completion",),
    "q5_1": ("tells-error=/completion",),
    "q4_0": ("tells=log",),
    "iq4_nl": ("tells=log", "die-in-round=3"),
}
"""Faults of a llama-server, by cache type."""

COUNTING = [
    *(f"{how}=/apply-template" for how in ("tells", "tells-error")),
    *("tells-error=/tokenize", "tells=/v1/models", "tells-error=/health"),
]
"""Those of the one that counts tokens and renders the chat template."""


NEVER_READY = {"tells=/v1/models", "tells-error=/health"}


def pair_of(cell):
    """The pair of a *cell* that is named as files are."""
    return cell.replace("-", "/")


def llama_swept(folder, form, faults):
    """A sweep of fakes of llama-server with *faults* by cell; and the keys they got."""
    put_corpus(folder)
    keys = folder.parent / f"{folder.name}.keys"
    cells = {cell: [*of_cell, f"key-in={keys}"] for cell, of_cell in faults.items()}
    measured = [cell for cell in faults if cell != "counting"]
    done = impatient(
        folder,
        *("sweep", "--llama-server", server(folder, cells), "--corpus", "tiny"),
        *("--pairs", ",".join(["f16/f16", *(pair_of(cell) for cell in measured)])),
        *("--context", "4096", "--prompt-form", form, "--no-calibration"),
        silence_s=30.0,
        load_s=3.0,
        # Under another name, or refusing to say how it is, it never gets ready.
        cells=[each for each in faults if {*faults[each]} & NEVER_READY],
    )
    assert "Traceback" not in done.stderr
    return done, keys.read_text().split()


def test_what_llama_server_tells_of_its_key_is_in_no_file_and_on_no_screen(tmp_path):
    folder = tmp_path / "swept"
    folder.mkdir()
    cells = {f"{each}-{each}": faults for each, faults in OF_LLAMA.items()}
    done, keys = llama_swept(folder, "completion", cells)
    said = [done, *reports(folder, [f"{each}/{each}" for each in OF_LLAMA])]

    assert len(OF_LLAMA) == len({*keys})
    for each in said:
        assert [] == telling(each.stdout + each.stderr, *keys), each.args
    # A log holds whatever a server prints.
    assert {} == leaks(folder, *keys, but=("logs",))


@pytest.mark.parametrize("fault", COUNTING)
def test_what_a_server_tells_that_renders_the_chat_template_is_on_no_screen(
    tmp_path, fault
):
    folder = tmp_path / "swept"
    folder.mkdir()
    done, keys = llama_swept(folder, "chat", {"counting": [fault]})

    assert keys
    assert [] == telling(done.stdout + done.stderr, *keys)
    assert {} == leaks(folder, *keys, but=("logs",))


def test_an_answer_that_is_only_printed_tells_no_key_either(tmp_path, nano):
    (tmp_path / "prompt.txt").write_text("hello\n")
    faults = {
        "f16-f16": ["tells=/completion"],
        "q8_0-q8_0": ["tells-error=/completion"],
        "bf16-bf16": ["tells=log", "die-in-round=1"],
    }
    keys = tmp_path.parent / f"{tmp_path.name}.keys"
    cells = {cell: [*of_cell, f"key-in={keys}"] for cell, of_cell in faults.items()}
    pairs = ",".join(map(pair_of, faults))
    binary = ("--llama-server", server(tmp_path, cells), "--context", "4096")

    done = called(tmp_path, "ask", pairs, "prompt.txt", *binary)

    assert 1 == done.returncode, done.stderr
    assert "***" in done.stdout
    assert [] == telling(done.stdout + done.stderr, *keys.read_text().split())
