"""What a keeper says of itself to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class KeeperMetrics:
    """Counters and gauges of one keeper, in a registry of its own unless one is given."""

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
            "Rows found too old or too many.",
            labels,
            registry=registry,
        ).labels(*values)
        self.lost_leases = Counter(
            named("lost_leases"), "Buckets that another keeper took.", labels, registry=registry
        ).labels(*values)
        self.fold_seconds = Histogram(
            named("fold_seconds"), "One call that writes rows.", labels, registry=registry
        ).labels(*values)
        self._log_bytes = Gauge(
            named("log_bytes"), "In the logs of the buckets held.", labels, registry=registry
        ).labels(*values)
        self._buckets_held = Gauge(
            named("buckets_held"), "Buckets whose lease it has.", labels, registry=registry
        ).labels(*values)

    def hold(self, buckets: int, log_bytes: int) -> None:
        """Note how many buckets are held and how large their logs are."""
        self._buckets_held.set(buckets)
        self._log_bytes.set(log_bytes)
