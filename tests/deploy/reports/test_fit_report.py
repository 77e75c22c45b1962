"""The summary of a fit says what was learned and left out, how well, and what comes next."""

from headrace.deploy.reports.fit_report import fit_in_words
from headrace.ingest.events.contract import Reason
from headrace.ingest.survey.findings import RefusedEvents
from headrace.learner.batch.row_order import RowOrder
from headrace.learner.batch.trainer import FitSummary

DONE = FitSummary("2026-shop-1a2b", 1_200, 50_000, 1, 0.9123, None, 0.21, 2_300)


def test_a_summary_says_what_was_left_out_and_what_came_out_of_order() -> None:
    refused = RefusedEvents(Reason.NO_TIME, 12, "log.csv, line 7", "time=")
    done = DONE._replace(held_out_loss=0.2, epochs=2, order=RowOrder(400, 9, 100, 7_200_000))
    text = fit_in_words(done, "shop", "models", [refused], 5.0, resumed=True)
    assert "learned in 2 epochs, 5.0 s since it was continued\n" in text
    assert "log loss held out: 0.20000 after epoch 2\n" in text
    assert f"warning: 12 rows are refused: {Reason.NO_TIME}\n  first: log.csv, line 7" in text
    assert "100 of 400 rows (25.0%) come after a newer one, by up to 2 hours" in text
    assert "every row was learned" not in text
    one = fit_in_words(
        DONE._replace(order=RowOrder(400, 9, 1, 7_200_000)), "shop", "models", [], 5.0, resumed=True
    )
    assert "warning: 1 of 400 rows (0.2%) comes after a newer one" in one
