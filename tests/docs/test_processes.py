"""docs/guides/processes.md is true: its fleet and its unit."""

from headrace.runtime.termination import REFUSED, UNREACHABLE
from tests.docs.pages import DOCS, blocks, command_of

PAGE = (DOCS / "guides/processes.md").read_text()
STARTED = {
    *("ingest topics", "pserver init", "ingest join", "pserver keep", "learner run"),
    *("serving run", "evaluate run", "ingest sink", "ingest collect", "status", "pserver doctor"),
}


def test_the_page_starts_each_process_of_a_fleet_once() -> None:
    named = [line for line in blocks(PAGE, "sh")[0].splitlines() if line]
    found = [line.removeprefix("headrace ") for line in named]
    assert len(found) == len(STARTED)
    assert all(any(line.startswith(each) for line in found) for each in STARTED)


def test_a_unit_starts_again_after_an_outage_and_not_after_a_refusal() -> None:
    [unit] = blocks(PAGE, "ini")
    assert f"RestartPreventExitStatus={REFUSED}\n" in unit
    assert str(UNREACHABLE) not in unit
    [line] = [each for each in unit.splitlines() if each.startswith("ExecStart=")]
    options, words = command_of(line.partition("bin/")[2])
    assert {word for word in words if word.startswith("--")} <= options
