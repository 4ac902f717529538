"""The Helm chart: what it renders is valid, least privileged, and fits the processes it starts."""

from __future__ import annotations

import copy
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from relay import jobs
from relay.settings import effective
from relay.telemetry.liveness import PATIENCE_S
from tests.pages import code, commands
from tests.repository.chart_support import (
    CHART,
    CHOICES,
    CONFIG,
    ROOT,
    SECRETS,
    Object,
    containers,
    environment,
    faults,
    helm,
    of_kind,
    pods,
    render,
    secrets_of,
    settings,
)
from tests.repository.deploy_support import parse


@pytest.fixture(scope="module", params=sorted(CHOICES))
def chosen(request: pytest.FixtureRequest) -> list[Object]:
    return render(CHOICES[request.param])


@pytest.fixture(scope="module")
def rendered() -> list[Object]:
    return render()


def worker(objects: list[Object]) -> Object:
    return containers(objects)["worker"]


# --- what the page types ---


def test_the_page_makes_the_secrets_that_are_read() -> None:
    made = {}
    for command in commands(code("docs/how-to/kubernetes.md", "sh", 1)):
        kubectl, create, secret, generic, name, *literals = shlex.split(command)
        assert (kubectl, create, secret, generic) == ("kubectl", "create", "secret", "generic")
        made[name] = {it.removeprefix("--from-literal=").partition("=")[0] for it in literals}
    assert made == {name: {*keys} for name, keys in SECRETS.items()}


def test_the_page_installs_the_chart_with_values_that_it_knows() -> None:
    [command] = commands(code("docs/how-to/kubernetes.md", "sh", 2))
    helm_, install, _, chart, *options = shlex.split(command)
    assert (helm_, install, ROOT / chart) == ("helm", "install", CHART)
    chosen: dict[str, Any] = {}
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    for flag, option in zip(options[::2], options[1::2], strict=True):
        key, _, value = option.partition("=")
        if flag == "--set":
            outer, _, inner = key.partition(".")
            chosen[outer] = {inner: value}
        assert flag == "--namespace" or key.partition(".")[0] in known
    assert worker(render(yaml.safe_dump(chosen)))["image"].startswith("registry.example/jetrelay:")


# --- what Kubernetes says ---


def test_kubernetes_and_keda_know_everything_that_is_rendered(chosen: list[Object]) -> None:
    assert [fault for found in chosen for fault in faults(found)] == []


def broken(objects: list[Object], kind: str, *path: str | int, value: Any) -> Object:
    found = copy.deepcopy(next(iter(of_kind(objects, kind).values())))
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return found


def test_a_key_or_a_value_that_kubernetes_does_not_know_is_noticed(rendered: list[Object]) -> None:
    pod = ("spec", "template", "spec")
    assert list(faults(broken(rendered, "Deployment", *pod, "terminationGracePeriod", value=45)))
    assert list(faults(broken(rendered, "Deployment", *pod, "containers", 0, "ports", 0, "port", value=1)))
    assert list(faults(broken(rendered, "Deployment", "spec", "replicas", value="two")))
    assert list(faults(broken(rendered, "ScaledObject", "spec", "scaleTarget", value={})))


def test_helm_finds_nothing_to_complain_about() -> None:
    found = helm.lint(str(CHART), {"config": CONFIG})
    assert [it["error"] for it in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("{config: ''}", "set config"),
        ("{config: 'a = ['}", "unexpected EOF"),
        ("{pool: {}}", "pool"),
        ("{pools: {all: {autoscaling: {target: 7}}}}", "target"),
        ("{worker: {autoscaling: {scaler: cpu}}}", "scaler"),
        ("{pools: {Messages: {}}}", "Messages"),
        ("{config: '[contexts]'}", "nothing to scale by"),
    ],
)
def test_values_that_cannot_work_are_refused(values: str, told: str) -> None:
    with pytest.raises(helm.HelmError) as caught:
        render(values)
    assert told in str(caught.value)


# --- least privilege ---


def test_no_process_is_root_or_may_write_or_talk_to_the_cluster(chosen: list[Object]) -> None:
    for pod in pods(chosen).values():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        written = {it["name"] for it in pod["volumes"] if "configMap" not in it and "secret" not in it}
        assert written <= {"tmp", "metrics", "archive"}
    for container in containers(chosen).values():
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_the_image_has_the_user_that_the_pods_run_as(rendered: list[Object]) -> None:
    dockerfile = (CHART.parent / "Dockerfile").read_text()
    [number] = {pod["securityContext"]["runAsUser"] for pod in pods(rendered).values()}
    assert f"useradd --system --uid {number} " in dockerfile
    users = [line.split()[1] for line in dockerfile.splitlines() if line.startswith("USER")]
    assert users[-1] == users[0] == str(number)


def test_each_process_reads_the_secret_it_needs_and_no_other(rendered: list[Object]) -> None:
    assert {name: secrets_of(found) for name, found in containers(rendered).items()} == {
        "upgrade": ["jetrelay-owner"],
        "grant": ["jetrelay-owner"],
        "streams": ["jetrelay-admin"],
        "scheduler": ["jetrelay-fleet"],
        "worker": ["jetrelay-fleet"],
    }
    assert "Secret" not in {found["kind"] for found in rendered}


def test_only_the_ports_of_metrics_can_be_reached_and_only_from_where_they_are_read(
    rendered: list[Object],
) -> None:
    [policy] = of_kind(rendered, "NetworkPolicy").values()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    [rule] = policy["spec"]["ingress"]
    ours = {it["containerPort"] for found in containers(rendered).values() for it in found.get("ports", ())}
    assert {it["port"] for it in rule["ports"]} == ours
    selected = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(
        selected <= it["spec"]["template"]["metadata"]["labels"].items()
        for it in rendered
        if "template" in it.get("spec", {})
    )
    assert rule["from"]


# --- the processes ---


def test_every_command_is_one_of_ours(rendered: list[Object]) -> None:
    found = containers(rendered)
    assert found.pop("scheduler")["command"] == ["python", "-m", "scheduler"]  # test_compose.py runs it
    for container in found.values():
        parse(container["command"])


def test_probes_ask_the_port_of_the_metrics_for_paths_that_are_there(rendered: list[Object]) -> None:
    processes = {name: it for name, it in containers(rendered).items() if "readinessProbe" in it}
    assert "scheduler" in processes
    assert len(processes) > 1
    for container in processes.values():
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
        # What restarts a process does not ask its servers: a restart repairs none of them.
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
        [port] = [it["containerPort"] for it in container["ports"] if it["name"] == "metrics"]
        assert f":{port}" in str([it for it in container["env"] if it["name"].startswith("RELAY_METRICS__")])


def test_a_process_is_not_restarted_before_it_is_taken_for_stuck(rendered: list[Object]) -> None:
    probe = worker(rendered)["livenessProbe"]
    assert probe["initialDelaySeconds"] + probe["periodSeconds"] * probe["failureThreshold"] > PATIENCE_S


def test_every_variable_is_read_and_says_what_holds(rendered: list[Object], tmp_path: Path) -> None:
    for container in containers(rendered).values():
        sources = {source for _, _, source in effective(settings(rendered, container, tmp_path))}
        given = environment(container).keys() - {"RELAY_CONFIG"}
        assert given <= {source.removeprefix("env ") for source in sources}


def test_metrics_are_served_where_the_ports_are(rendered: list[Object], tmp_path: Path) -> None:
    [service] = of_kind(rendered, "Service").values()
    scheduler = containers(rendered)["scheduler"]
    [port] = scheduler["ports"]
    assert settings(rendered, scheduler, tmp_path).metrics.scheduler == f"0.0.0.0:{port['containerPort']}"
    assert [(it["port"], it["targetPort"]) for it in service["spec"]["ports"]] == [
        (port["containerPort"], port["name"])
    ]
    found = settings(rendered, worker(rendered), tmp_path).metrics
    assert found.worker == f"0.0.0.0:{worker(rendered)['ports'][0]['containerPort']}"
    assert str(found.directory) in [it["mountPath"] for it in worker(rendered)["volumeMounts"]]


@pytest.mark.parametrize("choice", ["defaults", "pools"])
def test_kubernetes_waits_longer_than_a_worker_drains(choice: str) -> None:
    [(name, pod)] = [it for it in pods(render(CHOICES[choice])).items() if "-worker-" in it[0]]
    command = pod["containers"][0]["command"]
    drain = int(command[command.index("--worker-shutdown-timeout") + 1]) / 1000
    assert pod["terminationGracePeriodSeconds"] >= drain + 20, name


def test_a_change_of_the_configuration_replaces_the_pods(rendered: list[Object]) -> None:
    def checksums(objects: list[Object]) -> dict[str, str]:
        found = of_kind(objects, "Deployment").items()
        return {name: it["spec"]["template"]["metadata"]["annotations"]["checksum/config"] for name, it in found}

    changed = checksums(render(yaml.safe_dump({"config": CONFIG + "\n# more"})))
    assert all(changed[name] != text for name, text in checksums(rendered).items())
    assert checksums(render()) == checksums(rendered)


def test_migrations_run_before_anything_else_is_there(rendered: list[Object]) -> None:
    hooks = [it for it in rendered if "helm.sh/hook" in it["metadata"].get("annotations", {})]
    assert {it["metadata"]["annotations"]["helm.sh/hook"] for it in hooks} == {"pre-install,pre-upgrade"}
    pod = of_kind(hooks, "Job")["jetrelay-migrate"]["spec"]["template"]["spec"]
    first, then = ([it["command"][:3] for it in pod[kind]] for kind in ("initContainers", "containers"))
    assert first == [["relay", "db", "upgrade"]]
    assert then == [["relay", "db", "grant"], ["relay", "streams", "ensure"]]
    needed = {it["configMap"]["name"] for it in pod["volumes"] if "configMap" in it}
    assert needed <= of_kind(hooks, "ConfigMap").keys()  # the release's own is not there yet


def test_pools_take_queues_that_exist() -> None:
    found = containers(render(CHOICES["pools"]))["worker"]["command"]
    known = {text for name, text in vars(jobs).items() if name.endswith("_QUEUE") and text.startswith("relay-")}
    assert set(found[found.index("--queues") + 1 :]) <= known
    words = (CHART / "values.yaml").read_text().split()
    assert {word for word in words if word.startswith("relay-") and "…" not in word} == known


# --- with the programs, where they are ---


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
def test_the_program_renders_the_same(rendered: list[Object], tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(CONFIG)
    given = ["--namespace", "messages", "--set-file", f"config={tmp_path}/relay.toml"]
    command = ["helm", "template", "jetrelay", CHART, *given]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    found = [it for it in yaml.safe_load_all(done.stdout) if it]
    assert sorted(found, key=str) == sorted(rendered, key=str)


@pytest.mark.skipif(shutil.which("kubeconform") is None, reason="kubeconform is not installed")
def test_kubeconform_accepts_it() -> None:
    command = ["kubeconform", "-strict", "-skip", "ScaledObject", "-"]
    for values in CHOICES.values():
        text = yaml.safe_dump_all(render(values))
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout
