"""A cluster of one machine: Deployments as they are rendered, their pods as processes.

Each pod has an address of its own in 127.0.0.0/8. Services are slices in the `FakeApi`, which
change with their pods as the endpoint controller would change them: first the slice, then the
process. What a pod has mounted lies in a folder, and paths and addresses in its configuration are
changed to match; so is where the gateway finds the API.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from antiphon_testkit.fake_kubernetes import FakeApi, endpoint, kubeconfig
from tests.cluster.own_address import own_address
from tests.cluster.pod_process import Json, PodProcess, Program


@dataclass
class _Deployment:
    """A rendered Deployment and the pods that it has now."""

    object: Json
    pods: list[PodProcess] = field(default_factory=list)

    @property
    def template(self) -> Json:
        template: Json = self.object["spec"]["template"]
        return template

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])


class Cluster:
    """Runs rendered objects. Use as an async context manager; leaving ends all pods.

    `replaced` are texts in configurations and commands and what stands for them here, such as
    the path of the model; `modules` are whole words of commands. `story` has what happened to
    which pod, in order, and `times` when that was, by the clock of `time.time`.
    """

    def __init__(
        self,
        objects: Iterable[Json],
        api: FakeApi,
        folder: Path,
        *,
        replaced: Mapping[str, str],
        environment: Mapping[str, str],
        modules: Mapping[str, str] = MappingProxyType({}),
        pace: float = 0.02,
    ) -> None:
        objects = list(objects)
        self._api = api
        self._folder = folder
        self._replaced = dict(replaced)
        self._environment = dict(environment)
        self._modules = dict(modules)
        self._pace = pace
        self._services = list(_of_kind(objects, "Service").values())
        self._configs = _of_kind(objects, "ConfigMap")
        self._deployments = {
            name: _Deployment(each) for name, each in _of_kind(objects, "Deployment").items()
        }
        self._environments: dict[str, Mapping[str, str]] = {}
        self._running: dict[PodProcess, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1)
        self._change = asyncio.Event()
        self._published: dict[str, tuple[Json, list[Json]]] = {}
        self.story: list[tuple[str, str]] = []
        self.times: list[float] = []
        (self._folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig(api.url)))

    async def __aenter__(self) -> Cluster:
        self._publish_all()
        for deployment in self._deployments.values():
            for _ in range(deployment.object["spec"].get("replicas", 1)):
                self._start(deployment)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def pods(self, name: str) -> list[PodProcess]:
        """The pods of a Deployment, the oldest first."""
        return list(self._deployments[name].pods)

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Return once it holds; it is looked at whenever something happens to a pod."""
        while not condition():
            await self._change.wait()

    async def wait_ready(self, name: str, replicas: int) -> None:
        """Return when the Deployment has so many pods, all of them ready."""
        await self.wait(lambda: [pod.ready for pod in self.pods(name)] == [True] * replicas)

    async def scale(self, name: str, replicas: int) -> None:
        """Start pods until they are ready, or delete the youngest until they are gone."""
        deployment = self._deployments[name]
        while len(deployment.pods) < replicas:
            self._start(deployment)
        for pod in deployment.pods[replicas:]:
            pod.stop()
        await self.wait_ready(name, replicas)

    async def restart(self, name: str) -> None:
        """Replace every pod by its Deployment's strategy, as `kubectl rollout restart` does."""
        deployment = self._deployments[name]
        await self._replace(deployment, list(deployment.pods))

    async def upgrade(self, objects: Iterable[Json]) -> None:
        """Apply another rendering of the same Deployments, as `helm upgrade` and controllers do.

        Services and ConfigMaps change at once. Then all Deployments with another pod template
        replace their pods, at the same time. A Deployment that states other replicas is scaled.
        """
        objects = list(objects)
        self._services = list(_of_kind(objects, "Service").values())
        self._configs = _of_kind(objects, "ConfigMap")
        self._publish_all()
        rendered = _of_kind(objects, "Deployment")
        assert rendered.keys() == self._deployments.keys()
        async with asyncio.TaskGroup() as group:
            for name, deployment in self._deployments.items():
                group.create_task(self._apply(deployment, rendered[name]))

    async def _apply(self, deployment: _Deployment, rendered: Json) -> None:
        before, deployment.object = deployment.template, rendered
        if deployment.template != before:
            await self._replace(deployment, list(deployment.pods))
        # Without the field, another controller decides.
        replicas = rendered["spec"].get("replicas", len(deployment.pods))
        if replicas != len(deployment.pods):
            await self.scale(deployment.name, replicas)

    async def _replace(self, deployment: _Deployment, old: Sequence[PodProcess]) -> None:
        """End pods and start as many new ones, by the strategy of the Deployment.

        Without a surge, a pod starts when an old one has ended, as on a full node.
        """
        name, spec = deployment.name, deployment.object["spec"]
        strategy = spec["strategy"]["rollingUpdate"]
        surge, missing = strategy["maxSurge"], strategy["maxUnavailable"]
        # A pod counts when it has been ready for so long.
        available_s = spec.get("minReadySeconds", 0) * self._pace
        replicas = len(deployment.pods)
        batch = missing or surge
        for start in range(0, len(old), batch):
            leaving = set(old[start : start + batch])
            if not missing:
                await self._start_ready(deployment, replicas + len(leaving), available_s)
            for pod in leaving:
                pod.stop()
            await self.wait(lambda leaving=leaving: leaving.isdisjoint(deployment.pods))  # type: ignore[misc]
            if missing:
                await self._start_ready(deployment, replicas, available_s)
        await self.wait_ready(name, replicas)

    async def _start_ready(
        self, deployment: _Deployment, replicas: int, available_s: float
    ) -> None:
        """Start pods until there are so many, all of them available."""
        while len(deployment.pods) < replicas:
            self._start(deployment)
        await self.wait_ready(deployment.name, replicas)
        await asyncio.sleep(available_s)

    def set_environment(self, name: str, environment: Mapping[str, str]) -> None:
        """Give pods of a Deployment that start from now on these variables in addition."""
        self._environments[name] = environment

    def kill(self, pod: PodProcess) -> None:
        """Take the machine away from a pod: no SIGTERM, and the slice is told afterwards."""
        self._running[pod].cancel()

    def said(self, pod: PodProcess) -> str:
        """What a pod's process has written."""
        return self.said_by(pod.name)

    def said_by(self, pod: str) -> str:
        """The same, by its name."""
        return (self._folder / pod / "said").read_text()

    def _start(self, deployment: _Deployment) -> None:
        name = f"{deployment.name}-{next(self._numbers)}"
        address = own_address()
        folder = self._folder / name
        folder.mkdir()
        program = self._program(deployment, folder, address)
        spec = deployment.template["spec"]
        pod = PodProcess(name, address, spec, program, pace=self._pace, tell=self._tell)
        deployment.pods.append(pod)
        self._tell(pod, "created")
        self._running[pod] = asyncio.create_task(self._run(deployment, pod))

    async def _run(self, deployment: _Deployment, pod: PodProcess) -> None:
        try:
            await pod.run()
        finally:
            deployment.pods.remove(pod)
            del self._running[pod]
            self._tell(pod, "removed")

    def _program(self, deployment: _Deployment, folder: Path, address: str) -> Program:
        """What the container would run, on this machine."""
        spec = deployment.template["spec"]
        (container,) = spec["containers"]
        replaced = {"[::]:": f"{address}:"} | self._replaced
        volumes = {each["name"]: each for each in spec["volumes"]}
        for mount in container["volumeMounts"]:
            if config := volumes[mount["name"]].get("configMap"):
                mounted = folder / mount["name"]
                mounted.mkdir()
                replaced[mount["mountPath"]] = str(mounted)
                for file, text in self._configs[config["name"]]["data"].items():
                    (mounted / file).write_text(self._config(_with(text, replaced)))
        values = {"status.podIP": address, "metadata.name": folder.name}
        environment = {
            each["name"]: each.get("value")
            or values.get(each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath"), "")
            for each in container.get("env", ())
        }
        words = (self._modules.get(word, word) for word in container["command"])
        command = [_with(word, replaced) for word in words]
        if command[0] == "python":
            command[0] = sys.executable
        own = self._environments.get(deployment.name, {})
        variables = os.environ | environment | self._environment | own
        return Program(command, variables, said=folder / "said")

    def _config(self, text: str) -> str:
        """The service account of a pod is a kubeconfig file here."""
        content: Any = yaml.safe_load(text)
        discovery = content.get("gateway", {}).get("discovery", {})
        if discovery.get("kind") == "kubernetes":
            discovery["kubeconfig"] = str(self._folder / "kubeconfig")
        return yaml.safe_dump(content)

    def _tell(self, pod: PodProcess, what: str) -> None:
        self.story.append((pod.name, what))
        self.times.append(time.time())
        self._publish_all()
        self._change.set()
        self._change = asyncio.Event()

    def _publish_all(self) -> None:
        for service in self._services:
            self._publish(service)

    def _selected(self, service: Json) -> list[_Deployment]:
        wanted = service["spec"]["selector"].items()
        return [
            each
            for each in self._deployments.values()
            if wanted <= each.template["metadata"]["labels"].items()
        ]

    def _publish(self, service: Json) -> None:
        name = service["metadata"]["name"]
        endpoints = [
            endpoint(pod.address, pod.uid, ready=pod.ready, terminating=pod.terminating)
            for deployment in self._selected(service)
            for pod in deployment.pods
        ]
        ports = {each["name"]: each["targetPort"] for each in service["spec"].get("ports", ())}
        slice_of_service = (ports, endpoints)
        if self._published.get(name) != slice_of_service:
            self._published[name] = slice_of_service
            self._api.put(f"{name}-1", name, endpoints, ports=ports)


def _of_kind(objects: Iterable[Json], kind: str) -> dict[str, Json]:
    """The objects of a kind by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def _with(text: str, replaced: Mapping[str, str]) -> str:
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text
