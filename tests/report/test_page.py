"""The page: one file, no request, hostile text stays text, and a browser shows it."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_grids import lossy_grid, whole_grid
from made_records import failed_record, made_run, made_setup
from made_retrieval import made_texts, retrieval_record, right

from codeneedle.records.record import Run, Status
from codeneedle.report.compare import NOTHING_SHARED
from codeneedle.report.page import page

pytestmark = pytest.mark.slow  # every page has pictures

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"


def pair_flags(pair):
    return f"-ctk {pair.k} -ctv {pair.v}"


def asks_for(engine):
    """Pairs in the words of *engine*."""
    return lambda pair: f"{engine}: {pair_flags(pair)}"


def lossy(pair, at):
    return 20 - (3 if pair.k == "q4_0" else at % 2)


@pytest.fixture(scope="module")
def run():
    """Nine pairs, of which one failed with a hostile reason, under a hostile name."""
    setup = made_setup(
        types_k=("bf16", "q8_0", "q4_0"), types_v=("bf16", "q8_0", "q4_0")
    )
    broken = failed_record("q8_0/q4_0", Status.OUT_OF_MEMORY, HOSTILE)
    return replace(made_run(lossy, setup=setup, failed=[broken]), name=HOSTILE)


@pytest.fixture(scope="module")
def html(run):
    """Its page, beside a second run."""
    other = replace(made_run(lossy), name="second/run")
    return page([run, other], None, asks_for)


def test_it_is_one_file_that_asks_for_nothing(html):
    """Charts are inside of it."""
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)

    assert not re.search(
        r"<[^>]*(src=\"(?!data:)|srcset=\"(?!data:)|href=\"[^#]|url\([^#])", markup
    )
    assert "default-src 'none'" in markup
    assert "http:" not in html
    assert "https:" not in html


def test_a_page_of_36_cells_with_four_probes_has_at_most_1_mb():
    html = page([whole_grid()], None, asks_for)

    assert len(html.encode()) <= 1_000_000
    assert '"leftOut":0' not in html  # answers that did not fit are counted


def test_the_first_metric_of_a_page_is_the_loss(golden):
    html = page([lossy_grid()], None, asks_for)

    assert '"metrics":[{"name":"loss","label":"right tokens lost, of 100' in html
    assert golden == re.findall(r'\["0.5","set","([^"]*)","#', html)


def test_text_of_records_cannot_end_the_block_that_holds_it(html):
    assert 2 == html.count("</script>")
    assert "<img src=x" not in html


def test_two_runs_are_compared_and_of_three_none(run):
    other = replace(run, name="other/run", setup=replace(run.setup, rotation=False))

    both = page([run, other], None, asks_for)
    assert ">rotation</td>" in both
    assert ">no difference shown</td>" in both
    assert "compared with" not in page([run, other, run], None, asks_for)


def test_runs_of_one_name_are_told_apart_and_each_speaks_its_own_decisions(tmp_path):
    first = replace(made_run(lossy), root=tmp_path / "a")
    second = replace(first, root=tmp_path / "b")
    second = replace(second, setup=replace(second.setup, engine="mlx"))

    said = page([first, second], None, asks_for)

    for folder in ("a", "b"):
        assert f'"name":"{folder}/{first.name}"' in said
    assert "llama.cpp: -ctk" in said
    assert "mlx: -ctk" in said
    assert NOTHING_SHARED not in said


def test_answers_to_tasks_stand_beside_what_was_expected():
    texts = made_texts(
        answer=lambda asked, _n: "no" if asked.depth > 0.5 else right(asked, 0)
    )
    record = retrieval_record("bf16/q4_0", texts)
    setup = replace(made_setup(), probes={"retrieval": {"tasks": ["multikey"]}})
    said = page([Run(name="made", setup=setup, records=(record,))], None, asks_for)

    assert '"right":{"bf16/q4_0":4}' in said
    assert '","no"]]' in said


def test_it_holds_the_sweep_file_and_the_command_that_goes_on(run):
    kept = replace(
        run, name="a/b c", root=Path("my runs"), sweep='corpus = "x"\nseed = 7\x1b\n'
    )
    html = page([kept], None, asks_for)

    assert "<pre>codeneedle sweep &#39;my runs/a/b c&#39;</pre>" in html
    assert "<pre>corpus = &#34;x&#34;\nseed = 7\\x1b</pre>" in html


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--enable-logging=stderr", "--dump-dom"),
    "--window-size=500,900",
)

SWITCHES = """
const report = (name, text) => document.body.setAttribute(`data-shown-${name}`, text);
const change = (id, value) => {
  document.getElementById(id).value = value;
  document.getElementById(id).dispatchEvent(new Event("change"));
};
const grid = () => document.getElementById("grid").textContent;
report("first", grid());
change("metric", "hallucinated");
report("metric", grid());
report("title", document.title);
report("folded", document.documentElement.scrollWidth <= window.innerWidth);
change("run", "1");
report("run", document.getElementById("name").textContent);
"""
"""Uses the switches of a page, and writes what it then shows into its body."""


@pytest.fixture
def shown(html, tmp_path):
    """What a real browser makes of the page, and what it says on the console."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium, for example Debian's package chromium")
    file = tmp_path / "page.html"
    file.write_text(
        html.replace("</body>", f"<script>{SWITCHES}</script></body>"),
        encoding="utf-8",
    )
    data = f"--user-data-dir={tmp_path / 'browser'}"
    done = subprocess.run(
        [CHROMIUM, *QUIET, data, file.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,  # a loaded machine takes minutes
        # Its socket has a path of at most 108 bytes.
        env={**os.environ, "TMPDIR": "/tmp"},  # noqa: S108 - likewise
    )
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.findall(r'data-shown-(\w+)="([^"]*)"', done.stdout)
    return dict(found), said


def test_a_page_of_several_runs_begins_with_the_answer_of_each(run):
    second = replace(made_run(lossy), name="second/run")
    header, _, _ = page([run, second], None, asks_for).partition("</header>")

    assert "pair to set" in header
    assert "second/run" in header
    assert "pair to set" not in page([second], None, asks_for).partition("</header>")[0]


def test_a_page_names_no_folder_of_the_machine(run):
    """Neither of the runs, nor of weights, arguments and programs."""
    held = replace(
        run,
        name="mine/run",
        root=Path("/home/me/my runs/kept"),
        sweep='models = ["/home/me/my weights/m.gguf"]\nurl = "http://host:1/v1"\n',
        setup=replace(run.setup, server_args=("--lora", "/home/me/a.gguf")),
        records=(
            *(each for each in run.records if str(each.pair) != "q4_0/q4_0"),
            failed_record("q4_0/q4_0", Status.CRASHED, "see /home/me/logs/x.log"),
        ),
    )
    html = page([held], None, asks_for)

    assert "/home" not in html
    assert "my weights" not in html
    assert all(name in html for name in ("m.gguf", "a.gguf", "x.log", "kept/mine/run"))
    assert "http://host:1/v1" in html


@pytest.mark.parametrize(
    ("trained", "asked", "longest"),
    [(8192, 4096, "8,192"), (8192, 16_384, "16,384"), (0, 4096, "131,072")],
)
def test_memory_is_drawn_up_to_the_trained_context(trained, asked, longest):
    grid = lossy_grid()
    run = replace(grid, records=grid.records[:1])
    setup = replace(run.setup, training_context=trained, context=asked)
    html = page([replace(run, setup=setup)], None, asks_for)

    contexts = re.findall(r"<th>([\d,]+)</th>", html)
    assert longest == contexts[-1]


def test_pairs_that_were_not_measured_are_named(golden):
    grid = made_setup(types_k=("bf16", "q8_0"), types_v=("bf16", "q8_0"))
    html = page([made_run(lossy, setup=grid, untried=["q8_0/q8_0"])], None, asks_for)
    holes = replace(grid, pairs=("bf16/bf16", "bf16/q8_0"))
    with_holes = made_run(lossy, setup=holes, untried=["q8_0/q8_0", "q8_0/bf16"])

    assert '["not run","","q8_0/q8_0; not run"]' in html
    hole = r"an empty cell [\w ]*"
    [said] = re.findall(hole, page([with_holes], None, asks_for))
    assert golden == said
    assert said not in html


def test_a_browser_shows_it_and_the_switches_work(shown):
    texts, said = shown

    assert "0.0reference" in texts["first"]
    assert texts["first"] != texts["metric"]
    assert "oom" in texts["metric"]
    assert "taken" != texts["title"]
    assert "second/run" == texts["run"]
    assert "true" == texts["folded"]  # no wider than the window
    assert [] == said
