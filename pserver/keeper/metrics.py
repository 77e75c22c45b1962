"""The Prometheus metrics of a keeper."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class KeeperMetrics:
    """Counters and gauges of one keeper, in a registry of its own by default."""

    def __init__(self, model: str, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def named(name: str) -> str:
            return f"headrace_keeper_{name}"

        labels, values = ("model",), (model,)
        self.folded_rows = Counter(
            named("folded_rows"), "Rows written from the log.", labels, registry=registry
        ).labels(*values)
        self.trimmed_entries = Counter(
            named("trimmed_entries"), "Entries removed from logs.", labels, registry=registry
        ).labels(*values)
        self.deleted_rows = Counter(
            named("deleted_rows"),
            "Rows deleted because they were too old or too many.",
            labels,
            registry=registry,
        ).labels(*values)
        self.limited_rows = Counter(
            named("limited_rows"),
            "Deleted rows beyond the limit that `headrace pserver limit` set.",
            labels,
            registry=registry,
        ).labels(*values)
        self.row_limit = Gauge(
            named("row_limit"),
            "Most rows of the model, set by `headrace pserver limit`; 0: no limit.",
            labels,
            registry=registry,
        ).labels(*values)
        self._rows = Gauge(
            named("rows"), "Rows of the buckets that this keeper holds.", labels, registry=registry
        ).labels(*values)
        self.lost_leases = Counter(
            named("lost_leases"), "Leases lost to another keeper.", labels, registry=registry
        ).labels(*values)
        self._log_bytes = Gauge(
            named("log_bytes"), "Bytes in the logs of held buckets.", labels, registry=registry
        ).labels(*values)
        self._buckets_held = Gauge(
            named("buckets_held"),
            "Buckets that this keeper holds.",
            labels,
            registry=registry,
        ).labels(*values)

    def hold(self, buckets: int, log_bytes: int, rows: int) -> None:
        """Record the number of held buckets, the size of their logs and their rows."""
        self._buckets_held.set(buckets)
        self._rows.set(rows)
        self._log_bytes.set(log_bytes)
