"""The pure core of the joiner: pairs impressions and clicks of one partition into examples.

Read `rules` first: it has the semantics and why a restart is exact. `join` runs them for one
partition, `kernel` is the compiled loop over events, `watermark` the progress of event time,
`window_eviction` forgets, and `output` makes examples. `input` has the columns of messages. The
state is in `window_state`, made of a `ring_buffer`, a `hash_index` and a `byte_arena`; `checkpoint`
describes how to rebuild it. A click that comes before its impression waits in `window_state`.
"""
