"""The metadata of a joiner's committed offsets is read back, or refused with the reason."""

import pytest

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.joiner.committed_state import SavedCheckpoint, load_checkpoint
from tests.ingest.joiner.partition import Partition

SAVED = SavedCheckpoint("fields", ("i", "c"), Partition().joiner.checkpoint(), (3, -1), "batch")


def test_a_checkpoint_is_short_and_read_as_it_was_committed() -> None:
    text = SAVED.to_json()
    assert load_checkpoint(text, "fields", "impressions/0") == SAVED
    assert len(text) < 600


@pytest.mark.parametrize("text", ["", "{}", "null", "nonsense", '{"fingerprint":"fields"}'])
def test_metadata_that_is_not_a_joiner_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(BadCheckpoint, match="impressions/0: expected the checkpoint of a joiner"):
        load_checkpoint(text, "fields", "impressions/0")


def test_a_checkpoint_of_other_fields_is_refused() -> None:
    with pytest.raises(BadCheckpoint, match=r"expected fields with fingerprint other .*got fields"):
        load_checkpoint(SAVED.to_json(), "other", "impressions/0")


def test_a_checkpoint_of_another_format_is_refused() -> None:
    text = SAVED.to_json().replace('"format":1', '"format":9')
    with pytest.raises(BadCheckpoint, match=r"impressions/0: expected format 1 .*got 9"):
        load_checkpoint(text, "fields", "impressions/0")
