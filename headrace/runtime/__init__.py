"""The ground floor: what the processes and all parts share, below every part.

`process` is the frame of a long-running process. `health` decides whether it makes progress,
`process_metrics` has its metrics, `freed_memory` returns memory to the system, and `termination`
has signals and exit statuses. `http` has HTTP servers and tokens, and `kernels` compiles kernels.

`restart_policy` and `parent_guard` serve supervisors of child processes, `background_thread` is a
thread with a start and a stop, `clock` has the two clocks, and `affinity` counts the cores of a
process.

`settings` declares settings. `counted_nouns` and `printable_text` are for messages, and
`undecodable` lists the errors of a decoder.
"""
