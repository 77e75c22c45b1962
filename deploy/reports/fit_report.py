"""The summary of a fit as text: what was learned and left out, how well, and what comes next."""

import math
import shlex
from collections.abc import Sequence

from headrace.ingest.survey.findings import RefusedEvents, duration
from headrace.learner.batch.trainer import FitSummary
from headrace.runtime.counted_nouns import counted, counted_of


def fit_in_words(
    done: FitSummary,
    model: str,
    to: str,
    refusals: Sequence[RefusedEvents],
    seconds: float,
    *,
    resumed: bool,
) -> str:
    """Return the summary.

    model: its name. to: the folder of snapshots. seconds: how long this process took. resumed:
    whether an earlier process learned a part.
    """
    clicks = f"{done.clicks:,} of them with a click, "
    rate = "" if resumed else f", {done.examples / max(seconds, 1e-9):,.0f} examples/s"
    since = " since it was continued" if resumed else ""
    epochs = f"{done.epochs} epochs, " if done.epochs > 1 else ""
    rows = counted(done.rows, "row")
    lines = [
        f"{done.snapshot}: {rows} of {counted(done.examples, 'example')} in {to}",
        f"{clicks}learned in {epochs}{seconds:.1f} s{since}{rate}",
    ]
    if not math.isnan(done.log_loss):
        entropy = done.normalized_entropy
        known = "" if math.isnan(entropy) else f", normalized entropy {entropy:.4f}"
        lines.append(f"before learning: log loss {done.log_loss:.5f}{known}")
    if done.held_out_loss is not None:
        lines.append(f"log loss held out: {done.held_out_loss:.5f} after epoch {done.epochs}")
    if not refusals:
        lines.append("every row was learned")
    lines += [
        f"warning: {counted(each.count, 'row is', 'rows are')} refused: {each.details}"
        for each in refusals
    ]
    order = done.order
    if order.disordered:
        share = f"({order.disordered / order.rows:.1%})"
        come = f"rows {share} comes", f"rows {share} come"
        lines.append(
            f"warning: {counted_of(order.disordered, order.rows, *come)} after a newer one, "
            f"by up to {duration(order.furthest_ms)}.\n  The rows were learned in the order of "
            "the files, so these figures are not those of a stream: sort by time"
        )
    place = f"{to.rstrip('/')}/{done.snapshot}"
    lines.append(
        f"serve it: {shlex.join(['headrace', 'serving', 'run', '--snapshot', f'{model}={place}'])}"
    )
    return "\n".join(lines)
