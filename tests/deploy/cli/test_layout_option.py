"""Commands that learn tables guess a layout if none is given."""

from pathlib import Path

import pytest

from headrace.deploy.cli.experiments.experiment_commands import source_of_log
from headrace.deploy.cli.fit import _source
from headrace.deploy.options import layout_of_tables
from headrace.ingest.features.spec_text import SpecError
from headrace.learner.batch.event_source import EventLogSource
from headrace.learner.batch.sources import FilePosition, UnreadableData
from headrace.learner.batch.table_source import TableSource
from headrace.learner.spec.model_spec import parse_spec

SPEC = parse_spec(
    '[model]\nname = "m"\n[fields]\nberth = { number = 1, transform = "id" }\n', "m.toml"
)
T0_S = 1_700_000_000


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder with two tables of one form."""
    for part in range(2):
        rows = [f"{T0_S + 60 * part + i};b{i % 3};{int(i % 5 == 0)}" for i in range(50)]
        text = "seen_at;berth;booked\n" + "\n".join(rows) + "\n"
        (tmp_path / f"part-{part}.csv").write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", ["", "auto"])
def test_tables_without_a_layout_get_the_guess_from_the_first_of_a_pattern(
    tables: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = layout_of_tables(name, [str(tables / "part-*.csv")])
    assert (layout.event.timestamp, layout.event.timestamp_format) == ("seen_at", "s")
    assert layout.click is not None
    assert layout.click.column == "booked"
    assert layout.file.delimiter == ";"
    assert "guessed from the first rows of part-0.csv" in capsys.readouterr().err


def test_a_fit_and_an_experiment_learn_tables_without_a_layout(tables: Path) -> None:
    data = [str(tables / "part-*.csv")]
    for source in (_source(SPEC, data, "", None), source_of_log(SPEC, data, "", None)):
        assert isinstance(source, TableSource)
        assert sum(len(block.examples) for block in source.blocks(FilePosition())) == 100


def test_directories_of_events_need_no_layout_and_other_names_must_exist(tables: Path) -> None:
    for name in ("impressions", "clicks"):
        (tables / f"{name}.ndjson").touch()
    assert isinstance(source_of_log(SPEC, [str(tables)], "", None), EventLogSource)
    assert isinstance(source_of_log(SPEC, [str(tables)], "auto", None), EventLogSource)
    with pytest.raises(UnreadableData, match=r"expected files at .*absent\.csv, got none"):
        source_of_log(SPEC, [str(tables / "absent.csv")], "", None)
    with pytest.raises(SpecError, match=r"avazu or criteo"):
        source_of_log(SPEC, [str(tables / "part-0.csv")], "typo", None)
