"""The run folder of a page of a sweep: its name by corpus, model, context and share."""

from collections.abc import Sequence
from pathlib import Path

from codeneedle.engines.engine import Engine
from codeneedle.probes.probe import Probe
from codeneedle.records.store import Store, checked_run_folder, refuse_unusable_folder
from codeneedle.sweep.request import Execution, Request


def run_name_without_corpus(
    request: Request, engine: Engine, probes: Sequence[Probe]
) -> str:
    """What a run is called in place of a corpus; empty if one is read or named."""
    texts = [
        probe.own_text_name(request.settings_of(probe), engine) for probe in probes
    ]
    if request.corpus or None in texts:
        return ""
    return next(filter(None, texts), "")


def _context_page_name(context: int) -> str:
    """What a page is called that differs by its *context* alone."""
    return f"context-{context}"


def _plain_or_context_folder(
    execution: Execution, corpus: str, model: str, context: int
) -> Path:
    """
    The folder of *model* at *context*, in tokens.

    If the run in the folder of the plain name has that context, that folder. Else the
    one with the context in its name, where either is taken or the request is a page of
    several; the plain one otherwise.
    """
    plain, named = (
        checked_run_folder(execution.out, corpus=corpus, model=name)
        for name in (
            f"{model}{_share_suffix(execution)}",
            f"{model}+{_context_page_name(context)}{_share_suffix(execution)}",
        )
    )
    setup = Store(plain).read_intact_setup()
    if setup and setup.context == context:
        return plain
    is_taken = setup is not None or named.exists()
    return named if is_taken or execution.page else plain


def _share_suffix(execution: Execution) -> str:
    """``+share-3-of-8``, which ends the name of a folder; empty for all of a grid."""
    return execution.shard.folder_suffix if execution.shard else ""


def store_of_page(
    request: Request, execution: Execution, corpus: str, model: str
) -> Store:
    """
    The store of the page: in the run folder that a user names, else below `out`.

    A context that the user names has a folder of its own beside that of another one,
    so that a second context needs no other ``--out``, and nothing is measured twice.

    Raises:
        FolderUnusable: See `store.refuse_unusable_folder`.
    """
    name = f"{model}+{execution.page}" if execution.page else model
    name += _share_suffix(execution)
    below = checked_run_folder(execution.out, corpus=corpus, model=name)
    if request.context and execution.page in {"", _context_page_name(request.context)}:
        below = _plain_or_context_folder(execution, corpus, model, request.context)
    folder = below
    if execution.folder:
        named = execution.folder
        folder = named.with_name(f"{named.name}{_share_suffix(execution)}")
    refuse_unusable_folder(folder)
    return Store(folder)
