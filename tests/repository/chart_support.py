"""The chart of deploy/kubernetes, rendered by Helm itself and read by models of the Kubernetes API."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay.settings import Settings, load_settings
from tests.pages import code

helm = pytest.importorskip("helm_python", reason="Helm's library has no wheel for this machine")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "kubernetes"
CONFIG = (ROOT / "deploy" / "relay.toml").read_text()
#: What the Secrets of docs/how-to/kubernetes.md hold.
SECRETS = {
    "jetrelay-fleet": {
        "DATABASE_URL": "postgresql://relay:r@postgres/{context}",
        "NATS_URL": "nats://relay:r@nats:4222",
        "REDIS_URL": "redis://relay:r@redis:6379/0",
    },
    "jetrelay-owner": {"DATABASE_URL": "postgresql://relay_owner:o@postgres/{context}"},
    "jetrelay-admin": {"NATS_URL": "nats://relay_admin:a@nats:4222"},
}
MODELS = {
    "v1": "kubernetes.core.v1",
    "apps/v1": "kubernetes.apps.v1",
    "batch/v1": "kubernetes.batch.v1",
    "networking.k8s.io/v1": "kubernetes.networking.v1",
    "policy/v1": "kubernetes.policy.v1",
    "keda.sh/v1alpha1": "keda.v1alpha1",
}

#: The defaults, and everything else that can be chosen.
CHOICES = {
    "defaults": "{}",
    "fleet": "{worker: {autoscaling: {per: fleet}}}",
    "prometheus": "{pools: {all: {autoscaling: {scaler: prometheus}}}}",
    "nats": "{worker: {autoscaling: {scaler: nats-jetstream}}}",
    "pools": """
        image: {repository: registry.example/jetrelay, tag: "1", pullSecrets: [registry]}
        secrets: {files: jetrelay-files}
        env: {RELAY_NATS__CA: /run/secrets/jetrelay/ca.pem, RELAY_PULL_BYTES: 8MB}
        migrate: {streams: false, roles: {application: [cases, billing]}}
        nodeSelector: {kubernetes.io/arch: amd64}
        tolerations: [{key: dedicated, operator: Exists}]
        podAnnotations: {team: messages}
        pools:
          all: null
          messages:
            queues: [relay-publish, relay-pull, relay-handle, relay-upkeep]
            replicas: 3
            processes: 4
            threads: 8
            drainSeconds: 60
            resources: {requests: {cpu: "2", memory: 1Gi}, limits: {memory: 2Gi}}
            volumes: [{name: archive, persistentVolumeClaim: {claimName: archive}}]
            volumeMounts: [{name: archive, mountPath: /var/lib/relay/archive}]
            autoscaling: {enabled: false}
    """,
    "page, scaling": code("docs/how-to/kubernetes.md", "yaml", 1),
    "page, pools": code("docs/how-to/kubernetes.md", "yaml", 2),
    "bare": """
        migrate: {enabled: false}
        readiness: {enabled: false}
        networkPolicy: {enabled: false}
        podDisruptionBudget: {enabled: false}
        metrics: {annotations: null}
    """,
}

Object = dict[str, Any]


def render(values: str = "{}") -> list[Object]:
    """The objects of a release, for values in YAML over the defaults."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render({"config": CONFIG, **yaml.safe_load(values)}, name="jetrelay", namespace="messages")
    return [found for text in files.values() for found in yaml.safe_load_all(text) if found]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """The objects of a kind by their names."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pods(objects: list[Object]) -> dict[str, Object]:
    """The specifications of pods by the names of what makes them."""
    return {
        it["metadata"]["name"]: it["spec"]["template"]["spec"]
        for it in objects
        if "template" in it.get("spec", {})
    }


def containers(objects: list[Object]) -> dict[str, Object]:
    """All containers by their names."""
    found = [it for pod in pods(objects).values() for it in (*pod.get("initContainers", ()), *pod["containers"])]
    return {it["name"]: it for it in found}


def secrets_of(container: Object) -> list[str]:
    return [source["secretRef"]["name"] for source in container["envFrom"]]


def environment(container: Object) -> dict[str, str]:
    """The variables of a container's process, those of its Secrets too."""
    filled = {key: value for name in secrets_of(container) for key, value in SECRETS[name].items()}
    return {**filled, **{entry["name"]: entry["value"] for entry in container["env"]}}


def settings(objects: list[Object], container: Object, tmp_path: Path) -> Settings:
    """What the process of a container reads."""
    variables = environment(container)
    assert variables.pop("RELAY_CONFIG") == "/etc/relay/relay.toml"
    assert {"name": "config", "mountPath": "/etc/relay", "readOnly": True} in container["volumeMounts"]
    [text] = {found["data"]["relay.toml"] for found in of_kind(objects, "ConfigMap").values()}
    path = tmp_path / "relay.toml"
    path.write_text(text)
    return load_settings(path, variables)


def faults(found: Object) -> Iterator[str]:
    """What the models of the API do not accept or do not know in an object."""
    model = getattr(import_module(f"cloudcoil.models.{MODELS[found['apiVersion']]}"), found["kind"])
    try:
        read = model.model_validate(found).model_dump(mode="json", by_alias=True, exclude_unset=True)
    except ValueError as error:
        yield str(error)
    else:
        yield from _unknown(found, read, found["kind"])


def _unknown(given: Any, read: Any, path: str) -> Iterator[str]:
    match given, read:
        case dict(), dict():
            yield from (f"{path}.{key} is unknown" for key in given.keys() - read.keys())
            for key in given.keys() & read.keys():
                yield from _unknown(given[key], read[key], f"{path}.{key}")
        case list(), list():
            for number, (one, other) in enumerate(zip(given, read, strict=True)):
                yield from _unknown(one, other, f"{path}[{number}]")
        case _ if given != read:
            yield f"{path} is {given!r}, read as {read!r}"
