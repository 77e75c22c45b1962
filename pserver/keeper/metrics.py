"""The Prometheus metrics of a keeper."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class KeeperMetrics:
    """Counters and gauges of one keeper, in a registry of its own by default."""

    def __init__(self, model: str, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()

        def counter(name: str, text: str) -> Counter:
            family = Counter(f"headrace_keeper_{name}", text, ("model",), registry=registry)
            return family.labels(model)

        def gauge(name: str, text: str) -> Gauge:
            family = Gauge(f"headrace_keeper_{name}", text, ("model",), registry=registry)
            return family.labels(model)

        self.folded_rows = counter("folded_rows", "Rows written from the log.")
        self.trimmed_entries = counter("trimmed_entries", "Entries removed from logs.")
        self.deleted_rows = counter(
            "deleted_rows", "Rows deleted because they were too old or too many."
        )
        self.limited_rows = counter(
            "limited_rows",
            "Deleted rows beyond the limit that `headrace pserver limit` set.",
        )
        self.row_limit = gauge(
            "row_limit",
            "Most rows of the model, set by `headrace pserver limit`; 0: no limit.",
        )
        self._rows = gauge("rows", "Rows of the buckets that this keeper leases.")
        self.lost_leases = counter("lost_leases", "Leases lost to another keeper.")
        self._log_bytes = gauge("log_bytes", "Bytes in the logs of the leased buckets.")
        self._buckets_held = gauge("buckets_held", "Buckets that this keeper leases.")

    def hold(self, buckets: int, log_bytes: int, rows: int) -> None:
        """Record the number of held buckets, the size of their logs and their rows."""
        self._buckets_held.set(buckets)
        self._rows.set(rows)
        self._log_bytes.set(log_bytes)
