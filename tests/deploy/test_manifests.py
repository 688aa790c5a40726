"""The files under deploy/: valid by the published schemas or the programs that read them, and in agreement with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from jobs_admin.worker.versions import VERSION
from tests.kit.programs import DEPLOY, check, program
from tests.kit.up import ROOT

pytestmark = [pytest.mark.extras]

KUBERNETES = DEPLOY / "kubernetes"
KUBERNETES_VERSION = "1.32"


@pytest.fixture
def secrets(tmp_path) -> set[str]:
    """The names of the files that make-secrets creates for Redrive."""
    check(str(DEPLOY / "make-secrets"), str(tmp_path / "secrets"), str(tmp_path / "servers"))
    return {path.name for path in (tmp_path / "secrets").iterdir()}


def test_make_secrets_creates_what_is_missing_and_changes_nothing(tmp_path):
    from cryptography.fernet import Fernet

    folder, servers = tmp_path / "secrets", tmp_path / "servers"
    command = [str(DEPLOY / "make-secrets"), str(folder), str(servers)]
    check(*command)
    first = {path: path.read_text() for path in [*folder.iterdir(), *servers.iterdir()]}
    Fernet(first[folder / "payload-keys"])
    assert len(first[folder / "secret-key"]) > 40
    assert first[servers / "store-password"] in first[folder / "store-url"]
    assert first[servers / "database-password"] in first[folder / "database-url"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (folder / "secret-key").unlink()
    assert check(*command) == f"Created {folder}/secret-key.\n"
    assert {path: path.read_text() for path in first} | {folder / "secret-key": ""} == first | {
        folder / "secret-key": ""
    }


# Compose ---------------------------------------------------------------------------------------------------------------


def test_compose_reads_the_file_and_every_service_is_confined(secrets):
    text = check(
        program("docker-compose", "docker-compose"), "-f", str(DEPLOY / "compose.yaml"), "config", "--format", "json"
    )
    found = json.loads(text)
    assert set(found["services"]) == {"secrets", "migrate", "web", "watch", "postgres", "valkey"}
    for name, service in found["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert {volume["source"] for volume in service.get("volumes", [])} <= set(found["volumes"]), name
    assert found["services"]["web"]["image"] == f"redrive:{VERSION}"
    assert found["services"]["web"]["ports"][0]["host_ip"] == "127.0.0.1"
    assert [found["services"][name]["command"][:2] for name in ("migrate", "watch")] == [
        ["redrive", "migrate"],
        ["redrive", "watch"],
    ]
    assert found["networks"]["servers"]["internal"]
    _files_exist(found["services"]["web"]["environment"], secrets)


def _files_exist(environment: dict[str, str], secrets: set[str]) -> None:
    files = {name: Path(value) for name, value in environment.items() if name.endswith("_FILE")}
    assert set(files) == {"SECRET_KEY_FILE", "REDRIVE_PAYLOAD_KEYS_FILE", "DATABASE_URL_FILE", "REDRIVE_REDIS_URL_FILE"}
    assert {(path.parent.as_posix(), path.name) for path in files.values()} == {
        ("/etc/redrive", name) for name in secrets
    }


def test_compose_refuses_a_misspelt_option(tmp_path):
    text = (DEPLOY / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(text.replace("cap_drop:", "cap_dropp:"))
    command = [program("docker-compose", "docker-compose"), "-f", str(tmp_path / "compose.yaml"), "config", "-q"]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


# Kubernetes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resources() -> list[dict]:
    """The resources that `kustomize build` of the base and the example returns, but for names that it makes itself."""
    yaml = pytest.importorskip("yaml")
    found: list[dict] = []
    for folder in ("base", "example"):
        listed = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["resources"]
        files = {path.name for path in (KUBERNETES / folder).iterdir()} - {"kustomization.yaml"}
        assert set(listed) - {"../base"} == files
        for name in sorted(files):
            found += yaml.safe_load_all((KUBERNETES / folder / name).read_text())
    return found


def test_every_resource_is_valid_by_the_published_schema(resources):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for resource in resources:
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
    broken = json.loads(json.dumps(resources[0])) | {"kindd": "x"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES_VERSION, strict=True)


def _pods(resources: list[dict]) -> dict[str, dict]:
    return {one["metadata"]["name"]: one["spec"]["template"] for one in resources if "template" in one.get("spec", {})}


def test_every_pod_meets_the_restricted_standard(resources):
    pods = _pods(resources)
    assert set(pods) == {"redrive-migrate", "redrive-web", "redrive-watch"}
    for name, pod in pods.items():
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 10001, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        [container] = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert container["resources"]["limits"]["memory"] and container["args"][0] == "redrive", name


def test_every_reference_resolves(resources, secrets):
    yaml = pytest.importorskip("yaml")
    base = yaml.safe_load((KUBERNETES / "base/kustomization.yaml").read_text())
    example = yaml.safe_load((KUBERNETES / "example/kustomization.yaml").read_text())
    maps = {one["name"]: dict(line.split("=", 1) for line in one["literals"]) for one in base["configMapGenerator"]}
    assert {one["name"] for one in example["configMapGenerator"]} <= set(maps)
    _files_exist(maps["redrive"], secrets)
    assert [one["newTag"] for one in [*base["images"], *example["images"]]] == [VERSION, VERSION]
    named = {(one["kind"], one["metadata"]["name"]): one for one in resources}
    pods = _pods(resources)
    for pod in pods.values():
        spec = pod["spec"]
        [container] = spec["containers"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in named
        assert {source["configMapRef"]["name"] for source in container["envFrom"]} <= set(maps)
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert volumes["secrets"]["secret"]["secretName"] == "redrive"
        ports = {port["name"] for port in container.get("ports", [])}
        probes = [container[name] for name in container if name.endswith("Probe")]
        assert {probe["httpGet"]["port"] for probe in probes} <= ports
    for (kind, name), one in named.items():
        selector = one.get("spec", {}).get("selector") or one.get("spec", {}).get("podSelector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            chosen = [pod for pod in pods.values() if wanted.items() <= pod["metadata"]["labels"].items()]
            assert chosen, (kind, name)
    [service] = [one for (kind, _), one in named.items() if kind == "Service"]
    [port] = service["spec"]["ports"]
    assert port["targetPort"] in {port["name"] for port in pods["redrive-web"]["spec"]["containers"][0]["ports"]}
    backend = named["Ingress", "redrive"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert (backend["name"], backend["port"]["name"]) == (service["metadata"]["name"], port["name"])
    if kubectl := shutil.which("kubectl"):
        built = list(yaml.safe_load_all(check(kubectl, "kustomize", str(KUBERNETES / "example"))))
        assert len(built) == len(resources) + 1  # the ConfigMap
        assert {one["metadata"].get("namespace", "redrive") for one in built} == {"redrive"}
        images = {pod["spec"]["containers"][0]["image"] for pod in _pods(built).values()}
        assert images == {f"registry.example.com/redrive:{VERSION}"}


# systemd ---------------------------------------------------------------------------------------------------------------


def test_systemd_accepts_the_units_and_their_sandbox(tmp_path):
    analyze = program("systemd-analyze", "systemd")
    units = tmp_path / "etc/systemd/system"
    shutil.copytree(DEPLOY / "systemd", units)
    command = tmp_path / "opt/redrive/bin/redrive"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for target in ("sysinit", "basic", "shutdown", "network-online", "multi-user"):
        (units / f"{target}.target").write_text(f"[Unit]\nDescription={target}\nDefaultDependencies=no\n")
    names = ["redrive-web.service", "redrive-watch.service", "redrive-migrate.service"]
    verify = [analyze, "verify", "--man=no", f"--root={tmp_path}"]
    assert check(*verify, *(str(units / name) for name in names)) == ""
    for name in names:
        text = check(analyze, "security", "--offline=true", "--threshold=25", f"--root={tmp_path}", name)
        assert "Overall exposure level" in text
    drop_in = units / "redrive-.service.d/service.conf"
    drop_in.write_text(drop_in.read_text().replace("PrivateTmp=", "PrivateTmpp="))
    done = subprocess.run([*verify, str(units / names[0])], capture_output=True, text=True, check=False)
    assert "Unknown key 'PrivateTmpp'" in done.stderr


def test_the_commands_of_every_deployment_are_those_of_the_image():
    units = {path.stem: path.read_text() for path in (DEPLOY / "systemd").glob("*.service")}
    commands = {
        name: re.findall(r"^ExecStart=/opt/redrive/bin/redrive (.*)$", text, re.M) for name, text in units.items()
    }
    assert commands == {
        "redrive-web": ["web --bind 127.0.0.1:8000"],
        "redrive-watch": ["watch"],
        "redrive-migrate": ["migrate --noinput", "collectstatic --noinput"],
    }
    assert 'CMD ["redrive", "web", "--bind", "0.0.0.0:8000"]' in (DEPLOY / "Containerfile").read_text()


def test_every_builder_accepts_the_copies_of_the_image():
    """Docker without BuildKit copies several files only to a path that ends in a slash."""
    lines = [line.split() for line in (DEPLOY / "Containerfile").read_text().splitlines()]
    copies = [[word for word in words[1:] if not word.startswith("--")] for words in lines if words[:1] == ["COPY"]]
    assert len(copies) > 3
    assert [words for words in copies if len(words) > 2 and not words[-1].endswith("/")] == []


def test_the_example_of_the_environment_names_known_variables():
    names = re.findall(r"^(REDRIVE_[A-Z_]+)=", (DEPLOY / "systemd/environment").read_text(), re.M)
    known = set(json.loads((ROOT / "tests/pinned/environment.json").read_text()))
    assert {name.removesuffix("_FILE") for name in names} <= known
