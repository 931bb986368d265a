"""Which pictures ``heatmap`` draws: of the loss, of a metric, of a speed by depth."""

from pathlib import Path

from codeneedle.cache_types import PairFlags
from codeneedle.records.record import Run
from codeneedle.report.chosen_runs import Selection
from codeneedle.report.heatmap import Files, draw_heatmap, draw_losses
from codeneedle.report.losses import losses_of
from codeneedle.report.speed_pictures import draw_speeds
from codeneedle.report.speeds import is_speed_by_depth
from codeneedle.verdict.judge import Verdict


def draw_loss_or_metric(
    run: Run,
    chosen: Selection,
    verdict: Verdict,
    pair_flags: PairFlags,
    files: Files,
    *,
    difference: bool = False,
) -> list[Path]:
    """
    Draw the loss of *run*, or a metric; of a speed its curves by depth, too.

    The metric is drawn where it is asked for, where differences are, and where *run*
    has no losses.

    Args:
        run: Records of one probe.
        chosen: What is asked for.
        verdict: The verdict on the run.
        pair_flags: Spells a pair in the words of its engine.
        files: Where the pictures go.
        difference: Whether to draw differences from the reference.

    Returns:
        The paths of all files.

    Raises:
        NothingToShow: If no cell has a value.
        FolderUnusable: If the disk refuses.
    """
    if chosen.asks_loss and not difference and (losses := losses_of(verdict)):
        return draw_losses(losses, pair_flags, files)
    name = chosen.metric.name
    pictures = draw_heatmap(
        run, chosen.metric, difference=difference, verdict=verdict, files=files
    )
    return [
        *pictures,
        *(draw_speeds(run, name, files) if is_speed_by_depth(name) else []),
    ]
