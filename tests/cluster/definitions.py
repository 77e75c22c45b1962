"""Definitions of custom kinds for the API server, made of the schemas that `make test` uses."""

from typing import Any

from tests.deploy.chart.helm import CUSTOM, schema_of

_GROUPS = {
    "PodMonitor": ("monitoring.coreos.com", "v1"),
    "PrometheusRule": ("monitoring.coreos.com", "v1"),
    "ScaledObject": ("keda.sh", "v1alpha1"),
    "KafkaTopic": ("kafka.strimzi.io", "v1"),
    "KafkaUser": ("kafka.strimzi.io", "v1"),
    "ValkeyCluster": ("valkey.io", "v1alpha1"),
}
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


def definitions() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinitions of all custom kinds."""
    return [_definition(kind) for kind in CUSTOM]


def _definition(kind: str) -> dict[str, Any]:
    group, version = _GROUPS[kind]
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "singular": singular, "plural": f"{singular}s"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _root(kind)},
                }
            ],
        },
    }


def _root(kind: str) -> dict[str, Any]:
    """Return the schema of a whole object; Kubernetes brings its own for `metadata`."""
    schema = _structural(schema_of(kind))
    schema["properties"].pop("metadata", None)
    return schema


def _structural(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in the form that Kubernetes wants.

    Keys that a schema does not list are unknown without `additionalProperties: false`, which
    Kubernetes does not take beside `properties`. A value that may be a number or text has no type.
    """
    found = {key: value for key, value in schema.items() if key != "$comment"}
    if found.get("additionalProperties") is False:
        del found["additionalProperties"]
    if "properties" in found:
        found["properties"] = {
            name: _structural(each) for name, each in found["properties"].items()
        }
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), dict):
            found[key] = _structural(found[key])
    if found.get("type") == "object" and not {"properties", "additionalProperties"} & set(found):
        found[_PRESERVE] = True
    if found.get("type") == "array" and "items" not in found:
        found["items"] = {"type": "object", _PRESERVE: True}
    if "type" not in found:
        found["x-kubernetes-int-or-string"] = True
    return found
