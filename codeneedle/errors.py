"""
Everything codeneedle raises on purpose.

* CodeneedleError             exit 1   base; a person is meant to read it
  + RequestError              exit 2   the request is wrong; mend it and rerun
    - UnknownName                      a name that nothing has
    - BadCorpusFile                    a key, value or pattern of corpora/NAME.toml
    - BadPair                          not two cache types with a slash between them
    - RecordTooNew                     written by a later codeneedle
    - BadRecord                        a file that is no record
      . BadSetup                       the same, of a setup
      . ForeignRecord                  a record of another cell or run folder
    - BadSweepFile                     a key, value or name of sweeps/NAME.toml
    - OtherSetup                       a run folder whose records are not comparable
    - SetupMissing                     a run folder with records and no setup
    - FolderBusy                       another sweep is in the run folder
    - NoSuchRun                        no run folder has this name
    - ContextTooLong                   --context that the weights were not trained for
    - FileInTheWay                     --out names a file that we did not write
    - NotMeasured                      a pair that the sweep has no record of
    - CorpusTooLong                    --no-fit, and the text does not fit
    - TrimmedBefore                    --no-fit, and the run was trimmed
    - FolderShared                     two pages that would share a run folder
    - BadKnob                          random bodies cannot be made like that
    - BadServerArguments               llama-server does not take what is after --
    - CommaInPath                      llama-bench would take the weights for several
    - DepthTooDeep                     --depths that the weights were not trained for
    - DivergenceContextTooLong         longer than the weights were trained for
    - MissingExtra                     a corpus of a package that is not installed
    - MissingSource                    an interpreter without its library's source
    - NeverRanks                       a metric of which neither end is better
    - NoText                           a file that is empty, binary or unreadable
      . FileTooLarge                   a single file longer than any context
    - NotFound                         a path that leads nowhere
    - NothingFits                      no function to ask for is left after a cut
    - NothingToPrefill                 --prefill-no-think where nothing thinks
    - NothingToAsk                     a text without a function to ask for
    - NotWhole                         --no-fit, and more text than any context
    - SourceChanged                    a file of a corpus that somebody writes
    - TextChanged                      --text is not what the sweep began with
    - TextTooShort                     fewer tokens than a comparison takes
    - TextUnreadable                   --text names no text
    - TooFewScored                     too few tokens to make statistics of
    - TooFewNames                      random names too short to be all different
    - TooLarge                         more source text than any context holds
    - TooMuchText                      the same, of random bodies
    - TooSmall                         --depths or --repetitions below the least
    - ReservedArgument                 an argument for llama-server that is ours
    - WeightsReplaced                  other weights, while the sweep ran
    - UnknownLanguage                  a suffix that no language has
    - Unparsable                       a text that is not what its suffix says
  + MachineError              exit 3   this machine cannot run it
    - ArchiveChanged                   the source of llama.cpp is not the pinned one
    - BenchMissing                     no llama-bench beside the server
    - BenchTooOld                      a llama-bench without depths or JSON lines
    - BuildFailed                      a step of building llama.cpp ended badly
    - CompilerMissing                  nothing here compiles C or C++
    - DownloadFailed                   pip could not fetch what a build needs
    - LlamaBroken                      llama-server crashes when it is asked what it is
    - LlamaMissing                     no llama-server anywhere
    - LlamaUnusable                    --llama-server or LLAMA_SERVER name no program
    - NoRoomToBuild                    too little disk for source and objects
    - NoRoomForBase                    the base files would not fit on the disk
    - NoVirtualEnvironment             Python's venv does not work
    - NotGguf                          something else than a model
    - NotLlamaServer                   a program that answers like no llama-server
    - PartForeign                      a part that belongs to another model
    - PartMissing                      a split model, and not all of it
    - PerplexityMissing                no llama-perplexity beside the server
    - SystemRefuses                    memory, files, processes or disk ran out
    - SizeOverflows                    an old llama-perplexity counts in 32 bits
    - WeightsAreFolder                 a folder where a model was asked for
    - WeightsInMotion                  a model that is still being written
    - WeightsMissing                   no file there
    - WeightsTruncated                 a download that did not finish
    - WeightsUnreadable                a model that the system keeps from us
    - WeightsUnsupported               a GGUF file that no sweep can run
    - FolderLost                       removed or moved while a sweep ran in it
    - FolderUnwritable                 records cannot be written
    - DiskFull                         next to nothing is free
    - CacheNotWritable                 no room for what can be made again
    - CannotCount                      no server that tokenizes
    - CannotStart                      the system refuses to start a program
    - ChildWontStop                    a process group that outlives SIGKILL
    - NoAnswer                         a program that does not say its version
    - NoLog                            a run folder that takes no log
    - Unclaimable                      a run folder that takes no note of a server
  + FailingAlike              exit 1   the first cells all failed in the same way
  + CellError                 exit 1   one cell failed; it becomes a record
    - BaseIncomplete                   a base file of which a part is missing
    - BenchDied                        llama-bench ended badly
    - BenchHangs                       it takes far longer than expected
    - HangsAtWarmUp                    loaded, and never done with warming up
    - FellBack                         not the asked attention, and --skip-fallback
    - NoAnswers                        not one round has an answer
    - Mismatched                       what runs is not what was asked for
    - NeverReady                       a server that lives, and does not get ready
    - NoResult                         llama-bench printed no complete result
    - NoStatistics                     llama-perplexity exits 0 and tells nothing
    - OverlongReply                    an answer without end
    - PerplexityDied                   it ended badly
    - PerplexityHangs                  it writes nothing any more
    - Refused                          the server answers with an error
      . PromptTooLong                  the prompt exceeds the context
    - ServerDied                       it ended while we still needed it
    - ServerGone                       nobody is there, or the connection broke
    - ServerSilent                     it is connected and says nothing
    - StreamEnded                      tokens stopped without a last event
    - WrongShape                       an answer that is none

Subclasses live where their facts are known to be needed and are drawn above.
This module imports nothing from the package, so any module may import it.
"""

import difflib
from collections.abc import Collection
from typing import ClassVar


class CodeneedleError(Exception):
    """
    Base of every error meant for a person rather than a programmer.

    Subclasses take facts and compose the sentence; callers never write prose.

    Attributes:
        hint: The next action, as a sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(CodeneedleError):
    """The request is wrong: usage, sweep file, corpus, incompatible run folder."""

    exit_code = 2


class MachineError(CodeneedleError):
    """This machine cannot run it: no llama.cpp, no weights, no memory, no disk."""

    exit_code = 3


class CellError(CodeneedleError):
    """
    One cell failed; it becomes a record, and the sweep goes on.

    Attributes:
        status: Value of the `records.Status` that the record gets.
        log_excerpt: The lines of the server's log that decided it.
    """

    status: str = "crashed"
    log_excerpt: tuple[str, ...] = ()


class UnknownName(RequestError):  # noqa: N818 - named after the fact
    """A name that nothing has; the nearest known one is offered."""

    def __init__(self, *, kind: str, name: str, known: Collection[str]) -> None:
        super().__init__(f"unknown {kind} '{name}'", hint=did_you_mean(name, known))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """A hint that offers the nearest of the *known* names, or lists them."""
    close = difflib.get_close_matches(name, list(known), n=1)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(known)}." if known else "None is known yet."
