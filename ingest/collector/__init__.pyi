from .collector_process import CollectorSettings as CollectorSettings
from .collector_process import run_collector as run_collector
