"""
Copies the records of a run's shares into one folder: which sources belong together, and
where they go.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from codeneedle.errors import BadInput
from codeneedle.records.store import (
    CELLS,
    LONGEST_NAME,
    SETUP,
    SWEEP,
    Store,
    checked_run_folder,
)
from codeneedle.sweep.request import merge_into_sweep_file, parse_request_toml
from codeneedle.system.files import refuse_linked_folder
from codeneedle.verdict.shares import Union, join_stores, required_setup_of


def merge(
    sources: Sequence[Path],
    out: Path,
    *,
    tell: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> list[tuple[Path, Union]]:
    """
    Copy the records of the same corpus and model in *sources* into one folder in *out*.

    Setups name corpus and model, not folders. All are checked before the first record
    is written. An interrupted merge resumes if it is called again: what is in *out*
    counts as a source.

    Args:
        sources: Run folders, or folders of run folders.
        out: Folder of all run folders.
        tell: Called with how far it is.

    Returns:
        Each folder, and what it was joined of.

    Raises:
        BadInput: If a source holds no run, if only one of several holds a run, or as of
            `join_stores`.
        FolderUnusable: If *out* cannot be written to.
    """
    runs: dict[Path, list[Store]] = {}
    for source in sources:
        for store in _runs_in(source):
            runs.setdefault(_target_folder(store, out), []).append(store)
    checked = []
    for folder, stores in runs.items():
        target = Store(folder)
        known = {store.folder.resolve() for store in stores}
        if target.read_setup() and target.folder.resolve() not in known:
            stores = [target, *stores]  # noqa: PLW2901 - what is there comes first
        if len(stores) < 2 <= len(sources):  # noqa: PLR2004 - one of several
            raise BadInput(
                source=stores[0].folder,
                reason=f"no other source holds a run of {target.name}",
                hint="Name only folders of runs that are to be joined.",
            )
        checked.append((target, join_stores(stores, tell)))
    for target, joined in checked:
        _write_merged(target, joined, tell)
    return [(target.folder, joined) for target, joined in checked]


def _runs_in(source: Path) -> list[Store]:
    """
    The runs in *source*, which may be one itself.

    Raises:
        BadInput: If there is none.
    """
    setups = [source / SETUP] if (source / SETUP).is_file() else []
    setups = setups or sorted(source.glob(f"*/*/{SETUP}"))
    if not setups:
        raise BadInput(
            source=source,
            reason="there is no run in it",
            hint="Name folders as given to --out, or run folders: sweeps/CORPUS/MODEL.",
        )
    return [Store(setup.parent.absolute()) for setup in setups]


def _target_folder(store: Store, out: Path) -> Path:
    """
    Where *store* belongs below *out*.

    Raises:
        BadInput: If its corpus or its model has no name for a folder.
    """
    setup, called = required_setup_of(store), store.run_name.rpartition("/")[2]
    model = setup.weights.name
    # A page of a sweep file has a run of its own: MODEL+PAGE.
    name = called if called.startswith(f"{model}+") else model
    # Without a corpus a run is called after what was measured: a transcript.
    is_read = setup.corpus.is_counted
    corpus = setup.corpus.name if is_read else store.folder.parent.name
    try:
        return checked_run_folder(out, corpus=corpus, model=name)
    except ValueError as error:
        raise BadInput(
            source=store.folder,
            reason=str(error),
            hint="Rename the folder, or leave it out: names have letters, digits and "
            f". _ + -, {LONGEST_NAME} at most.",
        ) from error


def _write_merged(
    target: Store, joined: Union, tell: Callable[[str, int, int], None]
) -> None:
    """Write records, setup and sweep file of what was *joined* to *target*."""
    for folder in (target.folder.parent, target.folder, target.folder / CELLS):
        refuse_linked_folder(folder)
    with target.make_and_lock_folder():
        for source, setup in zip(joined.stores, joined.setups, strict=True):
            target.check_and_store_setup(setup)
            if text := source.read_sweep_file_or_empty():
                merge_into_sweep_file(
                    parse_request_toml(text, source=str(source.folder / SWEEP)), target
                )
        for at, (key, store) in enumerate(joined.cells.items()):
            tell(f"writing {target.folder}", at, len(joined.cells))
            if store.folder != target.folder.absolute():
                target.copy_record_from(store, key)
        # Once for all: to wait for each of 10,000 files takes minutes.
        os.sync()
