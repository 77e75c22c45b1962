"""Runtime support for every process: clocks, kernels, status, supervision.

`process` is the frame of a long-running process and uses `status`. `health` and `read_lag` decide
whether it makes progress, and `refreshed_figures` asks servers for its metrics. `kafka_clients`
opens the clients of processes that work in transactions; `broker_rehearsal` prepares a new broker
for them.
`numba_kernels` compiles every kernel of headrace; it is a low-level optimization. `restart_policy`
and `parent_guard` serve supervisors of child processes.

`model_collector` has metrics of a process of one model, `background_thread` is a thread with a
start and a stop, `clock` has the two clocks, `affinity` counts the cores of a process, and
`freed_memory` returns memory to the system.
"""
