"""The ages of buckets, in a survey that takes long."""

from headrace.deploy.operations.inspection import survey_json
from headrace.pserver.inspection.buckets import BucketSurvey
from headrace.pserver.inspection.model_survey import Survey


def test_the_age_of_a_bucket_counts_until_the_look_at_that_bucket() -> None:
    found = [
        BucketSurvey(bucket, "h:1", append_ms=append_ms, read_ms=read_ms)
        for bucket, append_ms, read_ms in ((0, 9_000, 9_250), (1, 60_000, 60_500), (2, 0, 60_600))
    ]
    shown = survey_json(Survey("m", 9_100.0, [], found, None), None)["buckets"]
    assert [each["age_s"] for each in shown] == [0.25, 0.5, None]
