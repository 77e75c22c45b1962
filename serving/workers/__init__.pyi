from .worker_supervisor import run_workers as run_workers
