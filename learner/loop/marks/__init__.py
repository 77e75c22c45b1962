"""Names and values of marks, beyond the offsets that `learner.loop.cursors` counts.

`topic_marks` names topics and leader epochs, and compares the marks with the topic that is read.
`parked_marks` names parked messages, `parked_cursors` has what is acknowledged and pending of these
marks, and `parked_requests` lists them and moves them as an operator says.
"""
