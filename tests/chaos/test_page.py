"""The page of a chaos run: complete, self-contained, and small for a long run."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import islice

from tests.chaos.accounting import Counted, growth
from tests.chaos.accuracy import Accuracy, Window
from tests.chaos.page import as_page, reduced
from tests.chaos.plan import steps
from tests.chaos.record import Episode, Run
from tests.chaos.sampler import Moment

COUNTED = Counted(100, 10, 100, 10, 1, 0, 0, 0, {"user": 100}, {"user": 9})


def run_of(minutes: int) -> Run:
    """A run with a step each 20 s and fresh answers between them."""
    plan = islice(steps(1), 3 * minutes)
    memory = {f"part-{n}": [(2.0 * at, 1, 300.0) for at in range(30 * minutes)] for n in range(14)}
    moments = [
        Moment(n / 2, 0.3 + n % 7, True, {0.5: 3.0, 1.0: 1.0}, 10, 1, 1000 * n)
        for n in range(120 * minutes)
    ]
    return Run(
        *(1, 2000.0, 60.0 * minutes, "2 cores", ["clocks <need> root"]),
        [Episode(step, 20.0 * n, 20.0 * n + 5, 20.0 * n + 9) for n, step in enumerate(plan)],
        moments,
        [Window(10.0 * n, 500, 0.7, 0.75) for n in range(6 * minutes)],
        [growth(name, weighed) for name, weighed in memory.items()],
        memory,
        counted=COUNTED,
    )


def test_a_page_names_no_other_file_and_its_pictures_are_well_formed() -> None:
    page = as_page(run_of(5))
    body = page[page.index("<main>") : page.index("</main>") + len("</main>")]
    root = ET.fromstring(body)
    assert len(list(root.iter("svg"))) == 5 + 14
    assert "http" not in page
    assert "src=" not in page
    assert "clocks &lt;need&gt; root" in page


def test_a_page_of_an_hour_stays_small() -> None:
    assert len(as_page(run_of(60)).encode()) < 500_000


def test_a_page_says_that_nothing_was_violated_or_lists_what_was() -> None:
    run = run_of(1)
    assert "no violation" in as_page(run)
    found = as_page(replace(run, violations=["shows of field user: expected 100, got 99"]))
    assert "1 violations" in found
    assert "expected 100, got 99" in found


def test_a_reduced_series_keeps_its_spikes_and_its_gaps() -> None:
    points = [(float(n), 1.0) for n in range(5000)]
    points[1234] = (1234.0, 99.0)
    points[2000:2100] = [(float(n), math.nan) for n in range(2000, 2100)]
    kept = reduced(points, 100)
    assert len(kept) <= 200
    assert (1234.0, 99.0) in kept
    assert any(math.isnan(value) for _, value in kept)


def test_accuracy_closes_a_window_once_its_clicks_have_come() -> None:
    accuracy = Accuracy(window_s=10.0, settle_s=5.0)
    for number in range(400):
        name = f"i{number}"
        accuracy.show(number / 40, [name], [number / 400])
        accuracy.score([name], [number / 400])
        if number % 2 or number > 300:
            accuracy.click([name])
    assert accuracy.windows == []
    accuracy.show(15.1, ["later"], [0.5])
    [window] = accuracy.windows
    assert window.answered == 400
    assert window.served == window.truth > 0.5
