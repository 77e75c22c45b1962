from .relay_loop import RelayPolicy as RelayPolicy
from .relay_process import RelaySettings as RelaySettings
from .relay_process import run_relay as run_relay
from .relayed_rows import RelayedRows as RelayedRows
from .relayed_rows import open_relayed_rows as open_relayed_rows
