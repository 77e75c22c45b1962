"""The metadata of a joiner's committed offsets is read back, or refused with the reason."""

import pytest

from headrace.ingest.errors import BadCheckpoint
from headrace.ingest.joiner.committed_state import SavedCheckpoint, load_checkpoint
from headrace.ingest.joiner.last_position import continue_at
from tests.ingest.joiner.partition import Partition

SAVED = SavedCheckpoint("fields", ("i", "c"), Partition().joiner.checkpoint(), (3, -1), "batch")
TEXT = SAVED.to_json()


def test_committed_offsets_decide_alone_where_the_topic_has_no_checkpoint() -> None:
    for tail in ([], [None], [None, None]):
        assert continue_at(SAVED, tail) == (SAVED, 0)
        assert continue_at(None, tail) == (None, 0)


def test_a_checkpoint_is_short_and_read_as_it_was_committed() -> None:
    assert load_checkpoint(TEXT, "fields", "impressions/0") == SAVED
    assert len(TEXT) < 600


@pytest.mark.parametrize(
    ("text", "fields", "message"),
    [
        *((each, "fields", "expected the checkpoint of a joiner")
          for each in ("", "{}", "null", "nonsense", '{"fingerprint":"fields"}')),
        (TEXT, "other", "expected fields with fingerprint other .*got fields"),
        (TEXT.replace('"format":1', '"format":9'), "fields",
         "expected format 1 .*got 9: use the version of headrace that wrote it"),
    ],
)  # fmt: skip
def test_metadata_that_is_not_the_checkpoint_of_this_joiner_is_refused(
    text: str, fields: str, message: str
) -> None:
    with pytest.raises(BadCheckpoint, match=f"impressions/0: {message}"):
        load_checkpoint(text, fields, "impressions/0")
