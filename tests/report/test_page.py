"""The page: one file, no request, hostile text stays text, and a browser shows it."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import failed_record, made_run, made_setup
from made_retrieval import made_texts, retrieval_record, right

from codeneedle.records.record import Run, Status
from codeneedle.report.page import page

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>"
MEBIBYTE = 2**20


def spell(pair):
    return f"-ctk {pair.k} -ctv {pair.v}"


def asks_for(engine):
    """Pairs in the words of *engine*."""
    return lambda pair: f"{engine}: {spell(pair)}"


def unknown(_run):
    """No header of weights."""


def lossy(pair, at):
    return 20 - (3 if pair.k == "q4_0" else at % 2)


@pytest.fixture
def run():
    """Nine pairs, of which one failed with a hostile reason, under a hostile name."""
    setup = made_setup(
        types_k=("bf16", "q8_0", "q4_0"), types_v=("bf16", "q8_0", "q4_0")
    )
    broken = failed_record("q8_0/q4_0", Status.OUT_OF_MEMORY, HOSTILE)
    return replace(made_run(lossy, setup=setup, failed=[broken]), name=HOSTILE)


@pytest.fixture
def html(run):
    """Its page, beside a second run."""
    other = replace(made_run(lossy), name="second/run")
    return page([run, other], None, asks_for, unknown)


def test_it_is_one_file_without_requests_of_at_most_6_mb(html):
    markup = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)

    assert len(html.encode()) <= 6 * MEBIBYTE
    assert not re.search(r"<[^>]*(src|href)=", markup)
    assert "default-src 'none'" in markup


def test_text_of_records_cannot_end_the_block_that_holds_it(html):
    assert 3 == html.count("</script>")
    assert "<img src=x" not in html


def test_two_runs_are_compared_and_of_three_none(run):
    other = replace(run, name="other/run", setup=replace(run.setup, rotation=False))

    both = page([run, other], None, asks_for, unknown)
    assert ">rotation</td>" in both
    assert ">no difference shown</td>" in both
    assert "compared with" not in page([run, other, run], None, asks_for, unknown)


def test_runs_of_one_name_are_told_apart_and_each_speaks_its_own_words(tmp_path):
    first = replace(made_run(lossy), root=tmp_path / "a")
    second = replace(first, root=tmp_path / "b")
    second = replace(second, setup=replace(second.setup, engine="mlx"))

    said = page([first, second], None, asks_for, unknown)

    for folder in ("a", "b"):
        assert f'"name":"{tmp_path / folder / first.name}"' in said
    assert "llama.cpp: -ctk" in said
    assert "mlx: -ctk" in said
    assert "They share no metric" not in said


def test_answers_to_tasks_stand_beside_what_was_expected():
    texts = made_texts(
        answer=lambda asked, _n: "no" if asked.depth > 0.5 else right(asked, 0)
    )
    record = retrieval_record("bf16/q4_0", texts)
    setup = replace(made_setup(), probes={"retrieval": {"tasks": ["multikey"]}})
    said = page(
        [Run(name="made", setup=setup, records=(record,))], None, asks_for, unknown
    )

    assert '"outcome":"correct","isRight":true,"error":"","rows":[]' in said
    assert '","no"]]' in said


def test_it_holds_the_sweep_file_and_the_command_that_goes_on(run):
    kept = replace(
        run, name="a/b c", root=Path("my runs"), sweep='corpus = "x"\nseed = 7\x1b\n'
    )
    html = page([kept], None, asks_for, unknown)

    assert "<pre>codeneedle sweep &#39;my runs/a/b c&#39;</pre>" in html
    assert "<pre>corpus = &#34;x&#34;\nseed = 7\\x1b</pre>" in html


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture
def shown(html, tmp_path):
    """The page in a real browser, with what it says on the console and requests."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason="needs pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("needs Chromium, for example Debian's package chromium")
    file = tmp_path / "page.html"
    file.write_text(html, encoding="utf-8")
    with driver.sync_playwright() as browsers:
        browser = browsers.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        tab = browser.new_page(viewport={"width": 390, "height": 800})
        tab.set_default_timeout(300_000)  # a loaded machine takes minutes
        tab.said = []
        tab.on("console", lambda message: tab.said.append(message.text))
        tab.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.on("request", lambda request: tab.said.append(request.url))
        tab.goto(file.as_uri())
        tab.wait_for_selector("#grid .main-svg")
        assert tab.said.pop(0) == file.as_uri()
        yield tab
        browser.close()


def test_a_browser_shows_it_and_the_switches_work(shown):
    before = shown.inner_text("#grid")
    shown.select_option("#metric", "hallucinated")
    assert before != shown.inner_text("#grid")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390

    gap = shown.evaluate("document.getElementById('grid-table').textContent")
    assert "oom" in gap
    assert HOSTILE in gap
    assert "taken" != shown.title()

    shown.select_option("#run", "1")
    assert "second/run" == shown.inner_text("#name")
    shown.emulate_media(color_scheme="dark")
    shown.emulate_media(media="print")
    assert [] == shown.said
