"""A sweep of several files of weights that decides, on engines of a test."""

import io
import math
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_engine import LONG, TYPES, ByteTokenizer, FakeEngine, forced_to
from gguf_files import SHAPE, write_gguf
from made_plans import CORPUS, made_world, planned
from msgspec import structs
from rich.console import Console

from codeneedle.cache_types import Pair
from codeneedle.cli import sweep as sweep_module
from codeneedle.cli.budget import sweep_together
from codeneedle.cli.one_model import (
    can_share_budget_or_report,
    find_sibling_weights,
    restrict_to_deciding_probe,
    weights_comparison_hint_line,
)
from codeneedle.cli.sweep import Page
from codeneedle.engines.engine import CacheTypes
from codeneedle.errors import BadInput, CellError
from codeneedle.probes.recall.settings import RecallSettings, Way
from codeneedle.records.record import Effective, KvBuffer
from codeneedle.report.budget import budget_remarks
from codeneedle.sweep import schedule
from codeneedle.sweep.measure import Options
from codeneedle.sweep.prepare import prepare_run_and_store_setup
from codeneedle.sweep.request import Execution, Request
from codeneedle.verdict.asking_order import stored_asking_order
from codeneedle.verdict.joint import join_runs
from codeneedle.verdict.judge import Outcome, judge
from codeneedle.verdict.limits import Limits
from codeneedle.verdict.remark_kinds import RemarkKind
from codeneedle.verdict.trust import trusted_run

FILES = {"fine": 0.0, "middle": 0.004, "coarse": 0.02}
"""Loss of the weights, the finest first."""

CACHES = {"f16": 0.0, "q8_0": 0.001, "q4_0": 0.05}
CACHE = Effective(
    context=65536,
    kv=(
        KvBuffer(cells=65536, layers=2, k_type="f16", v_type="f16", k_mib=64, v_mib=64),
    ),
)
"""What the engines tell of a cache that is not quantized: 128 MiB."""

MIB = 1 << 20
TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}


class Several:
    """Runs of three files, whose candidates lose by weights and by cache."""

    def __init__(self, folder, monkeypatch):
        made_world(folder, monkeypatch)
        many = CORPUS.replace("functions = 6", "functions = 12")
        Path("corpora", "many.toml").write_text(many, encoding="utf-8")
        self.engines, self.failing, self.losses = {}, set(), dict(FILES)
        for at, name in enumerate(FILES):
            self.write(name, "x" * 1000 * (len(FILES) - at))
        self.told, self.shown = io.StringIO(), io.StringIO()

    def write(self, name, padding, **keys):
        """A file of weights; the longer the *padding* the more bits per weight."""
        more = {**TOKENIZER, "general.description": padding, **keys}
        write_gguf(Path(f"{name}.gguf"), {**SHAPE, **more})
        self.serve(name)

    def serve(self, name):
        """An engine for the file of that *name*."""
        types = CacheTypes(k=TYPES, v=TYPES)
        engine = FakeEngine(types=types, stretches_context=True)
        engine.effective = CACHE
        engine.force = lambda question, right: self.force(name, question, right)
        self.engines[name] = engine

    def force(self, name, question, right):
        engine = self.engines[name]
        pair = engine.served[-1].pair
        if (name, pair) in self.failing:
            return CellError("it died", hint="Look.")
        at = len(engine.served) % 2
        loss = self.losses[name] + CACHES[pair.k] + CACHES[pair.v] / 4
        chance = math.log(0.6 - loss * (1 + 0.01 * at))
        return forced_to(question, right, logprob=chance, length=LONG, wall_s=0.0)

    def plans(self, names=tuple(FILES), probes=("recall",)):
        return [
            planned(
                corpus="many",
                contexts=(65536,),
                models=(f"{name}.gguf",),
                types=tuple(CACHES),
                probes=probes,
                recall=RecallSettings(way=(Way.FORCE,), functions=12, lines=5),
                decide=True,
                engine=self.engines[name],
            )
            for name in names
        ]

    def pages(self, plans, limits, **options):
        return [
            Page(
                plan=replace(plan, kept=Request()),
                console=Console(file=self.told, width=200),
                shown=Console(file=self.shown, width=100),
                options=Options(limits=limits, **options),
                is_last=plan is plans[-1],
                began=time.monotonic(),
            )
            for plan in plans
        ]

    def sweep(self, most=None, names=tuple(FILES), **options):
        limits = Limits(max_memory_bytes=most)
        pages = self.pages(self.plans(names), limits, **options)
        return sweep_together(
            [(page, prepare_run_and_store_setup(page.plan)) for page in pages]
        )

    def command(self, monkeypatch, *names, probes=("recall",)):
        """Sweep the files of these *names* as the command does; the exit code."""

        def check_plans(request, *_):
            plans = self.plans(names, request.probes)
            return [replace(plan, kept=Request()) for plan in plans]

        monkeypatch.setattr(sweep_module, "fetch_and_make_checked_plans", check_plans)
        models = tuple(f"{name}.gguf" for name in names)
        return sweep_module.sweep(
            Request(models=models, decide=True, probes=probes),
            Execution(),
            Console(file=self.told, width=200),
            Options(limits=Limits()),
            Console(file=self.shown, width=100),
            sweep_together,
        )

    def joined(self):
        """The stored runs as one."""
        return join_runs([trusted_run(plan.store.read_run()) for plan in self.plans()])

    def remarks(self, most):
        """What is said of candidates that fit into so much memory alone."""
        verdict = judge(self.joined(), Limits(max_memory_bytes=most))
        remarks = budget_remarks(verdict)
        return [each for each in remarks if each.kind is RemarkKind.FITS_NOW]

    def shares(self):
        """Among how many candidates the error is shared."""
        joined = self.joined()
        return joined.order.error_sharing_count(joined.order.candidates[-1])

    def probes_asked(self, name):
        """Names of the probes that the file of that *name* has records of."""
        (plan,) = self.plans((name,))
        return {record.probe for record in plan.store.read_records()}

    @property
    def asked(self):
        """The candidates that were served."""
        return {
            (name, str(cell.pair))
            for name, engine in self.engines.items()
            for cell in engine.served
        }


@pytest.fixture
def several(tmp_path, monkeypatch):
    return Several(tmp_path, monkeypatch)


def test_the_smallest_within_is_set_of_all_candidates(several):
    code = several.sweep()

    assert 0 == code
    assert several.shown.getvalue().startswith("Set: --model middle q8_0/q8_0")
    assert ("fine", "f16/f16") in several.asked


def test_each_file_keeps_what_its_own_weights_are_predicted_not_to_bear(
    several, monkeypatch
):
    monkeypatch.setattr(
        "codeneedle.models.sensitivity.unsafe_k_types",
        lambda weights, **_: (weights.path.stem,),
    )
    several.sweep()

    orders = [stored_asking_order(plan.store.read_setup()) for plan in several.plans()]
    assert [(name,) for name in FILES] == [order.unborne for order in orders]


def test_what_does_not_fit_is_not_asked_but_for_the_reference(several):
    code = several.sweep(most=70 * MIB)

    small = {f"{k}/{v}" for k in ("q8_0", "q4_0") for v in ("q8_0", "q4_0")}
    assert 0 == code
    assert {("fine", "f16/f16")} == {
        (name, pair) for name, pair in several.asked if pair not in small
    }
    assert several.shown.getvalue().startswith("Set: --model fine q8_0/q8_0")


def test_of_what_finer_weights_with_a_finer_cache_rule_out_one_is_checked(
    several, golden
):
    several.sweep(most=70 * MIB)

    assert 1 == several.told.getvalue().count("ruled out by")
    sentences = " ".join(several.shown.getvalue().split()).split(". ")
    assert golden == [x for x in sentences if "than fine" in x]
    assert len(several.asked) < 5


def test_where_the_reference_fits_nothing_else_is_asked(several):
    several.sweep(most=1000 * MIB)

    assert {("fine", "f16/f16")} == several.asked
    assert "Keep: --model fine f16/f16" in several.shown.getvalue()


def test_the_reference_is_asked_of_the_finest_weights_alone(several):
    several.sweep(names=("coarse", "fine", "middle"))

    told = several.told.getvalue()
    assert 1 == told.count("the reference: ")
    assert "fine f16/f16" in told


def test_a_second_command_asks_nothing_again(several):
    several.sweep()
    before = sum(len(engine.served) for engine in several.engines.values())

    several.sweep()

    assert before == sum(len(engine.served) for engine in several.engines.values())


def test_the_command_that_shows_it_again_names_all_runs(several):
    several.sweep()

    again = several.told.getvalue().splitlines()[-1]
    assert "codeneedle verdict" in again
    assert all(name in again for name in FILES)


def test_weights_none_of_which_run_leave_the_reference_to_the_next(several):
    several.failing = {("fine", Pair(k, v)) for k in CACHES for v in CACHES}

    code = several.sweep()

    assert 1 == code
    assert "left out" in several.told.getvalue()
    assert "middle" in several.shown.getvalue()


def test_a_file_that_cannot_be_set_up_is_left_out_and_the_others_go_on(
    several, monkeypatch, golden
):
    several.engines["coarse"].tokenizer = Unloadable()

    code = several.command(monkeypatch, *FILES)

    assert 1 == code
    [line] = [x for x in several.told.getvalue().splitlines() if "coarse: " in x]
    assert golden == line
    assert {"fine", "middle"} == {name for name, _ in several.asked}
    assert "Set: --model middle q8_0/q8_0" in several.shown.getvalue()


def test_the_one_file_that_can_be_set_up_is_swept_alone(several, monkeypatch, golden):
    for name in ("fine", "coarse"):
        several.engines[name].tokenizer = Unloadable()

    code = several.command(monkeypatch, *FILES)

    assert 1 == code
    assert {("middle", "f16/f16"), ("middle", "q8_0/q8_0")} <= several.asked
    [line] = [x for x in several.told.getvalue().splitlines() if "nothing is" in x]
    assert golden == line.rpartition(":")[0]
    assert "--model" not in several.shown.getvalue() != ""


def test_files_that_are_no_one_budget_keep_all_their_probes(
    several, monkeypatch, golden
):
    several.losses["other"] = 0.0
    several.write("other", "", **{"tokenizer.ggml.pre": "llama-bpe"})

    code = several.command(
        monkeypatch, "fine", "other", probes=("recall", "divergence")
    )

    assert 0 == code
    [line] = [x for x in several.told.getvalue().splitlines() if "one budget" in x]
    assert golden == line
    both = {"recall", "divergence"}
    assert [both, both] == [several.probes_asked(name) for name in ("fine", "other")]


def test_one_budget_is_asked_by_recall_whatever_was_named(several, monkeypatch):
    several.command(monkeypatch, "fine", "middle", probes=("recall", "divergence"))

    assert [{"recall"}, {"recall"}] == [
        several.probes_asked(name) for name in ("fine", "middle")
    ]


def test_a_split_model_is_one_of_the_files(several):
    first, second = (f"coarse-{at:05}-of-00002" for at in (1, 2))
    several.losses |= {first: FILES["coarse"]}
    keys = {**SHAPE, **TOKENIZER, "split.count": 2}
    for name in (first, second):
        write_gguf(Path(f"{name}.gguf"), keys)
    several.serve(first)

    code = several.sweep(names=("fine", first))

    assert 0 == code
    assert {"fine", first} == {name for name, _ in several.asked}
    assert "coarse" in several.shown.getvalue()


def test_a_second_command_with_more_memory_asks_what_fits_now(several):
    several.sweep(most=70 * MIB)
    before = several.asked

    several.sweep(most=100 * MIB)

    new = {pair for _, pair in several.asked - before}
    assert new
    assert new <= {"f16/q8_0", "f16/q4_0", "q8_0/f16", "q4_0/f16"}


def test_a_verdict_with_more_memory_names_what_may_be_asked_now(several):
    several.sweep(most=70 * MIB)

    few, more = (several.remarks(most * MIB) for most in (70, 100))
    assert ([], 1) == (few, len(more))
    assert {"f16/q8_0", "q8_0/f16"} <= {
        str(pair.without_weights) for pair in more[0].pairs
    }
    files = " ".join(f"--model {name}" for name in FILES)
    command = f"--decide {files} --max-memory 100MiB"
    assert command in more[0].text
    several.sweep(most=100 * MIB)
    assert [] == several.remarks(100 * MIB)


def test_where_nothing_fits_the_nearest_of_all_is_named_and_none_is_asked(several):
    code = several.sweep(most=10 * MIB)

    first, *_ = several.shown.getvalue().splitlines()
    assert {("fine", "f16/f16")} == several.asked
    assert (0, True) == (code, first.startswith("Nothing fits"))
    assert "coarse q4_0/q4_0" in first
    larger = judge(several.joined(), Limits(max_memory_bytes=70 * MIB))
    assert Outcome.NO_ANSWER is larger.outcome
    assert [] != several.remarks(70 * MIB)


def test_a_verdict_without_a_limit_names_what_was_too_large_before(several):
    several.sweep(most=40 * MIB)

    verdict = judge(several.joined())
    (remark,) = several.remarks(None)
    assert (None, Outcome.NO_ANSWER) == (verdict.chosen, verdict.outcome)
    assert "fine q8_0/q8_0" in map(str, remark.pairs)
    # All but the reference, and q4_0/q4_0 of each.
    assert 3 * 9 - 1 - 3 == len(remark.pairs)
    assert "--max-memory" not in remark.text


def test_candidates_are_judged_once_a_turn(several, monkeypatch):
    counts = {"judge": 0, "next_task": 0}

    def counted(name):
        function = getattr(schedule, name)

        def called(*given, **named):
            counts[name] += 1
            return function(*given, **named)

        monkeypatch.setattr(schedule, name, called)

    counted("judge")
    counted("next_task")
    several.sweep()

    assert counts["judge"] == counts["next_task"] > 3


def test_candidates_that_failed_are_measured_again_where_that_is_asked_for(several):
    bad = ("middle", Pair("q8_0", "q8_0"))
    several.failing = {bad}
    codes = [several.sweep(), several.sweep(), several.sweep(retry_failed=True)]
    several.failing = set()
    codes.append(several.sweep(retry_failed=True))

    served = [cell.pair for cell in several.engines["middle"].served]
    assert [1, 0, 1, 0] == codes
    assert 3 == served.count(bad[1])


def test_what_fits_with_more_memory_shares_in_the_error(several):
    several.sweep(most=70 * MIB)
    few = several.shares()
    several.sweep(most=100 * MIB)
    grown = several.shares()
    several.sweep(most=70 * MIB)

    assert (3 * 4, 3 * 8) == (few, grown)
    assert grown == several.shares()


class Unloadable(ByteTokenizer):
    """Of weights that no server loads."""

    def count_tokens(self, text):
        raise CellError("it cannot be loaded", hint="Look.")

    def token_counts_without_special(self, texts):
        raise CellError("it cannot be loaded", hint="Look.")


class TestOneQuestion:
    def asked(self, several, names):
        console = Console(file=several.told, width=200)
        return can_share_budget_or_report(several.plans(names), console)

    def test_files_of_one_tokenizer_and_shape_are(self, several):
        assert self.asked(several, tuple(FILES))
        assert not self.asked(several, ("fine",))

    def test_another_tokenizer_is_none_and_says_why(self, several):
        several.write("other", "", **{"tokenizer.ggml.pre": "llama-bpe"})

        assert not self.asked(several, ("fine", "other"))
        assert "another tokenizer" in several.told.getvalue()

    def test_another_model_is_none_and_says_why(self, several):
        several.write("other", "", **{"llama.block_count": 5})

        assert not self.asked(several, ("fine", "other"))
        assert "other models" in several.told.getvalue()

    def test_the_same_file_twice_is_refused(self, several):
        several.engines["again"] = several.engines["fine"]
        Path("again.gguf").write_bytes(Path("fine.gguf").read_bytes())

        with pytest.raises(BadInput, match="same file"):
            self.asked(several, ("fine", "again"))


class TestBeside:
    def test_another_file_of_the_model_is_named_with_the_command(self, several):
        (plan,) = several.plans(("fine",))
        plan = replace(plan, request=structs.replace(plan.request, engine="llama.cpp"))

        line = weights_comparison_hint_line(plan)
        assert "--decide --model fine.gguf --model coarse.gguf" in line
        # Its sweep file has all else that was asked for.
        assert f"codeneedle sweep {plan.store.folder}/sweep.toml" in line

    def test_files_of_other_models_are_not(self, several):
        for name in ("middle", "coarse"):
            several.write(name, "", **{"tokenizer.ggml.pre": name})

        (plan,) = several.plans(("fine",))

        assert find_sibling_weights(plan.weights) is None


def test_one_budget_is_judged_by_recall():
    asked = Request(models=("a.gguf", "b.gguf"), decide=True, probes=("divergence",))

    assert ("recall",) == restrict_to_deciding_probe(asked).probes
    assert ("divergence",) == restrict_to_deciding_probe(
        Request(models=("a.gguf",), decide=True, probes=("divergence",))
    ).probes
