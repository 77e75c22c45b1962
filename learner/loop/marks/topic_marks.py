"""Compares the marks of all buckets with the topic that is read now. Pure functions.

A mark counts offsets of one topic, named by its id. After an operator accepted a recreated topic,
every bucket has marks of the old topic and of the new one. A bucket that comes back from an older
snapshot then has older marks of the old topic, whose examples are gone. Its marks of the new topic
alone would hide that: they are 0, as at a beginning. So each bucket is compared with the others.
"""

from collections.abc import Iterable, Mapping

from headrace.learner.errors import BucketsBehind, TopicMadeAgain
from headrace.learner.loop.marks.parked_marks import is_parked_mark

_EPOCH = "@epoch"


def epoch_source(source: str) -> str:
    """Return the name in the marks under which the leader epoch of a source is stored.

    The value is the first epoch not learned from, so an absent one is 0 like every other mark. It
    moves in the same push as the offset, because a push fences all its marks together.
    """
    return f"{source}{_EPOCH}"


def offsets_in(marks: Mapping[str, int]) -> dict[str, int]:
    """Return the marks that are offsets, without leader epochs and parked messages."""
    return {
        name: mark
        for name, mark in marks.items()
        if not name.endswith(_EPOCH) and not is_parked_mark(name)
    }


def topic_of(source: str) -> str:
    """Return the topic id in the name of a source in the marks."""
    return source.rpartition("/")[0]


def buckets_behind(
    topic_id: str, marks: Mapping[int, Mapping[str, int]]
) -> list[tuple[int, str, int, int]]:
    """Return what buckets lack of earlier topics, where others have gone on with this topic.

    Each as bucket, source (`earlier topic's id/partition`), its mark there, and the greatest mark
    of any bucket. `marks`: by bucket. A partition in which a bucket has begun this topic counts as
    complete: the operator accepted its gap together with the topic.
    """
    marks = {bucket: offsets_in(own) for bucket, own in marks.items()}
    greatest: dict[str, int] = {}
    for own in marks.values():
        for source, mark in own.items():
            greatest[source] = max(mark, greatest.get(source, 0))
    found = []
    for bucket, own in marks.items():
        begun = any(mark and topic_of(source) == topic_id for source, mark in own.items())
        for source, most in greatest.items():
            here = f"{topic_id}/{source.rpartition('/')[2]}"
            passed = own.get(here, 0) or (begun and not greatest.get(here))
            if topic_of(source) != topic_id and own.get(source, 0) < most and not passed:
                found.append((bucket, source, own.get(source, 0), most))
    learned = any(mark and topic_of(source) == topic_id for source, mark in greatest.items())
    return sorted(found) if learned else []


def check_topic_marks(topic: str, topic_id: str, marks: Mapping[int, Mapping[str, int]]) -> None:
    """Check that the examples which the buckets lack are in the topic.

    Raises TopicMadeAgain if they have learned from another topic only, and BucketsBehind if some
    lack examples of an earlier one.
    """
    names = {name for own in marks.values() for name, mark in offsets_in(own).items() if mark}
    others = {topic_of(name) for name in names}
    if names and topic_id not in others:
        spread = {name: _spread(name, marks.values()) for name in names}
        raise TopicMadeAgain(topic, " and ".join(sorted(others)), topic_id, spread)
    if behind := buckets_behind(topic_id, marks):
        raise BucketsBehind(topic, topic_id, behind)


def _spread(name: str, marks: Iterable[Mapping[str, int]]) -> tuple[int, int]:
    found = [own.get(name, 0) for own in marks]
    return min(found), max(found)
