"""The status of joiners and servers that have counted the fields of events and requests."""

from headrace.ingest.status import MetricSample, ProcessStatus

T0_MS = 1_700_000_000_000


def joiner(name: str, impressions: float, **fields: float) -> ProcessStatus:
    return said("joiner", name, "news", ("impressions", impressions), fields)


def server(name: str, candidates: float, model: str = "news", **fields: float) -> ProcessStatus:
    return said("server", name, model, ("candidates", candidates), fields)


def said(
    process: str, instance: str, model: str, total: tuple[str, float], fields: dict[str, float]
) -> ProcessStatus:
    name, count = total
    figures = [MetricSample(f"headrace_{process}_recent_{name}", {"model": model}, count)]
    for field, value in fields.items():
        kind = "unknown_values" if field.startswith("unknown") else "values"
        labels = {"model": model, "field": field}
        if kind == "values":
            labels["source"] = "article_id" if field == "article" else field
        figures.append(MetricSample(f"headrace_{process}_recent_{kind}", labels, value))
    return ProcessStatus(process, instance, T0_MS, figures)
